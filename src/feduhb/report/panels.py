"""The panels that figures are made of: each draws the answer to one question onto one pair of axes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feduhb.report.drawing import (
    INK,
    LABEL_GAP,
    SIZE,
    SMALL,
    SOFT,
    Heading,
    label_ends,
    line,
    mark,
    quiet,
    rounds_axis,
    say,
)
from feduhb.report.runs import RunView, Series
from feduhb.report.style import Looks, Stroke
from feduhb.report.words import backdoor_note, ended, number, percent, scored, watched

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECT_AT_MOST, DIRECT_LENGTH = 6, 20  # runs, and characters of a label, that still fit beside their lines


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
        line(axes, series, looks[view.label], faint=not view.unlearned)
    for view, end in ends:
        if view.fired is not None:
            mark(axes, view.fired, end, looks[view.label].colour)
    quiet(axes)
    rounds_axis(axes, views)
    if direct(views):
        label_ends(axes, [(end, f"{v.label}  {spell(end)}", looks[v.label].colour) for v, end in ends])


def _draw_movement(axes: Axes, views: list[RunView], looks: Looks) -> Heading:
    for view in views:
        colour = looks[view.label].colour
        line(axes, view.moved, looks[view.label])
        line(axes, view.threshold, Stroke(colour, "dashed"), thin=True)
        if view.fired is not None:
            axes.axvline(view.fired, color=colour, linewidth=0.7, alpha=0.5, zorder=1)
            mark(axes, view.fired, view.moved[view.fired - 1], colour)
    quiet(axes)
    top = max(value or 0.0 for view in views for value in (*view.moved, *view.threshold))
    axes.set_ylim(0, 1.06 * top or 1)
    labelled = len(views) == 1 and _label_threshold(axes, views[0], looks[views[0].label].colour)
    key = "" if labelled or not any(view.judged for view in views) else "dashed: threshold of the stop rule"
    rounds_axis(axes, views, key)
    return Heading("Movement of the weights, ‖Δw‖", [(ended(v), looks[v.label].colour) for v in views])


def _draw_backdoor(axes: Axes, views: list[RunView], looks: Looks) -> Heading:
    shares = [view.final("backdoor") or 0.0 for view in views]
    places = range(len(views))
    axes.barh(places, shares, height=0.62, color=[looks[view.label].colour for view in views], zorder=2)
    for place, share in zip(places, shares, strict=True):
        say(axes, percent(share), (share, place), (5, 0), INK, size=SIZE)
    quiet(axes)
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


def _label_threshold(axes: Axes, view: RunView, colour: str) -> bool:
    """Name the threshold over its line where the movement is farthest above it, if there is room."""
    both = enumerate(zip(view.moved, view.threshold, strict=True), 1)
    gap, x, height = max(((m - t, x, t) for x, (m, t) in both if t is not None), default=(0.0, 0, 0.0))
    if gap < 2 * LABEL_GAP * axes.get_ylim()[1]:
        return False
    say(axes, "threshold", (x, height), (0, 3), colour, va="bottom")
    return True
