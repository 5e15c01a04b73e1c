"""The paper's figure on beta, in matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from feduhb.report.drawing import (
    SMALL,
    SOFT,
    Heading,
    blank,
    label_ends,
    line,
    quiet,
    rounds_axis,
    write_headings,
)
from feduhb.report.runs import RunView
from feduhb.report.style import GREY, Stroke, graded
from feduhb.report.sweeps import Sweep, about, sweep
from feduhb.report.words import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS, HEIGHT = (4.8, 4.8, 3.4), 3.2  # inches of the panels


def beta(views: Sequence[RunView]) -> Figure | None:
    """Draw accuracy and loss, a line for each beta, and what beta does to the rounds needed."""
    found = sweep(views)
    if found is None:
        return None
    figure, every = blank(3, 1, width=WIDTHS, height=HEIGHT)
    headings = [
        _curves(every[0], found, "test_accuracy", percent, "Test accuracy by β"),
        _curves(every[1], found, "test_loss", number, "Test loss by β"),
        _reached(every[2], found) if found.goal is not None else _final(every[2], found),
    ]
    every[0].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    write_headings(figure, every, headings, width=WIDTHS)
    return figure


def _curves(axes: Axes, found: Sweep, score: str, spell: Callable[[float], str], title: str) -> Heading:
    ends: list[tuple[float, str, str]] = []
    for (value, view), colour in zip(found.runs.items(), graded(len(found.runs)), strict=True):
        series = view.scored(score)
        line(axes, series, Stroke(colour, "solid"))
        if series[-1] is not None:
            ends.append((series[-1], f"β {value:g}  {spell(series[-1])}", colour))
    quiet(axes)
    rounds_axis(axes, list(found.runs.values()))
    if score == "test_accuracy" and found.goal is not None:
        axes.axhline(found.goal, color=GREY, linewidth=1, linestyle="dashed", zorder=1)
    label_ends(axes, ends)
    if score != "test_accuracy":
        return Heading(title)
    goal = [] if found.goal is None else [f"Dashed: Retrain's final {percent(found.goal)}."]
    return Heading(title, [(text, SOFT) for text in [*about(found), *goal]])


def _reached(axes: Axes, found: Sweep) -> Heading:
    """Draw rounds to Retrain's accuracy; a beta that never gets there is an open mark at the top."""
    top = found.rounds * 1.08 + 1
    _dots(
        axes,
        found,
        [top if n is None else n for n in found.reached.values()],
        [n is None for n in found.reached.values()],
    )
    axes.set_ylim(0, top * 1.08)
    axes.set_ylabel("rounds", color=SOFT, size=SMALL)
    said = [("open: never in the rounds run", SOFT)] if None in found.reached.values() else ()
    return Heading("Rounds to reach Retrain", said)


def _final(axes: Axes, found: Sweep) -> Heading:
    ends = [view.final("test_accuracy") for view in found.runs.values()]
    _dots(axes, found, [math.nan if end is None else end for end in ends], [False] * len(ends))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
    return Heading("Final test accuracy", [("no Retrain run here to compare with", SOFT)])


def _dots(axes: Axes, found: Sweep, heights: Sequence[float], empty: Sequence[bool]) -> None:
    betas, colours = list(found.runs), graded(len(found.runs))
    axes.plot(betas, heights, color=GREY, linewidth=1, zorder=2)
    for x, y, colour, hollow in zip(betas, heights, colours, empty, strict=True):
        face = "white" if hollow else colour
        axes.plot([x], [y], marker="o", markersize=7, color=colour, markerfacecolor=face, zorder=3)
    quiet(axes)
    axes.set_xticks(betas, [f"{value:g}" for value in betas])
    axes.margins(x=0.1)
    axes.set_xlabel("β", color=SOFT, size=SMALL)
