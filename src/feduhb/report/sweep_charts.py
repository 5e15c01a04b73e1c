"""The paper's figure on beta, for the page."""

from __future__ import annotations

from collections.abc import Sequence

from feduhb.report.chart_parts import STILL, Chart, layout, line, rounds_axis
from feduhb.report.runs import RunView
from feduhb.report.style import GREY, Stroke, graded
from feduhb.report.sweeps import Sweep, sweep


def sweep_charts(views: Sequence[RunView]) -> dict[str, Chart]:
    """Describe accuracy and loss, a line for each beta, and what beta does to the rounds needed."""
    found = sweep(views)
    if found is None:
        return {}
    last = _reached(found) if found.goal is not None else _final(found)
    return {
        "beta-accuracy": _curves(found, "test_accuracy", ".1%"),
        "beta-loss": _curves(found, "test_loss", ".3g"),
        "beta-reach": last,
    }


def _curves(found: Sweep, score: str, spell: str) -> Chart:
    data: list[Chart] = []
    for (beta, view), colour in zip(found.runs.items(), graded(len(found.runs)), strict=True):
        series = view.scored(score)
        if any(value is not None for value in series):
            data.append(line(f"β {beta:g}", series, Stroke(colour, "solid"), spell))
    ticks = {"tickformat": ".0%"} if spell.endswith("%") else {}
    if score == "test_accuracy" and found.goal is not None:
        data.append(_level(found.goal, found.rounds))
    return {"data": data, "layout": layout(rounds_axis(list(found.runs.values())), ticks)}


def _level(height: float, rounds: int) -> Chart:
    """Draw Retrain's final accuracy across."""
    stroke = {"color": GREY, "width": 1.5, "dash": "dash"}
    ends = {"x": [1, rounds], "y": [height, height], "hovertemplate": "%{y:.1%}"}
    return {"type": "scatter", "mode": "lines", "name": "Retrain's final", **ends, "line": stroke}


def _reached(found: Sweep) -> Chart:
    """Describe rounds to Retrain's accuracy; a beta that never gets there is an open mark at the top."""
    top = found.rounds * 1.08 + 1
    heights = [top if n is None else n for n in found.reached.values()]
    said = ["never" if n is None else f"round {n}" for n in found.reached.values()]
    hollow = [n is None for n in found.reached.values()]
    return _dots(found, heights, said, hollow, {"range": [0, 1.08 * top]})


def _final(found: Sweep) -> Chart:
    ends = [view.final("test_accuracy") for view in found.runs.values()]
    said = ["" if end is None else f"{end:.1%}" for end in ends]
    return _dots(found, ends, said, [False] * len(ends), {"tickformat": ".1%"})


def _dots(
    found: Sweep, heights: Sequence[float | None], said: Sequence[str], hollow: Sequence[bool], scale: Chart
) -> Chart:
    dots = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(found.runs),
        "y": list(heights),
        "text": list(said),
        "line": {"color": GREY, "width": 1.2},
        "marker": {
            "size": 11,
            "color": graded(len(found.runs)),
            "symbol": ["circle-open" if empty else "circle" for empty in hollow],
        },
        "hovertemplate": "β %{x}: %{text}<extra></extra>",
    }
    across = {
        "title": {"text": "β", "standoff": 8, "font": {"size": 13}},
        "tickvals": list(found.runs),
    } | STILL
    return {"data": [dots], "layout": layout(across, scale | STILL) | {"hovermode": "closest"}}
