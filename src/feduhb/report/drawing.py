"""The drawing kit of every figure: colours, lines, words and axes, made of matplotlib's objects without pyplot."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from feduhb.report.runs import ORIGINAL, RETRAIN, RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue and vermillion are Okabe and Ito's (2008). Brown and violet were searched for: with grey, any two stay apart for the
# colour-blind, and all can be read on white and on the page's dark ground. The others come after Tol 2021.
BLUE, VERMILLION, BROWN, VIOLET = "#0072B2", "#D55E00", "#8C5433", "#9933EE"
GREY = "#8C8C8C"
OWN = {"feduhb": BLUE, RETRAIN: VERMILLION, "federaser": BROWN, "fedrecover": VIOLET}
OTHERS = ("#009E73", "#C2679A", "#B58300", "#7A6FD6", "#5E7F8C")
RAMP = ("#B87400", "#B0457F", "#2A6FC0")  # low to high; all three can be read on white and on dark
INK, SOFT, GRID, FRAME, GROUND = "#222222", "#666666", "#E8E8E8", "#BBBBBB", "#FFFFFF"

SIZE, SMALL = 9.0, 8.0  # points
LABEL_GAP = 0.075  # between labels, of the axes' height
POINT_GAP = 9.0  # points between a point and its name
AXES_SHARE = 0.8  # of the height of a figure with one panel
LINE_POINTS = 11.5  # height of a line of small text
CHARACTERS_AN_INCH = 16.5  # of small text
POINTS_AN_INCH = 72
WIDE_LINE = 3.6  # points
MARGIN = 0.85  # inches of a panel's width that are not its axes

Dash = Literal["solid", "dashed", "dashdot", "dotted"]
DASHES: tuple[Dash, ...] = ("solid", "dashdot", "dotted")


class Stroke(NamedTuple):
    """The colour and the dashes of a line."""

    colour: str
    dash: Dash = "solid"
    wide: bool = False  # and under the others, so that a line on top of it does not hide it


Looks = dict[str, Stroke]  # by a run's label
Note = tuple[str, str]  # text and its colour


def choose_strokes(views: Sequence[RunView]) -> Looks:
    """Return each run's stroke: every method has its own colour, the original is grey."""
    chosen: Looks = {}
    for view in views:
        supply = _list_strokes(view.role)
        chosen[view.label] = next((stroke for stroke in supply if stroke not in chosen.values()), supply[-1])
    return chosen


def _list_strokes(role: str) -> list[Stroke]:
    if role == ORIGINAL:
        return [Stroke(GREY, dash) for dash in ("dashed", "dotted", "dashdot")]
    own = [OWN[role]] if role in OWN else []
    return [Stroke(colour, dash) for dash in DASHES for colour in (*own, *OTHERS)]


def grade_colours(count: int) -> list[str]:
    """Return colours in order, from amber for the least to blue for the most."""
    last = len(RAMP) - 1
    places = [last if count < 2 else i * last / (count - 1) for i in range(count)]
    return [_mix_colours(RAMP[int(at)], RAMP[min(int(at) + 1, last)], at % 1) for at in places]


def _mix_colours(one: str, other: str, share: float) -> str:
    parts = [(int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in parts)


class Heading(NamedTuple):
    """The title of a panel and the notes under it."""

    title: str
    notes: Sequence[Note] = ()

    def wrap(self, width: float) -> list[Note]:
        """Wrap the notes for a panel of this width in inches."""
        fits = int((width - MARGIN) * CHARACTERS_AN_INCH)
        return [(line, colour) for text, colour in self.notes for line in textwrap.wrap(text, fits)]


def new_figure(
    columns: int, rows: int, *, width: float | Sequence[float], height: float
) -> tuple[Figure, list[Axes]]:
    """Return a white figure and its axes, row by row.

    Args:
        width: inches of a panel, or of each column's panels.
        height: inches of a panel.
    """
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
    """Write each panel's heading over it, and make the figure higher by what the longest heading takes."""
    widths = [*width] * rows if isinstance(width, Sequence) else [width] * len(headings)
    wrapped = [heading.wrap(inches) for heading, inches in zip(headings, widths, strict=True)]
    room = max(map(len, wrapped))
    figure.set_figheight(figure.get_figheight() + rows * room * LINE_POINTS / POINTS_AN_INCH)
    look = {"color": INK, "size": SIZE + 1.5, "weight": "bold", "parse_math": False}
    for axes, heading, lines in zip(every, headings, wrapped, strict=True):
        for row, (text, colour) in enumerate(lines):
            height = 7 + (room - 1 - row) * LINE_POINTS
            write_text(axes, text, (0, 1), (0, height), colour, within="axes fraction", va="bottom")
        axes.set_title(heading.title, loc="left", pad=10 + room * LINE_POINTS, **look)


def draw_line(
    axes: Axes, series: Sequence[float | None], stroke: Stroke, *, faint: bool = False, thin: bool = False
) -> None:
    """Draw a series over the rounds, with gaps where values are missing."""
    heights = [math.nan if value is None else value for value in series]
    width = WIDE_LINE if stroke.wide else 1.1 if thin else 1.3 if faint else 1.8
    under = faint or thin or stroke.wide
    look = {"color": stroke.colour, "linestyle": stroke.dash, "alpha": 0.75 if faint else 1.0}
    axes.plot(range(1, len(series) + 1), heights, linewidth=width, zorder=2 if under else 3, **look)
    if len(series) == 1:
        axes.plot([1], heights, marker=".", zorder=3, **look)


def draw_dot(axes: Axes, x: float, y: float, colour: str) -> None:
    """Draw a dot on a line."""
    edge = {"markeredgecolor": GROUND, "markeredgewidth": 1.2}
    axes.plot([x], [y], marker="o", markersize=6.5, color=colour, zorder=5, **edge)


def write_text(
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
    """Write text at an offset in points from a place; a dollar sign stays a dollar sign."""
    how: dict[str, Any] = {"xycoords": within, "textcoords": "offset points", "parse_math": False}
    axes.annotate(text, at, offset, color=colour, size=size, va=va, ha=ha, **how)


def style_axes(axes: Axes) -> None:
    """Draw a light grid in the background, and neither box nor ticks."""
    axes.set_axisbelow(True)
    axes.grid(color=GRID, linewidth=0.7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(FRAME)
    axes.tick_params(colors=SOFT, labelsize=SMALL, length=0)


def show_percent(axes: Axes) -> None:
    """Label the vertical axis in percent, with as many digits as its ticks have; it ends at 0% and 100%."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(0.0, low), min(1.0, high))
    for mark in (*axes.lines, *axes.collections):  # a line or a dot at 100% is drawn whole
        mark.set_clip_on(False)
    axes.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 4):g}%")


def label_rounds(axes: Axes, rounds: int, key: str = "") -> None:
    """Set the range, ticks and label of a horizontal axis that shows rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(1 - 0.02 * rounds, rounds * 1.02 + 0.1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel(" · ".join(filter(None, ("round", key))), color=SOFT, size=SMALL)


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write (value, text, colour) beside the axes, near the lines' ends and clear of each other."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    ordered = sorted(ends)
    heights = spread_apart([(value - low) / (high - low) for value, _, _ in ordered], LABEL_GAP)
    for (_, text, colour), height in zip(ordered, heights, strict=True):
        write_text(axes, text, (1, height), (6, 0), colour, within="axes fraction", size=SIZE)


def label_points(axes: Axes, points: Sequence[tuple[float, float, str, str]], edges: Sequence[float]) -> None:
    """Name (x, y, text, colour): on the left half right of the point's edge, else beside the axes, with a thin line to each.

    A name on the left half begins at the first edge from which it covers no point.
    """
    from matplotlib.transforms import offset_copy

    (low, high), (left, right), figure = axes.get_ylim(), axes.get_xlim(), axes.get_figure(root=True)
    axes.set_ylim(low, high)
    axes.set_xlim(left, right)
    assert figure is not None  # noqa: S101 (axes of `new_figure`)
    gap = LINE_POINTS / (AXES_SHARE * figure.get_figheight() * POINTS_AN_INCH)
    an_inch = (right - left) / (figure.get_figwidth() - MARGIN)
    beside = offset_copy(axes.get_xaxis_transform(), figure, x=POINT_GAP, units="points")
    middle = (left + right) / 2
    every = [(*point, edge) for point, edge in zip(points, edges, strict=True)]
    halves = [[p for p in every if p[-1] < middle], [p for p in every if p[-1] >= middle]]
    starts = sorted(edge for *_, edge in halves[0])

    def covers(start: float, height: float, text: str) -> bool:
        end = start + (POINT_GAP / POINTS_AN_INCH + len(text) / CHARACTERS_AN_INCH) * an_inch
        return any(start < x < end and abs((y - low) / (high - low) - height) < gap for x, y, *_ in points)

    for half in halves:
        ordered = sorted(half, key=lambda point: point[1])
        heights = spread_apart([(y - low) / (high - low) for _, y, *_ in ordered], gap)
        for (x, y, text, colour, edge), height in zip(ordered, heights, strict=True):
            free = (start for start in starts if start >= edge and not covers(start, height, text))
            line = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3}
            line["relpos"] = (0, 0.5)  # of the text, where its line begins
            axes.annotate(
                text, (x, y), (next(free, edge) if edge < middle else right, height), textcoords=beside, color=colour,
                size=SMALL, va="center", ha="left", arrowprops=line, annotation_clip=False, parse_math=False, zorder=4,
            )  # fmt: skip


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move sorted heights apart to at least ``gap``, within 0 and 1 as long as there is room."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else max(height, gap / 2))
    limit = 1 - gap / 2
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    return placed


def to_png(figure: Figure) -> bytes:
    """Return a figure as PNG at 150 dpi."""
    return save_figure(figure, format="png", dpi=150, metadata={"Software": None})


def to_pdf(figure: Figure) -> bytes:
    """Return a figure as PDF; the same runs give the same bytes."""
    return save_figure(figure, format="pdf", metadata={"CreationDate": None})


def save_figure(figure: Figure, **options: Any) -> bytes:
    """Return what matplotlib's ``savefig`` writes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, **options)
    return buffer.getvalue()
