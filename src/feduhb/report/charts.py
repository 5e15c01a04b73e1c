"""The figures once more, for the page: plain plotly descriptions, drawn by the reader's browser."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from feduhb.report.runs import RunView, Series
from feduhb.report.style import Looks, Stroke, strokes
from feduhb.report.words import ended, percent, scored, watched

Chart = dict[str, Any]  # {"data": [...], "layout": {...}}

TEXT, LINES = "#7D838C", "rgba(128,128,128,0.22)"  # legible on white and on black
DASHES = {"solid": "solid", "dashed": "dash", "dashdot": "dashdot", "dotted": "dot"}


def charts(views: Sequence[RunView]) -> dict[str, Chart]:
    """Describe every chart these runs can fill, by name."""
    looks = strokes(views)
    found = {
        "accuracy": _score(views, looks, "test_accuracy", ".1%"),
        "loss": _score(views, looks, "test_loss", ".3g"),
        "movement": _movement(watched(views), looks),
        "backdoor": _backdoor(scored(views, "backdoor"), looks),
    }
    return {name: chart for name, chart in found.items() if chart["data"]}


def _score(views: Sequence[RunView], looks: Looks, score: str, spell: str) -> Chart:
    data: list[Chart] = []
    for view in views:
        series = view.scored(score)
        if all(value is None for value in series):
            continue
        data.append(_line(view.label, series, looks[view.label], spell, faint=not view.unlearned))
        if view.fired is not None:
            data.append(_stop(view, series, looks[view.label].colour))
    ticks = {"tickformat": ".0%"} if spell.endswith("%") else {}
    return {"data": data, "layout": _layout(_rounds(views), ticks)}


def _movement(views: Sequence[RunView], looks: Looks) -> Chart:
    data: list[Chart] = []
    for view in views:
        colour = looks[view.label].colour
        data.append(_line(view.label, view.moved, looks[view.label], ".3g"))
        if any(value is not None for value in view.threshold):
            data.append(
                _line(f"{view.label}: threshold", view.threshold, Stroke(colour, "dashed"), ".3g", faint=True)
            )
        if view.fired is not None:
            data.append(_stop(view, view.moved, colour))
    return {"data": data, "layout": _layout(_rounds(views), {"rangemode": "tozero"})}


def _backdoor(views: Sequence[RunView], looks: Looks) -> Chart:
    shares = [view.final("backdoor") or 0.0 for view in views]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": shares,
        "y": [escape(view.label) for view in views],
        "text": [percent(share) for share in shares],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [looks[view.label].colour for view in views]},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    names = {"autorange": "reversed", "automargin": True, "showgrid": False, "fixedrange": True}
    shown = {"range": [0, 1.1], "tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1], "fixedrange": True}
    layout = _layout(shown, names) | {"height": 110 + 44 * len(views), "hovermode": "closest", "bargap": 0.4}
    return {"data": [bars] if views else [], "layout": layout}


def _line(
    name: str, series: Sequence[float | None], stroke: Stroke, spell: str, *, faint: bool = False
) -> Chart:
    return {
        "type": "scatter",
        "mode": "lines" if len(series) > 1 else "markers",
        "name": escape(name),
        "x": list(range(1, len(series) + 1)),
        "y": list(series),
        "line": {"color": stroke.colour, "dash": DASHES[stroke.dash], "width": 1.8 if faint else 2.5},
        "hovertemplate": f"%{{y:{spell}}}",
    }


def _stop(view: RunView, series: Series | Sequence[float], colour: str) -> Chart:
    """Mark the round after which the stop rule ended a run, its reason on hover."""
    fired = view.fired or len(series)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "stop",
        "x": [fired],
        "y": [series[fired - 1]],
        "marker": {"color": colour, "size": 11, "line": {"color": "white", "width": 1.5}},
        "hovertemplate": escape(ended(view)) + "<extra></extra>",
        "showlegend": False,
    }


def _rounds(views: Sequence[RunView]) -> Chart:
    longest = max((len(view.rounds) for view in views), default=1)
    title = {"text": "round", "standoff": 8, "font": {"size": 13}}
    return {"title": title, "range": [1 - 0.02 * longest, 0.1 + 1.03 * longest], "tickformat": "d"}


def _layout(x: Chart, y: Chart) -> Chart:
    axis = {"gridcolor": LINES, "linecolor": LINES, "zerolinecolor": LINES, "automargin": True}
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": TEXT, "size": 13, "family": "system-ui, sans-serif"},
        "height": 360,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "xaxis": axis | x,
        "yaxis": axis | y,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "#2B2F36", "bordercolor": "#2B2F36", "font": {"color": "#F2F2F2"}},
    }
