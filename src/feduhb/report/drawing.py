"""The pen that every figure is drawn with: sizes, greys, lines, marks, axes and words beside them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from feduhb.report.runs import RunView
from feduhb.report.style import Stroke

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, GRID, FRAME = "#222222", "#666666", "#E8E8E8", "#BBBBBB"
SIZE, SMALL = 9.0, 8.0  # points
LABEL_GAP = 0.075  # between labels, of the axes' height
LINE_POINTS = 11.5  # height of a line of small text
CHARACTERS_AN_INCH = 16.5  # of small text
POINTS_AN_INCH = 72
WIDE_LINE = 3.6  # points
MARGIN = 0.85  # inches of a panel's width that are not its axes


class Heading(NamedTuple):
    """A panel's title and the sentences under it, each with its colour."""

    title: str
    said: Sequence[tuple[str, str]] = ()

    def lines(self, width: float) -> list[tuple[str, str]]:
        """Wrap the sentences for a panel of this width in inches."""
        fits = int((width - MARGIN) * CHARACTERS_AN_INCH)
        return [(line, colour) for text, colour in self.said for line in textwrap.wrap(text, fits)]


def blank(
    columns: int, rows: int, *, width: float | Sequence[float], height: float
) -> tuple[Figure, list[Axes]]:
    """Give a white figure and its axes, row by row; width (or each column's) and height are a panel's, in inches."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08, wspace=0.05)
    widths = width if isinstance(width, Sequence) else [width] * columns
    figure = Figure(figsize=(sum(widths), height * rows), layout=layout, facecolor="white")
    return figure, list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).flat)


def write_headings(
    figure: Figure,
    every: Sequence[Axes],
    headings: Sequence[Heading],
    *,
    width: float | Sequence[float],
    rows: int = 1,
) -> None:
    """Put each panel's heading over it and make the figure higher by what the longest takes."""
    widths = [*width] * rows if isinstance(width, Sequence) else [width] * len(headings)
    lines = [heading.lines(inches) for heading, inches in zip(headings, widths, strict=True)]
    room = max(map(len, lines))
    figure.set_figheight(figure.get_figheight() + rows * room * LINE_POINTS / POINTS_AN_INCH)
    for axes, heading, under in zip(every, headings, lines, strict=True):
        write_heading(axes, heading.title, under, room)


def write_heading(axes: Axes, title: str, lines: Sequence[tuple[str, str]], room: int) -> None:
    """Put a title over the axes and lines of (text, colour) under it, with room for so many lines."""
    for row, (line, colour) in enumerate(lines):
        height = 7 + (room - 1 - row) * LINE_POINTS
        say(axes, line, (0, 1), (0, height), colour, within="axes fraction", va="bottom")
    look = {"color": INK, "size": SIZE + 1.5, "weight": "bold", "parse_math": False}
    axes.set_title(title, loc="left", pad=10 + room * LINE_POINTS, **look)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move sorted heights apart to at least ``gap``, within 0 and 1 as long as there is room."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else max(height, gap / 2))
    limit = 1 - gap / 2
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    return placed


def line(
    axes: Axes, series: Sequence[float | None], stroke: Stroke, *, faint: bool = False, thin: bool = False
) -> None:
    """Draw a series over the rounds, with gaps where it has none."""
    heights = [math.nan if value is None else value for value in series]
    width = WIDE_LINE if stroke.wide else 1.1 if thin else 1.3 if faint else 1.8
    under = faint or thin or stroke.wide
    look = {"color": stroke.colour, "linestyle": stroke.dash, "alpha": 0.75 if faint else 1.0}
    axes.plot(range(1, len(series) + 1), heights, linewidth=width, zorder=2 if under else 3, **look)
    if len(series) == 1:
        axes.plot([1], heights, marker=".", zorder=3, **look)


def mark(axes: Axes, x: float, y: float, colour: str) -> None:
    """Set a dot on a line."""
    edge = {"markeredgecolor": "white", "markeredgewidth": 1.2}
    axes.plot([x], [y], marker="o", markersize=6.5, color=colour, zorder=5, **edge)


def say(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    colour: str,
    *,
    within: str | tuple[str, str] = "data",
    size: float = SMALL,
    va: str = "center",
    ha: str = "left",
) -> None:
    """Write text some points off a place; a dollar sign is a dollar sign."""
    how: dict[str, Any] = {"xycoords": within, "textcoords": "offset points", "parse_math": False}
    axes.annotate(text, at, offset, color=colour, size=size, va=va, ha=ha, **how)


def quiet(axes: Axes) -> None:
    """Light grid behind, no box, no ticks."""
    axes.set_axisbelow(True)
    axes.grid(color=GRID, linewidth=0.7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(FRAME)
    axes.tick_params(colors=SOFT, labelsize=SMALL, length=0)


def rounds_axis(axes: Axes, views: Sequence[RunView], key: str = "") -> None:
    """Let the horizontal axis count the rounds of the longest run."""
    from matplotlib.ticker import MaxNLocator

    longest = max(len(view.rounds) for view in views)
    axes.set_xlim(1 - 0.02 * longest, longest * 1.02 + 0.1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel(f"round      {key}".strip(), color=SOFT, size=SMALL)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write (value, text, colour) beside the axes, near the lines' ends and clear of each other."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    ordered = sorted(ends)
    heights = spread([(value - low) / (high - low) for value, _, _ in ordered], LABEL_GAP)
    for (_, text, colour), height in zip(ordered, heights, strict=True):
        say(axes, text, (1, height), (6, 0), colour, within="axes fraction", size=SIZE)
