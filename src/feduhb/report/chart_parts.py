"""The pen that every chart of the page is drawn with: plain plotly descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from feduhb.report.runs import RunView
from feduhb.report.style import Stroke

Chart = dict[str, Any]  # {"data": [...], "layout": {...}}

TEXT, LINES = "#7D838C", "rgba(128,128,128,0.22)"  # legible on white and on black
DASHES = {"solid": "solid", "dashed": "dash", "dashdot": "dashdot", "dotted": "dot"}
STILL = {"fixedrange": True}  # an axis that a finger scrolling past does not zoom


def line(
    name: str, series: Sequence[float | None], stroke: Stroke, spell: str, *, faint: bool = False
) -> Chart:
    """Describe a series over the rounds."""
    return {
        "type": "scatter",
        "mode": "lines" if len(series) > 1 else "markers",
        "name": escape(name),
        "x": list(range(1, len(series) + 1)),
        "y": list(series),
        "line": {"color": stroke.colour, "dash": DASHES[stroke.dash], "width": 1.8 if faint else 2.5},
        "hovertemplate": f"%{{y:{spell}}}",
    }


def rounds_axis(views: Sequence[RunView]) -> Chart:
    """Let the horizontal axis count the rounds of the longest run."""
    longest = max((len(view.rounds) for view in views), default=1)
    title = {"text": "round", "standoff": 8, "font": {"size": 13}}
    return {"title": title, "range": [1 - 0.02 * longest, 0.1 + 1.03 * longest], "tickformat": "d"}


def layout(x: Chart, y: Chart) -> Chart:
    """Describe a chart without ground or frame, so that it stands on light and on dark pages."""
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
