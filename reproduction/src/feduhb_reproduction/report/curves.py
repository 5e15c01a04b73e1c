"""The paper's figures on convergence and accuracy: every method's curves, a column for each federation."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from feduhb.report.drawing import GRID, SMALL, SOFT, Heading, blank, mark, quiet, write_headings
from feduhb.report.style import BLUE, Stroke
from feduhb.report.words import percent
from feduhb_reproduction.cells import RETRAIN, Track
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import ACCURACY, UHB, UHB_ON, Reached, final, reached, stops
from feduhb_reproduction.report.pen import (
    about,
    accuracy_axis,
    banded,
    count_rounds,
    legend,
    mean_line,
    one_range,
    panel_width,
    seeds_of,
    unlike,
    write_over,
)
from feduhb_reproduction.report.printed import CORRECTED, LABELS, METHODS, ROWS, STROKES
from feduhb_reproduction.report.spelling import counts, fired

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = (RETRAIN, "federaser", "fedrecover", CORRECTED)  # FedUHB comes after, on top
MOST = 10.0  # a loss, beyond which a run has exploded
TICKS = tuple(digit * 10.0**power for power in range(-4, 2) for digit in (1, 2, 5))  # of a loss


def curves(found: Sequence[Federation]) -> Figure | None:
    """Draw accuracy over loss, and in each column what FedUHB came to; None without federations."""
    if not found:
        return None
    columns, width = len(found), panel_width(len(found))
    figure, every = blank(columns, 2, width=width, height=2.3)
    for axes, federation in zip(every, found, strict=False):
        _panel(axes, federation, ACCURACY)
        _accuracy(axes, federation)
    for axes, federation in zip(every[columns:], found, strict=True):
        _panel(axes, federation, "test_loss")
        _loss(axes, federation)
    cut = _cut(one_range(every[:columns])[0], found)
    one_range(every[columns:])
    for row, name in enumerate(("test accuracy", "test loss (log)")):
        every[row * columns].set_ylabel(name, color=SOFT, size=SMALL)
    write_headings(figure, every[:columns], [_heading(each, found[0]) for each in found], width=width)
    runs = [run for run in METHODS if any(each.has(run) for each in found)]
    entries = [(ROWS[run], STROKES[run]) for run in runs]
    beyond = [(ROWS[UHB_ON], Stroke(BLUE, "dotted"))] if any(stops(each).fires for each in found) else []
    legend(figure, [*entries, *beyond])
    marks = ["● where the stop rule ends FedUHB."] if beyond else []
    how = "Blue over a panel: the first round at which FedUHB, its rule off, has Retrain's final accuracy (dashed)."
    seeds = f"{about(found[0])}; {seeds_of(found, 'band')}."
    write_over(figure, [seeds, " ".join([how, *marks]), cut])
    return figure


def _panel(axes: Axes, federation: Federation, series: str) -> None:
    for run in DRAWN:
        mean, sd = mean_line(_shown(federation, run), series)
        banded(axes, mean, sd, STROKES[run])
    _feduhb(axes, federation, series)
    quiet(axes)
    count_rounds(axes, federation.rounds)


def _shown(federation: Federation, run: str) -> Collection[Track]:
    """Give the seeds that went to the end; those that broke off only where there is no other."""
    return (federation.tracks(run) or federation.every(run)).values()


def _feduhb(axes: Axes, federation: Federation, series: str) -> None:
    """Draw FedUHB in full up to where the rule ends it in the mean, and dotted from there on."""
    mean, sd = mean_line(_shown(federation, UHB_ON), series)
    if not mean:
        return
    ends = stops(federation)
    end = round(ends.executed.mean or len(mean)) if ends.fires else len(mean)
    banded(axes, mean[:end], sd[:end], STROKES[UHB])
    axes.plot(
        range(end, len(mean) + 1), mean[end - 1 :], color=BLUE, linestyle="dotted", linewidth=1.6, zorder=3
    )
    if ends.fires:
        mark(axes, end, mean[end - 1], BLUE)


def _accuracy(axes: Axes, federation: Federation) -> None:
    ends = [final(federation, run) for run in (*DRAWN, UHB_ON)]
    accuracy_axis(axes, ends, final(federation, RETRAIN))


def _loss(axes: Axes, federation: Federation) -> None:
    """Show every loss on a logarithmic axis, from the least to the peak of a run's first rounds."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(color=GRID, linewidth=0.7)
    seen = [value for value in _losses(federation) if 0 < value <= MOST]
    if seen:
        axes.set_ylim(min(seen) / 1.15, max(seen) * 1.15)
    axes.set_xlabel("round", color=SOFT, size=SMALL)


def _losses(federation: Federation) -> list[float]:
    runs = (mean_line(_shown(federation, run), "test_loss")[0] for run in (*DRAWN, UHB_ON))
    return [value for mean in runs for value in mean if math.isfinite(value)]


def _cut(low: float, found: Sequence[Federation]) -> str:
    """Say what a row's panels share, and what they do not show."""
    under = f"accuracy under {percent(low)} is not shown" if low > 0 else ""
    over = f"loss over {MOST:g} is not shown" if any(v > MOST for one in found for v in _losses(one)) else ""
    told = "; ".join(part for part in (under, over) if part)
    return f"The panels of a row share one range{f': {told}' if told else ''}."


def _heading(federation: Federation, first: Federation) -> Heading:
    goal, found, ends = final(federation, RETRAIN).mean, reached(federation, UHB_ON), stops(federation)
    told = unlike(federation, first)
    if goal is not None and found.n:
        told.append((f"Retrain's {percent(goal)}: {_when(found)}", BLUE))
    if ends.n:
        few = "" if ends.fires == ends.n else f", fires in {fired(ends)}"
        told.append(
            (f"rule: after {counts(ends.executed)}{few}" if ends.fires else "rule: never fires", SOFT)
        )
    for run in (*DRAWN, UHB_ON):
        if broke := len(federation.failed(run)):
            many = len(federation.every(run))
            told.append((f"{LABELS[run]}: {broke} of {many} broke off", STROKES[run].colour))
    return Heading(federation.short, told)


def _when(found: Reached) -> str:
    """Give the mean round alone; its spread is in the table."""
    if found.mean is None:
        return "never"
    few = "" if found.all else f" ({found.hits} of {found.n})"
    return f"round {found.mean:.3g}{few}"
