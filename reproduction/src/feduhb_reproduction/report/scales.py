"""The paper's figure on lambda, replayed from FedUHB's movements: rounds run, and accuracy after them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from feduhb.report.drawing import SMALL, SOFT, Heading, blank, label_ends, quiet, say, write_headings
from feduhb.report.stop_map import SCALES, spelled
from feduhb.report.style import BLUE, OTHERS, VERMILLION, Stroke, graded
from feduhb.report.words import listed
from feduhb.stopping import dynamic_stop
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import UHB_ON, Stops, stops
from feduhb_reproduction.report.pen import (
    about,
    bar_of,
    count_rounds,
    in_percent,
    legend,
    one_range,
    panel_width,
    seeds_of,
    unlike,
    write_over,
)
from feduhb_reproduction.report.printed import LAMBDA
from feduhb_reproduction.report.tuning import WINDOWS, silent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = dict(zip(WINDOWS, (BLUE, *OTHERS), strict=False))
QUIET_WIDTH = 7.0  # inches of the one panel where the rule never fires
# the face of a mark where the rule fires in some seeds
PALE = dict(zip(WINDOWS, ("#A9CDE6", "#A9DCCC", "#E6C9DA", "#E3D2A6"), strict=False))


def scales(found: Sequence[Federation]) -> Figure | None:
    """Draw rounds over accuracy, a column for each federation; None where there is nothing to replay."""
    shown = [each for each in found if each.tracks(UHB_ON)]
    if not shown:
        return None
    speaking = [
        w for w in WINDOWS if any(stops(each, scale=s, window=w).fires for each in shown for s in SCALES)
    ]
    if not speaking:
        return _silence(shown)
    columns, width = len(shown), panel_width(len(shown))
    figure, every = blank(columns, 2, width=width, height=2.1)
    for place, federation in enumerate(shown):
        _column(every[place], every[columns + place], federation)
    one_range(every[columns:])
    every[0].set_ylabel("rounds run", color=SOFT, size=SMALL)
    every[columns].set_ylabel("test accuracy", color=SOFT, size=SMALL)
    write_headings(
        figure, every[:columns], [Heading(each.short, unlike(each, shown[0])) for each in shown], width=width
    )
    names = [
        (f"window: {spelled(w)}" + (" rounds" if w else ""), Stroke(COLOURS[w], "solid"))
        for w in WINDOWS
        if w in speaking
    ]
    legend(figure, names)
    write_over(figure, _told(shown, speaking))
    return figure


def _silence(shown: Sequence[Federation]) -> Figure:
    """Draw how far the rule is from firing, where it fires at no λ: what it judges, and the largest λ tried."""
    figure, (axes,) = blank(1, 1, width=QUIET_WIDTH, height=2.9)
    ends: list[tuple[float, str, str]] = []
    for federation, colour in zip(shown, graded(len(shown)), strict=True):
        means = quotients(federation)
        x = range(federation.rounds - len(means) + 1, federation.rounds + 1)
        axes.plot(x, means, color=colour, linewidth=1.8, zorder=3)
        ends += [(means[-1], federation.short, colour)] if means and not math.isnan(means[-1]) else []
    quiet(axes)
    count_rounds(axes, max(each.rounds for each in shown))
    axes.set_ylim(0, None)
    axes.axhline(SCALES[-1], color=VERMILLION, linewidth=1.1, linestyle="dashed", zorder=2)
    axes.set_xlabel("round", color=SOFT, size=SMALL)
    axes.set_ylabel("movement / its standard deviation", color=SOFT, size=SMALL)
    label_ends(axes, ends)
    fires = "the rule ends a run where its line falls below λ; drawn with all rounds so far as window"
    largest = f"dashed: {SCALES[-1]:g}, the largest λ tried"
    told = Heading("The rule never fires", [(fires, SOFT), (largest, VERMILLION)])
    write_headings(figure, [axes], [told], width=QUIET_WIDTH)
    write_over(figure, [f"{about(shown[0])}; {seeds_of(shown)}.", silent(shown)])
    return figure


def quotients(federation: Federation) -> list[float]:
    """Give round by round, from the first at which the rule speaks, the largest λ at which it would go on: the mean over seeds."""
    sigma = dynamic_stop(1.0).threshold
    tracks = [track.of("moved") for track in federation.tracks(UHB_ON).values()]
    found = [
        [
            moved[n - 1] / spread if spread else math.nan
            for n in range(1, len(moved) + 1)
            if (spread := sigma(moved[:n])) is not None
        ]
        for moved in tracks
    ]
    last = min(map(len, found), default=0)
    return [fmean(each[-last + n] for each in found) for n in range(last)]


def _told(shown: Sequence[Federation], speaking: Sequence[int | None]) -> list[str]:
    """Say what is drawn, and what of it is not."""
    marks = "Filled: the rule fires in every seed; pale: in some (how many is beside it, upper row); open: in none, all rounds are run."
    idle = [spelled(window) for window in WINDOWS if window not in speaking]
    thin = [spelled(window) for window in speaking if window is not None and _pauses(shown, window)]
    said = [
        *([f"It fires at no λ with the window {listed(idle, 'or')}."] if idle else []),
        *([f"The window {listed(thin, 'or')} is drawn only where it fires."] if thin else []),
        *(["×: the paper's."] if LAMBDA.get(shown[0].cells[0].place.data) else []),  # noqa: RUF001
    ]
    cut = f", cut at round {shown[0].rounds}" if _cut(shown, speaking) else ""
    return [f"{about(shown[0])}; {seeds_of(shown, 'whiskers')}{cut}.", " ".join([marks, *said])]


def _pauses(shown: Sequence[Federation], window: int) -> bool:
    """Whether a window fires in no seed of some federation at some λ."""
    return not all(stops(each, scale=scale, window=window).fires for each in shown for scale in SCALES)


def _cut(shown: Sequence[Federation], speaking: Sequence[int | None]) -> bool:
    """Whether some whisker would go beyond the last round."""
    ends = [(each, stops(each, scale=s, window=w)) for each in shown for s in SCALES for w in speaking]
    return any((found.executed.mean or 0) + (found.executed.sd or 0) > each.rounds for each, found in ends)


def _column(rounds: Axes, accuracy: Axes, federation: Federation) -> None:
    for window in reversed(WINDOWS):
        found = {scale: stops(federation, scale=scale, window=window) for scale in SCALES}
        if window is None or any(each.fires for each in found.values()):
            _line(rounds, found, "executed", window, most=federation.rounds)
            _line(accuracy, found, "accuracy", window, most=1)
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


def _line(axes: Axes, found: dict[float, Stops], what: str, window: int | None, *, most: float) -> None:
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
        face = colour if ends.fires == ends.n else PALE[window] if ends.fires else "white"
        size = 6.0 if bold else 3.5
        axes.plot([scale], [mean], marker="o", markersize=size, color=colour, markerfacecolor=face, zorder=4)
        bar_of(axes, scale, spreads[scale], colour, most=most)
        if 0 < ends.fires < ends.n and what == "executed":
            _count(axes, ends.fires, (scale, mean), under=bold)


def _count(axes: Axes, fires: int, at: tuple[float, float], *, under: bool) -> None:
    """Write a number where no falling line and no whisker goes: to the left under a mark, or to the right over it."""
    offset, side = ((-4, -8), "right") if under else ((4, 6), "left")
    say(axes, f"{fires}", at, offset, SOFT, ha=side)
