"""The stop rule's maps and lambda, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from feduhb.report.chart_parts import STILL, TEXT, Chart, layout
from feduhb.report.runs import RunView
from feduhb.report.stop_map import (
    BESIDE,
    LOOKED_BACK,
    SCALES,
    WINDOWS,
    Ending,
    StopMap,
    mapped,
    spelled,
    stop_map,
)
from feduhb.report.style import BLUE, DARK_FROM, HEAT, OTHERS, VERMILLION
from feduhb.report.words import percent

SILENT = "rgba(128,128,128,0.13)"  # the ground of a rule that would not have spoken


def stop_charts(views: Sequence[RunView]) -> dict[str, Chart]:
    """Describe a map for each run that has one, and lambda for the one in front."""
    runs = mapped(views)
    maps = {f"stop-map-{place}": _map(stop_map(view)) for place, view in enumerate(runs)}
    return maps | {
        f"lambda-{what}": _scales(stop_map(view), what) for view in runs[:1] for what in _known(view)
    }


def _known(view: RunView) -> list[str]:
    return ["rounds"] if view.accuracy[-1] is None else ["rounds", "accuracy"]


def _map(found: StopMap) -> Chart:
    cells = [[found.endings[scale, window] for window in WINDOWS] for scale in SCALES]
    rounds = [[ending.round for ending in row] for row in cells]
    heat = [[place / (len(HEAT) - 1), colour] for place, colour in enumerate(HEAT)]
    spoke = _cells(found, cells, rounds) | {"colorscale": heat, "zmin": 0, "zmax": found.rounds}
    silent = _cells(found, cells, [[None if n else 0 for n in row] for row in rounds])
    silent |= {"colorscale": [[0, SILENT], [1, SILENT]]}
    names = {
        "title": _title("window: rounds the rule looks back on"),
        "showgrid": False,
        "type": "category",
        "ticks": "",
    }
    scales = {"title": _title("λ: larger stops earlier"), "showgrid": False, "type": "category", "ticks": ""}
    shapes = [_outline(*found.own)] if found.own else []
    look = layout(names | STILL, scales | STILL) | {"height": 460, "hovermode": "closest", "shapes": shapes}
    return {"data": [spoke, silent], "layout": look}


def _cells(found: StopMap, cells: list[list[Ending]], values: list[list[int | None]]) -> Chart:
    return {
        "type": "heatmap",
        "x": [spelled(window) for window in WINDOWS],
        "y": [f"{scale:g}" for scale in SCALES],
        "z": values,
        "text": [[_text(found, ending) for ending in row] for row in cells],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "xgap": 2,
        "ygap": 2,
        "showscale": False,
        "hoverongaps": False,
        "customdata": [[found.told(ending, " ") for ending in row] for row in cells],
        "hovertemplate": "λ %{y}, window %{x}: %{customdata}<extra></extra>",
    }


def _text(found: StopMap, ending: Ending) -> str:
    """Spell an ending in a colour that its cell lets one read."""
    share = 0.0 if ending.round is None else ending.round / found.rounds
    colour = TEXT if ending.round is None else "#ffffff" if share > DARK_FROM else "#1d2127"
    return f'<span style="color:{colour}">{found.told(ending, "<br>")}</span>'


def _outline(scale: float, window: int | None) -> Chart:
    """Frame the run's own rule."""
    x, y = WINDOWS.index(window), SCALES.index(scale)
    edges = {"x0": x - 0.48, "x1": x + 0.48, "y0": y - 0.46, "y1": y + 0.46}
    return {"type": "rect", **edges, "line": {"color": VERMILLION, "width": 3}}


def _scales(found: StopMap, what: str) -> Chart:
    """Describe what lambda does; a rule that does not fire is an open mark at the top, or at the run's end.

    Of a run that its own rule ended, a λ that had not fired by then has no mark, and its part of the axis is shaded.
    """
    bold = found.line(None)
    top = round(found.rounds * 1.1, 1)
    silent = top if what == "rounds" else found.last
    data = [
        _line(f"window {window}", _fired(found.line(window)), what, colour)
        for window, colour in zip(LOOKED_BACK, OTHERS, strict=False)
    ]
    data = [trace for trace in data if trace["x"]]
    data.append(
        _line("all so far", _fired(bold), what, BLUE)
        | {"line": {"color": BLUE, "width": 2.5}, "marker": {"size": 9}}
    )
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"did not fire in {found.rounds}",
            "x": found.silent,
            "y": [silent] * len(found.silent),
            "marker": {"symbol": "circle-open", "size": 9, "color": BLUE, "line": {"width": 2}},
            "hovertemplate": f"did not fire in {found.rounds} rounds",
        }
    )
    scale = {"range": [0, 1.08 * top]} if what == "rounds" else {"tickformat": ".1%"}
    edges = [SCALES[0] - BESIDE, SCALES[-1] + BESIDE]
    across = {"title": _title("λ"), "tickvals": list(SCALES), "range": edges} | STILL
    return {
        "data": [trace for trace in data if trace["x"]],
        "layout": layout(across, scale | STILL) | {"height": 320} | _shaded(found.unknown),
    }


def _shaded(unknown: Sequence[float]) -> Chart:
    """Shade the λ of which nothing is known, and say so."""
    if not unknown:
        return {}
    sides = {"x0": SCALES[0] - BESIDE, "x1": unknown[-1] + BESIDE, "y0": 0, "y1": 1, "yref": "paper"}
    ground = {"type": "rect", **sides, "fillcolor": SILENT, "line": {"width": 0}, "layer": "below"}
    middle = (SCALES[0] + unknown[-1]) / 2
    words = {"text": "not known", "x": middle, "y": 0.5, "yref": "paper", "showarrow": False}
    return {"shapes": [ground], "annotations": [words]}


def _fired(line: Sequence[Ending]) -> list[Ending]:
    return [ending for ending in line if ending.round is not None]


def _line(name: str, endings: Sequence[Ending], what: str, colour: str) -> Chart:
    heights = [ending.round if what == "rounds" else ending.accuracy for ending in endings]
    said = [f"round {e.round}" + ("" if e.accuracy is None else f", {percent(e.accuracy)}") for e in endings]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(name),
        "x": [ending.scale for ending in endings],
        "y": heights,
        "text": said,
        "line": {"color": colour, "width": 1.2},
        "marker": {"size": 5},
        "hovertemplate": "%{text}",
    }


def _title(text: str) -> Chart:
    return {"text": text, "standoff": 8, "font": {"size": 13}}
