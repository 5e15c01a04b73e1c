"""The paper's figure on beta, without the stop rule, which would end a low beta early."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feduhb.report.drawing import SMALL, SOFT, Heading, blank, label_ends, quiet, write_headings
from feduhb.report.style import GREY, Stroke, graded
from feduhb.report.words import percent
from feduhb_reproduction.cells import RETRAIN, Cell
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import ACCURACY, Reached, Spread, final, momenta, reached
from feduhb_reproduction.report.pen import (
    accuracy_axis,
    banded,
    bar_of,
    count_rounds,
    data_of,
    in_percent,
    mean_line,
    seeds_of,
    write_over,
)
from feduhb_reproduction.report.tuning import swept

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS, HEIGHT = (4.6, 2.8, 2.8), 2.9  # inches of the panels


class Swept(NamedTuple):
    """One value of what is swept: how it is spelled, its run, and its colour."""

    name: str
    run: str
    colour: str


def beta(cells: Sequence[Cell]) -> Figure | None:
    """Draw accuracy by round, a line for each beta, the final accuracy, and the rounds to Retrain's."""
    found = swept(cells)
    return in_rows(cells, found, _row, " No stop rule. β 0 is Retrain; dashed: its final accuracy.")


def in_rows(
    cells: Sequence[Cell],
    found: Sequence[Federation],
    row: Callable[[Sequence[Axes], Federation], list[Heading]],
    *told: str,
) -> Figure | None:
    """Draw a row of three panels for each federation, and say over them what is drawn; None without federations."""
    if not found:
        return None
    figure, every = blank(3, len(found), width=WIDTHS, height=HEIGHT)
    headings = [heading for at, each in enumerate(found) for heading in row(every[3 * at : 3 * at + 3], each)]
    write_headings(figure, every, headings, width=WIDTHS, rows=len(found))
    seeds = f"{data_of(cells)}; {seeds_of(found, 'bands and whiskers')}."
    write_over(figure, [seeds + told[0], *told[1:]])
    return figure


def _row(every: Sequence[Axes], federation: Federation) -> list[Heading]:
    runs = momenta(federation)
    values = [
        Swept(f"{value:g}", run, colour)
        for (value, run), colour in zip(runs.items(), graded(len(runs)), strict=True)
    ]
    by_round(every[0], federation, [each._replace(name=f"β {each.name}") for each in values])
    return [
        Heading("Test accuracy by β", [(federation.label, SOFT)]),
        *compared(every[1], every[2], federation, values, "β"),
    ]


def compared(
    final_axes: Axes, rounds_axes: Axes, federation: Federation, values: Sequence[Swept], what: str
) -> list[Heading]:
    """Draw the final accuracy and the rounds to Retrain's, value by value."""
    whiskers(final_axes, values, [final(federation, each.run) for each in values])
    in_percent(final_axes)
    said = first_rounds(
        rounds_axes, values, [reached(federation, each.run) for each in values], federation.rounds
    )
    for axes in (final_axes, rounds_axes):
        axes.set_xlabel(what, color=SOFT, size=SMALL)
    broke = [f"{n} broke off at {each.name}" for each in values if (n := len(federation.failed(each.run)))]
    return [
        Heading("Final test accuracy", [(", ".join(broke), SOFT)]),
        Heading("Rounds to Retrain's final", [(said, SOFT)]),
    ]


def by_round(axes: Axes, federation: Federation, values: Sequence[Swept]) -> None:
    """Draw accuracy by round, each run named at its line's end."""
    ends: list[tuple[float, str, str]] = []
    for name, run, colour in values:
        mean, sd = mean_line(federation.tracks(run).values(), ACCURACY)
        banded(axes, mean, sd, Stroke(colour, "solid"))
        if mean:
            ends.append((mean[-1], f"{name}  {percent(mean[-1])}", colour))
    quiet(axes)
    count_rounds(axes, federation.rounds)
    accuracy_axis(axes, [final(federation, each.run) for each in values], final(federation, RETRAIN))
    axes.set_xlabel("round", color=SOFT, size=SMALL)
    label_ends(axes, ends)


def whiskers(axes: Axes, values: Sequence[Swept], spreads: Sequence[Spread]) -> None:
    """Draw means as dots with whiskers, joined by a line where both neighbours are known."""
    heights = [math.nan if spread.mean is None else spread.mean for spread in spreads]
    axes.plot(range(len(values)), heights, color=GREY, linewidth=1, zorder=1)
    for x, (each, spread) in enumerate(zip(values, spreads, strict=True)):
        bar_of(axes, x, spread, each.colour)
        axes.plot([x], [heights[x]], marker="o", markersize=6.5, color=each.colour, zorder=3)
    quiet(axes)
    axes.set_xlim(-0.4, len(values) - 0.6)
    axes.set_xticks(range(len(values)), [each.name for each in values])


def first_rounds(axes: Axes, values: Sequence[Swept], found: Sequence[Reached], rounds: int) -> str:
    """Draw the first rounds with Retrain's accuracy, open at the top where no seed gets there; say which do not."""
    whiskers(axes, values, [each.spread for each in found])
    top = rounds * 1.1
    never = [x for x, each in enumerate(found) if each.n and not each.hits]
    for x in never:
        colour = values[x].colour
        axes.plot([x], [top], marker="o", markersize=6.5, color=colour, markerfacecolor="white", zorder=3)
    axes.set_ylim(0, top * 1.06)
    few = [
        f"{each.hits} of {each.n} at {value.name}"
        for value, each in zip(values, found, strict=True)
        if 0 < each.hits < each.n
    ]
    told = [*(["open: never"] if never else []), *([f"seeds there: {', '.join(few)}"] if few else [])]
    return "; ".join(told)
