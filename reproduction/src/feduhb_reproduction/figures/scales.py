"""The paper's figure on lambda, replayed from FedUHB's movements: rounds run, and accuracy after them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from feduhb import dynamic_stop
from feduhb.report.drawing import (
    BLUE,
    OTHERS,
    SMALL,
    SOFT,
    VERMILLION,
    Heading,
    Stroke,
    grade_colours,
    label_ends,
    new_figure,
    style_axes,
    write_headings,
    write_text,
)
from feduhb.report.stop_map import SCALES, format_window
from feduhb.report.words import join_names
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.figures.parts import (
    describe_federation,
    describe_seeds,
    describe_size,
    draw_legend,
    draw_whisker,
    find_panel_width,
    format_percent_axis,
    set_round_axis,
    share_range,
    write_over,
)
from feduhb_reproduction.measures import UHB_ON, Stops, replay_rule
from feduhb_reproduction.tuning import WINDOWS, describe_silence
from feduhb_reproduction.words import LAMBDA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = dict(zip(WINDOWS, (BLUE, *OTHERS), strict=False))
QUIET_WIDTH = 7.0  # inches of the one panel where the rule never fires
# the face of a mark where the rule fires in some seeds
PALE = dict(zip(WINDOWS, ("#A9CDE6", "#A9DCCC", "#E6C9DA", "#E3D2A6"), strict=False))


def draw_scales(found: Sequence[Federation]) -> Figure | None:
    """Draw rounds run and, below, accuracy by λ; a column for each federation. Return None without runs to replay."""
    shown = [each for each in found if each.tracks(UHB_ON)]
    if not shown:
        return None
    speaking = [
        w
        for w in WINDOWS
        if any(replay_rule(each, scale=s, window=w).fires for each in shown for s in SCALES)
    ]
    if not speaking:
        return _draw_silence(shown)
    columns, width = len(shown), find_panel_width(len(shown))
    figure, every = new_figure(columns, 2, width=width, height=2.1)
    for place, federation in enumerate(shown):
        _draw_column(every[place], every[columns + place], federation)
    share_range(every[columns:])
    every[0].set_ylabel("rounds run", color=SOFT, size=SMALL)
    every[columns].set_ylabel("test accuracy", color=SOFT, size=SMALL)
    write_headings(
        figure,
        every[:columns],
        [Heading(each.short, describe_size(each, shown[0])) for each in shown],
        width=width,
    )
    names = [
        (f"window: {format_window(w)}" + (" rounds" if w else ""), Stroke(COLOURS[w], "solid"))
        for w in WINDOWS
        if w in speaking
    ]
    draw_legend(figure, names)
    write_over(figure, _describe(shown, speaking))
    return figure


def _draw_silence(shown: Sequence[Federation]) -> Figure:
    """Draw, for a rule that never fires, the quotients that it compares with λ, and the largest λ tried."""
    figure, (axes,) = new_figure(1, 1, width=QUIET_WIDTH, height=2.9)
    ends: list[tuple[float, str, str]] = []
    for federation, colour in zip(shown, grade_colours(len(shown)), strict=True):
        means = list_quotients(federation)
        x = range(federation.rounds - len(means) + 1, federation.rounds + 1)
        axes.plot(x, means, color=colour, linewidth=1.8, zorder=3)
        ends += [(means[-1], federation.short, colour)] if means and not math.isnan(means[-1]) else []
    style_axes(axes)
    set_round_axis(axes, max(each.rounds for each in shown))
    axes.set_ylim(0, None)
    axes.axhline(SCALES[-1], color=VERMILLION, linewidth=1.1, linestyle="dashed", zorder=2)
    axes.set_xlabel("round", color=SOFT, size=SMALL)
    axes.set_ylabel("movement / its standard deviation", color=SOFT, size=SMALL)
    label_ends(axes, ends)
    fires = "the rule ends a run where its line falls below λ; drawn with all rounds so far as window"
    largest = f"dashed: {SCALES[-1]:g}, the largest λ tried"
    heading = Heading("The rule never fires", [(fires, SOFT), (largest, VERMILLION)])
    write_headings(figure, [axes], [heading], width=QUIET_WIDTH)
    write_over(
        figure, [f"{describe_federation(shown[0])}; {describe_seeds(shown)}.", describe_silence(shown)]
    )
    return figure


def list_quotients(federation: Federation) -> list[float]:
    """Return movement / standard deviation for each round, as a mean over seeds: the rule fires if λ is larger."""
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


def _describe(shown: Sequence[Federation], speaking: Sequence[int | None]) -> list[str]:
    """Return sentences on what is drawn and what is not."""
    marks = "Filled: the rule fires in every seed; pale: in some (how many is beside it, upper row); open: in none, all rounds are run."
    idle = [format_window(window) for window in WINDOWS if window not in speaking]
    thin = [format_window(window) for window in speaking if window is not None and _pauses(shown, window)]
    said = [
        *([f"It fires at no λ with the window {join_names(idle, 'or')}."] if idle else []),
        *([f"The window {join_names(thin, 'or')} is drawn only where it fires."] if thin else []),
        *(["×: the paper's."] if LAMBDA.get(shown[0].cells[0].place.data) else []),  # noqa: RUF001
    ]
    cut = f", cut at round {shown[0].rounds}" if _is_cut(shown, speaking) else ""
    return [
        f"{describe_federation(shown[0])}; {describe_seeds(shown, 'whiskers')}{cut}.",
        " ".join([marks, *said]),
    ]


def _pauses(shown: Sequence[Federation], window: int) -> bool:
    """Whether a window fires in no seed of some federation at some λ."""
    return not all(replay_rule(each, scale=scale, window=window).fires for each in shown for scale in SCALES)


def _is_cut(shown: Sequence[Federation], speaking: Sequence[int | None]) -> bool:
    """Whether a whisker would go beyond the last round."""
    ends = [(each, replay_rule(each, scale=s, window=w)) for each in shown for s in SCALES for w in speaking]
    return any((found.executed.mean or 0) + (found.executed.sd or 0) > each.rounds for each, found in ends)


def _draw_column(rounds: Axes, accuracy: Axes, federation: Federation) -> None:
    for window in reversed(WINDOWS):
        found = {scale: replay_rule(federation, scale=scale, window=window) for scale in SCALES}
        if window is None or any(each.fires for each in found.values()):
            _draw_line(rounds, found, "executed", window, most=federation.rounds)
            _draw_line(accuracy, found, "accuracy", window, most=1)
    for scale, (ended, share) in LAMBDA.get(federation.cells[0].place.data, {}).items():
        for axes, height in ((rounds, float(ended)), (accuracy, share)):
            axes.plot([scale], [height], marker="x", markersize=6, color=VERMILLION, zorder=5)
    for axes in (rounds, accuracy):
        style_axes(axes)
        axes.set_xticks(SCALES[::2])
        axes.set_xlim(SCALES[0] - 0.06, SCALES[-1] + 0.06)
    rounds.set_ylim(0, federation.rounds * 1.12)
    format_percent_axis(accuracy)
    accuracy.margins(y=0.12)
    accuracy.set_xlabel("λ", color=SOFT, size=SMALL)


def _draw_line(axes: Axes, found: dict[float, Stops], what: str, window: int | None, *, most: float) -> None:
    """Draw the window of all rounds in bold with every mark, and other windows thin where they fire."""
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
        draw_whisker(axes, scale, spreads[scale], colour, most=most)
        if 0 < ends.fires < ends.n and what == "executed":
            _write_count(axes, ends.fires, (scale, mean), under=bold)


def _write_count(axes: Axes, fires: int, at: tuple[float, float], *, under: bool) -> None:
    """Write a number beside a mark, where no line and no whisker is."""
    offset, side = ((-4, -8), "right") if under else ((4, 6), "left")
    write_text(axes, f"{fires}", at, offset, SOFT, ha=side)
