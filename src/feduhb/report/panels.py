"""The panels that figures are made of: each draws the answer to one question onto one pair of axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feduhb.report.runs import RunView, Series
from feduhb.report.style import Looks, Stroke
from feduhb.report.words import backdoor_note, ended, number, percent, scored, watched

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT, GRID, FRAME = "#222222", "#666666", "#E8E8E8", "#BBBBBB"
SIZE, SMALL = 9.0, 8.0  # points
DIRECT_AT_MOST, DIRECT_LENGTH = 6, 20  # runs, and characters of a label, that still fit beside their lines
LABEL_GAP = 0.075  # between labels, of the axes' height
LINE_POINTS = 11.5  # height of a line of small text
CHARACTERS_AN_INCH = 16.5  # of small text
MARGIN = 0.85  # inches of a panel's width that are not its axes


class Heading(NamedTuple):
    """A panel's title and the sentences under it, each with its colour."""

    title: str
    said: Sequence[tuple[str, str]] = ()

    def lines(self, width: float) -> list[tuple[str, str]]:
        """Wrap the sentences for a panel of this width in inches."""
        fits = int((width - MARGIN) * CHARACTERS_AN_INCH)
        return [(line, colour) for text, colour in self.said for line in textwrap.wrap(text, fits)]


class Panel(NamedTuple):
    """Which runs a panel shows (none: it is left out), and how it draws them."""

    shows: Callable[[Sequence[RunView]], list[RunView]]
    draw: Callable[[Axes, list[RunView], Looks], Heading]


def direct(views: Sequence[RunView]) -> bool:
    """Whether labels fit beside the lines; if not, a legend carries them."""
    return len(views) <= DIRECT_AT_MOST and all(len(view.label) <= DIRECT_LENGTH for view in views)


def _draw_loss(axes: Axes, views: list[RunView], looks: Looks) -> Heading:
    _draw_score(axes, [(view, view.loss) for view in views], looks, number)
    return Heading("Test loss", _key(views))


def _draw_accuracy(axes: Axes, views: list[RunView], looks: Looks) -> Heading:
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _draw_score(axes, [(view, view.accuracy) for view in views], looks, percent)
    return Heading("Test accuracy", _key(views))


def _key(views: Sequence[RunView]) -> list[tuple[str, str]]:
    fired, trained = any(view.fired for view in views), any(not view.unlearned for view in views)
    marks = {"● ended by its stop rule": fired, "grey: before unlearning": trained}
    said = ",  ".join(mark for mark, used in marks.items() if used)
    return [(said, SOFT)] if said else []


def _draw_score(
    axes: Axes, drawn: list[tuple[RunView, Series]], looks: Looks, spell: Callable[[float], str]
) -> None:
    views = [view for view, _ in drawn]
    ends = [(view, series[-1]) for view, series in drawn if series[-1] is not None]
    for view, series in drawn:
        _line(axes, series, looks[view.label], faint=not view.unlearned)
    for view, end in ends:
        if view.fired is not None:
            _mark(axes, view.fired, end, looks[view.label].colour)
    _quiet(axes)
    _rounds_axis(axes, views)
    if direct(views):
        _label_ends(axes, [(end, f"{v.label}  {spell(end)}", looks[v.label].colour) for v, end in ends])


def _draw_movement(axes: Axes, views: list[RunView], looks: Looks) -> Heading:
    for view in views:
        colour = looks[view.label].colour
        _line(axes, view.moved, looks[view.label])
        _line(axes, view.threshold, Stroke(colour, "dashed"), thin=True)
        if view.fired is not None:
            axes.axvline(view.fired, color=colour, linewidth=0.7, alpha=0.5, zorder=1)
            _mark(axes, view.fired, view.moved[view.fired - 1], colour)
    _quiet(axes)
    top = max(value or 0.0 for view in views for value in (*view.moved, *view.threshold))
    axes.set_ylim(0, 1.06 * top or 1)
    labelled = len(views) == 1 and _label_threshold(axes, views[0], looks[views[0].label].colour)
    key = "" if labelled or not any(view.judged for view in views) else "dashed: threshold of the stop rule"
    _rounds_axis(axes, views, key)
    return Heading("Movement of the weights, ‖Δw‖", [(ended(v), looks[v.label].colour) for v in views])


def _draw_backdoor(axes: Axes, views: list[RunView], looks: Looks) -> Heading:
    shares = [view.final("backdoor") or 0.0 for view in views]
    places = range(len(views))
    axes.barh(places, shares, height=0.62, color=[looks[view.label].colour for view in views], zorder=2)
    for place, share in zip(places, shares, strict=True):
        _say(axes, percent(share), (share, place), (5, 0), INK, size=SIZE)
    _quiet(axes)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.16)
    axes.set_ylim(len(views) - 0.45, -0.55)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    names = [textwrap.fill(view.label, DIRECT_LENGTH) for view in views]
    axes.set_yticks(places, names, color=INK, parse_math=False)
    axes.set_xlabel("stamped test images taken for the target", color=SOFT, size=SMALL)
    return Heading("Backdoor success", [(backdoor_note(views), SOFT)])


def _having(score: str) -> Callable[[Sequence[RunView]], list[RunView]]:
    return lambda views: [view for view in views if any(value is not None for value in view.scored(score))]


LOSS = Panel(_having("test_loss"), _draw_loss)
ACCURACY = Panel(_having("test_accuracy"), _draw_accuracy)
MOVEMENT = Panel(watched, _draw_movement)
BACKDOOR = Panel(lambda views: scored(views, "backdoor"), _draw_backdoor)


def write_heading(axes: Axes, title: str, lines: Sequence[tuple[str, str]], room: int) -> None:
    """Put a title over the axes and lines of (text, colour) under it, with room for so many lines."""
    for row, (line, colour) in enumerate(lines):
        height = 7 + (room - 1 - row) * LINE_POINTS
        _say(axes, line, (0, 1), (0, height), colour, within="axes fraction", va="bottom")
    axes.set_title(title, loc="left", color=INK, size=SIZE + 1.5, weight="bold", pad=10 + room * LINE_POINTS)


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


def _line(
    axes: Axes, series: Sequence[float | None], stroke: Stroke, *, faint: bool = False, thin: bool = False
) -> None:
    heights = [math.nan if value is None else value for value in series]
    width = 1.1 if thin else 1.3 if faint else 1.8
    look = {"color": stroke.colour, "linestyle": stroke.dash, "alpha": 0.75 if faint else 1.0}
    axes.plot(range(1, len(series) + 1), heights, linewidth=width, zorder=2 if faint or thin else 3, **look)
    if len(series) == 1:
        axes.plot([1], heights, marker=".", zorder=3, **look)


def _mark(axes: Axes, x: float, y: float, colour: str) -> None:
    edge = {"markeredgecolor": "white", "markeredgewidth": 1.2}
    axes.plot([x], [y], marker="o", markersize=6.5, color=colour, zorder=5, **edge)


def _say(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    colour: str,
    *,
    within: str = "data",
    size: float = SMALL,
    va: str = "center",
) -> None:
    """Write text some points off a place; a dollar sign is a dollar sign."""
    how = {"xycoords": within, "textcoords": "offset points", "parse_math": False}
    axes.annotate(text, at, offset, color=colour, size=size, va=va, **how)


def _quiet(axes: Axes) -> None:
    """Light grid behind, no box, no ticks."""
    axes.set_axisbelow(True)
    axes.grid(color=GRID, linewidth=0.7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in {"left", "bottom"})
        spine.set_color(FRAME)
    axes.tick_params(colors=SOFT, labelsize=SMALL, length=0)


def _rounds_axis(axes: Axes, views: Sequence[RunView], key: str = "") -> None:
    from matplotlib.ticker import MaxNLocator

    longest = max(len(view.rounds) for view in views)
    axes.set_xlim(1 - 0.02 * longest, longest * 1.02 + 0.1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel(f"round      {key}".strip(), color=SOFT, size=SMALL)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write (value, text, colour) beside the axes, near the lines' ends and clear of each other."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    ordered = sorted(ends)
    heights = spread([(value - low) / (high - low) for value, _, _ in ordered], LABEL_GAP)
    for (_, text, colour), height in zip(ordered, heights, strict=True):
        _say(axes, text, (1, height), (6, 0), colour, within="axes fraction", size=SIZE)


def _label_threshold(axes: Axes, view: RunView, colour: str) -> bool:
    """Name the threshold over its line where the movement is farthest above it, if there is room."""
    both = enumerate(zip(view.moved, view.threshold, strict=True), 1)
    gap, x, height = max(((m - t, x, t) for x, (m, t) in both if t is not None), default=(0.0, 0, 0.0))
    if gap < 2 * LABEL_GAP * axes.get_ylim()[1]:
        return False
    _say(axes, "threshold", (x, height), (0, 3), colour, va="bottom")
    return True
