"""Figures on momentum: the paper's on β, and the ablation that adds FedAvg with a tuned server step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feduhb.report.drawing import (
    BLUE,
    GREY,
    OTHERS,
    SMALL,
    SOFT,
    VERMILLION,
    Heading,
    Stroke,
    draw_dot,
    grade_colours,
    label_ends,
    new_figure,
    style_axes,
    write_headings,
)
from feduhb.report.words import format_percent
from feduhb_reproduction.cells import RETRAIN, Cell
from feduhb_reproduction.federations import Federation, group_cells
from feduhb_reproduction.figures.parts import (
    average_series,
    describe_seeds,
    draw_band,
    draw_whisker,
    format_percent_axis,
    name_data,
    set_accuracy_axis,
    set_round_axis,
    write_over,
)
from feduhb_reproduction.measures import (
    ACCURACY,
    UHB_ON,
    Reached,
    Spread,
    final_value,
    find_best_step,
    find_reached,
    list_momenta,
    list_steps,
    replay_rule,
)
from feduhb_reproduction.tuning import select_swept

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS, HEIGHT = (4.6, 2.8, 2.8), 2.9  # inches of the panels


class Swept(NamedTuple):
    """One value of a setting that a figure varies: the name, run and colour of this value."""

    name: str
    run: str
    colour: str


def draw_betas(cells: Sequence[Cell]) -> Figure | None:
    """Draw accuracy by round for each β, without the stop rule, which would end a low β early."""
    found = select_swept(cells)
    return draw_rows(
        cells, found, _draw_beta_row, " No stop rule. β 0 is Retrain; dashed: its final accuracy."
    )


def draw_rows(
    cells: Sequence[Cell],
    found: Sequence[Federation],
    row: Callable[[Sequence[Axes], Federation], list[Heading]],
    *phrases: str,
) -> Figure | None:
    """Draw a row of three panels for each federation, under sentences; return None without federations."""
    if not found:
        return None
    figure, every = new_figure(3, len(found), width=WIDTHS, height=HEIGHT)
    headings = [heading for at, each in enumerate(found) for heading in row(every[3 * at : 3 * at + 3], each)]
    write_headings(figure, every, headings, width=WIDTHS, rows=len(found))
    seeds = f"{name_data(cells)}; {describe_seeds(found, 'bands and whiskers')}."
    write_over(figure, [seeds + phrases[0], *phrases[1:]])
    return figure


def _draw_beta_row(every: Sequence[Axes], federation: Federation) -> list[Heading]:
    runs = list_momenta(federation)
    values = [
        Swept(f"{value:g}", run, colour)
        for (value, run), colour in zip(runs.items(), grade_colours(len(runs)), strict=True)
    ]
    draw_by_round(every[0], federation, [each._replace(name=f"β {each.name}") for each in values])
    return [
        Heading("Test accuracy by β", [(federation.label, SOFT)]),
        *draw_comparison(every[1], every[2], federation, values, "β"),
    ]


def draw_comparison(
    final_axes: Axes, rounds_axes: Axes, federation: Federation, values: Sequence[Swept], what: str
) -> list[Heading]:
    """Draw the final accuracy and the rounds to Retrain's, value by value."""
    draw_dots(final_axes, values, [final_value(federation, each.run) for each in values])
    format_percent_axis(final_axes)
    said = draw_first_rounds(
        rounds_axes, values, [find_reached(federation, each.run) for each in values], federation.rounds
    )
    for axes in (final_axes, rounds_axes):
        axes.set_xlabel(what, color=SOFT, size=SMALL)
    broke = [f"{n} broke off at {each.name}" for each in values if (n := len(federation.failed(each.run)))]
    return [
        Heading("Final test accuracy", [(", ".join(broke), SOFT)]),
        Heading("Rounds to Retrain's final", [(said, SOFT)]),
    ]


def draw_by_round(axes: Axes, federation: Federation, values: Sequence[Swept]) -> None:
    """Draw accuracy by round, each run named at its line's end."""
    ends: list[tuple[float, str, str]] = []
    for name, run, colour in values:
        mean, sd = average_series(federation.tracks(run).values(), ACCURACY)
        draw_band(axes, mean, sd, Stroke(colour, "solid"))
        if mean:
            ends.append((mean[-1], f"{name}  {format_percent(mean[-1])}", colour))
    style_axes(axes)
    set_round_axis(axes, federation.rounds)
    set_accuracy_axis(
        axes, [final_value(federation, each.run) for each in values], final_value(federation, RETRAIN)
    )
    axes.set_xlabel("round", color=SOFT, size=SMALL)
    label_ends(axes, ends)


def draw_dots(axes: Axes, values: Sequence[Swept], spreads: Sequence[Spread]) -> None:
    """Draw means as dots with whiskers, joined by a line where both neighbours are known."""
    heights = [math.nan if spread.mean is None else spread.mean for spread in spreads]
    axes.plot(range(len(values)), heights, color=GREY, linewidth=1, zorder=1)
    for x, (each, spread) in enumerate(zip(values, spreads, strict=True)):
        draw_whisker(axes, x, spread, each.colour)
        axes.plot([x], [heights[x]], marker="o", markersize=6.5, color=each.colour, zorder=3)
    style_axes(axes)
    axes.set_xlim(-0.4, len(values) - 0.6)
    axes.set_xticks(range(len(values)), [each.name for each in values])


def draw_first_rounds(axes: Axes, values: Sequence[Swept], found: Sequence[Reached], rounds: int) -> str:
    """Draw the first rounds with Retrain's accuracy, with open marks for never; return which seeds are missing."""
    draw_dots(axes, values, [each.spread for each in found])
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
    phrases = [*(["open: never"] if never else []), *([f"seeds there: {', '.join(few)}"] if few else [])]
    return "; ".join(phrases)


GREEN = OTHERS[0]


def draw_ablation(cells: Sequence[Cell]) -> Figure | None:
    """Draw plain, heavy-ball and tuned FedAvg, where the rule ends them, and how the step was tuned."""
    found = [each for each in group_cells(cells) if find_best_step(each) is not None]
    fires = any(replay_rule(each, drawn.run).fires for each in found for drawn in _list_lines(each))
    marks = f" All runs without a stop rule{'; ● where it would end one' if fires else '; it would end none of those drawn'}."
    tuned = "The server step with the best final accuracy was chosen on the test data, which favours it."
    return draw_rows(cells, found, _draw_ablation_row, marks, f"{tuned} Blue line: heavy ball, step 1.")


def _draw_ablation_row(every: Sequence[Axes], federation: Federation) -> list[Heading]:
    lines, tried = _list_lines(federation), list_steps(federation)
    draw_by_round(every[0], federation, lines)
    for each in lines:
        _mark_end(every[0], federation, each)
    values = [Swept(f"{step:g}", run, VERMILLION if step == 1 else GREEN) for step, run in tried.items()]
    headings = draw_comparison(every[1], every[2], federation, values, "server step of FedAvg")
    levels = final_value(federation, UHB_ON).mean, find_reached(federation, UHB_ON).mean
    for axes, level in zip(every[1:], levels, strict=True):
        if level is not None:
            axes.axhline(level, color=BLUE, linewidth=1.2, zorder=1)
    every[1].margins(y=0.1)
    return [Heading("Momentum, or a longer step?", [(federation.label, SOFT)]), *headings]


def _list_lines(federation: Federation) -> list[Swept]:
    """Return the runs to draw: plain, heavy ball, and the tuned step if it is not 1."""
    best, own = find_best_step(federation), federation.cells[0].place.momentum
    lines = [Swept("β 0", RETRAIN, VERMILLION), Swept(f"β {own:g}", UHB_ON, BLUE)]
    tuned = (
        [Swept(f"step {best:g}", list_steps(federation)[best], GREEN)]
        if best is not None and best != 1
        else []
    )
    return [*lines, *tuned]


def _mark_end(axes: Axes, federation: Federation, drawn: Swept) -> None:
    """Mark the mean round at which the rule ends a run, if it fires."""
    ends = replay_rule(federation, drawn.run)
    mean, _ = average_series(federation.tracks(drawn.run).values(), ACCURACY)
    if ends.fires and ends.executed.mean is not None:
        end = round(ends.executed.mean)
        draw_dot(axes, end, mean[end - 1], drawn.colour)
