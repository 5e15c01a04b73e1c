"""The paper's figure on lambda, replayed from FedUHB's movements: rounds run, and accuracy after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feduhb.report.drawing import SMALL, SOFT, Heading, blank, quiet, say, write_headings
from feduhb.report.paper.federations import Federation
from feduhb.report.paper.measures import UHB_ON, Stops, stops
from feduhb.report.paper.pen import (
    about,
    bar_of,
    in_percent,
    legend,
    panel_width,
    seeds_of,
    unlike,
    write_over,
)
from feduhb.report.paper.printed import LAMBDA
from feduhb.report.paper.tuning import WINDOWS
from feduhb.report.stop_map import SCALES, spelled
from feduhb.report.style import BLUE, OTHERS, VERMILLION, Stroke
from feduhb.report.words import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = dict(zip(WINDOWS, (BLUE, *OTHERS), strict=False))
SOME = "#A9CDE6"  # the face of a mark where the rule fires in some seeds


def scales(found: Sequence[Federation]) -> Figure | None:
    """Draw rounds over accuracy, a column for each federation; None where there is nothing to replay."""
    shown = [each for each in found if each.tracks(UHB_ON)]
    if not shown:
        return None
    columns, width = len(shown), panel_width(len(shown))
    figure, every = blank(columns, 2, width=width, height=2.1)
    for place, federation in enumerate(shown):
        _column(every[place], every[columns + place], federation)
    every[0].set_ylabel("rounds run", color=SOFT, size=SMALL)
    every[columns].set_ylabel("test accuracy", color=SOFT, size=SMALL)
    write_headings(
        figure, every[:columns], [Heading(each.short, unlike(each, shown[0])) for each in shown], width=width
    )
    speaking = [
        w for w in WINDOWS if any(stops(each, scale=s, window=w).fires for each in shown for s in SCALES)
    ]
    names = [
        (f"window: {spelled(w)}" + (" rounds" if w else ""), Stroke(COLOURS[w], "solid"))
        for w in WINDOWS
        if w in speaking
    ]
    if names:
        legend(figure, names)
    write_over(figure, _told(shown, [w for w in WINDOWS if w not in speaking]))
    return figure


def _told(shown: Sequence[Federation], idle: Sequence[int | None]) -> list[str]:
    marks = "Filled: the rule fires in every seed; pale: in some (how many is beside it); open: in none, all rounds are run."
    silent = (
        f" It fires at no λ with the window {listed([spelled(window) for window in idle], 'or')}."
        if idle
        else ""
    )
    if len(idle) == len(WINDOWS):
        silent = " It fires at no λ with any window."
    paper = " ×: the paper's." if LAMBDA.get(shown[0].cells[0].place.data) else ""  # noqa: RUF001
    return [f"{about(shown[0])}; {seeds_of(shown, 'whiskers')}.", f"{marks}{silent}{paper}"]


def _column(rounds: Axes, accuracy: Axes, federation: Federation) -> None:
    for window in reversed(WINDOWS):
        found = {scale: stops(federation, scale=scale, window=window) for scale in SCALES}
        if window is None or any(each.fires for each in found.values()):
            _line(rounds, found, "executed", window)
            _line(accuracy, found, "accuracy", window)
    for scale, (ended, share) in LAMBDA.get(federation.cells[0].place.data, {}).items():
        for axes, height in ((rounds, float(ended)), (accuracy, share)):
            axes.plot([scale], [height], marker="x", markersize=6, color=VERMILLION, zorder=5)
    for axes in (rounds, accuracy):
        quiet(axes)
        axes.set_xticks(SCALES[::2])
        axes.set_xlim(SCALES[0] - 0.06, SCALES[-1] + 0.06)
    rounds.set_ylim(0, federation.rounds * 1.12)
    in_percent(accuracy)
    accuracy.margins(y=0.12)
    accuracy.set_xlabel("λ", color=SOFT, size=SMALL)


def _line(axes: Axes, found: dict[float, Stops], what: str, window: int | None) -> None:
    """Draw "all so far" in bold with every mark, other windows thin where they fire."""
    bold, colour = window is None, COLOURS[window]
    shown = {scale: each for scale, each in found.items() if bold or each.fires}
    spreads = {scale: each.executed if what == "executed" else each.accuracy for scale, each in shown.items()}
    means = {scale: mean for scale, spread in spreads.items() if (mean := spread.mean) is not None}
    axes.plot(
        list(means), list(means.values()), color=colour, linewidth=1.8 if bold else 1, zorder=3 if bold else 2
    )
    for scale, mean in means.items():
        ends = shown[scale]
        face = colour if ends.fires == ends.n else SOME if ends.fires else "white"
        size = 6.0 if bold else 3.5
        axes.plot([scale], [mean], marker="o", markersize=size, color=colour, markerfacecolor=face, zorder=4)
        bar_of(axes, scale, spreads[scale], colour)
        if bold and 0 < ends.fires < ends.n and what == "executed":
            say(axes, f"{ends.fires}/{ends.n}", (scale, mean), (0, -11), SOFT, ha="center")
