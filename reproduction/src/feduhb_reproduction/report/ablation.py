"""Momentum and stopping apart, and the honest control: FedAvg with a tuned server step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feduhb.report.drawing import SOFT, Heading, mark
from feduhb.report.style import BLUE, OTHERS, VERMILLION
from feduhb_reproduction.cells import RETRAIN, Cell
from feduhb_reproduction.report.federations import Federation, federations
from feduhb_reproduction.report.measures import ACCURACY, UHB_ON, best_step, final, reached, steps, stops
from feduhb_reproduction.report.momentum import Swept, by_round, compared, in_rows
from feduhb_reproduction.report.pen import mean_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREEN = OTHERS[0]


def ablation(cells: Sequence[Cell]) -> Figure | None:
    """Draw plain, heavy-ball and tuned FedAvg with where the rule ends them, and how the step was tuned."""
    found = [each for each in federations(cells) if best_step(each) is not None]
    fires = any(stops(each, drawn.run).fires for each in found for drawn in _drawn(each))
    marks = f" All runs without a stop rule{'; ● where it would end one' if fires else '; it would end none of those drawn'}."
    tuned = "The server step with the best final accuracy was chosen on the test data, which favours it."
    return in_rows(cells, found, _row, marks, f"{tuned} Blue line: heavy ball, step 1.")


def _row(every: Sequence[Axes], federation: Federation) -> list[Heading]:
    lines, tried = _drawn(federation), steps(federation)
    by_round(every[0], federation, lines)
    for each in lines:
        _ending(every[0], federation, each)
    values = [Swept(f"{step:g}", run, VERMILLION if step == 1 else GREEN) for step, run in tried.items()]
    headings = compared(every[1], every[2], federation, values, "server step of FedAvg")
    levels = final(federation, UHB_ON).mean, reached(federation, UHB_ON).mean
    for axes, level in zip(every[1:], levels, strict=True):
        if level is not None:
            axes.axhline(level, color=BLUE, linewidth=1.2, zorder=1)
    every[1].margins(y=0.1)
    return [Heading("Momentum, or a longer step?", [(federation.label, SOFT)]), *headings]


def _drawn(federation: Federation) -> list[Swept]:
    """Give the runs whose lines are drawn: plain, heavy ball, and the tuned step where that is another than 1."""
    best, own = best_step(federation), federation.cells[0].place.momentum
    lines = [Swept("β 0", RETRAIN, VERMILLION), Swept(f"β {own:g}", UHB_ON, BLUE)]
    tuned = (
        [Swept(f"step {best:g}", steps(federation)[best], GREEN)] if best is not None and best != 1 else []
    )
    return [*lines, *tuned]


def _ending(axes: Axes, federation: Federation, drawn: Swept) -> None:
    """Mark where the rule ends a run in the mean, if it fires at all."""
    ends = stops(federation, drawn.run)
    mean, _ = mean_line(federation.tracks(drawn.run).values(), ACCURACY)
    if ends.fires and ends.executed.mean is not None:
        end = round(ends.executed.mean)
        mark(axes, end, mean[end - 1], drawn.colour)
