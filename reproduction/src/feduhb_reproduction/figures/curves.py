"""The paper's figures on convergence and accuracy: every method's curves, a column for each federation."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from feduhb.report.drawing import (
    BLUE,
    GRID,
    SMALL,
    SOFT,
    Heading,
    Stroke,
    draw_dot,
    new_figure,
    style_axes,
    write_headings,
)
from feduhb.report.words import format_percent
from feduhb_reproduction.cells import RETRAIN, Track
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.figures.parts import (
    average_series,
    describe_federation,
    describe_seeds,
    describe_size,
    draw_band,
    draw_legend,
    find_panel_width,
    set_accuracy_axis,
    set_round_axis,
    share_range,
    write_over,
)
from feduhb_reproduction.measures import (
    ACCURACY,
    UHB,
    UHB_ON,
    Reached,
    final_value,
    find_reached,
    replay_rule,
)
from feduhb_reproduction.words import CORRECTED, LABELS, METHODS, ROWS, STROKES, format_counts, format_fired

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = (RETRAIN, "federaser", "fedrecover", CORRECTED)  # FedUHB comes after, on top
MOST = 10.0  # a loss, beyond which a run has exploded
TICKS = tuple(digit * 10.0**power for power in range(-4, 2) for digit in (1, 2, 5))  # of a loss


def draw_curves(found: Sequence[Federation]) -> Figure | None:
    """Draw accuracy above loss, a column for each federation; return None without federations."""
    if not found:
        return None
    columns, width = len(found), find_panel_width(len(found))
    figure, every = new_figure(columns, 2, width=width, height=2.3)
    for axes, federation in zip(every, found, strict=False):
        _draw_panel(axes, federation, ACCURACY)
        _set_accuracy(axes, federation)
    for axes, federation in zip(every[columns:], found, strict=True):
        _draw_panel(axes, federation, "test_loss")
        _set_loss(axes, federation)
    cut = _describe_cut(share_range(every[:columns])[0], found)
    share_range(every[columns:])
    for row, name in enumerate(("test accuracy", "test loss (log)")):
        every[row * columns].set_ylabel(name, color=SOFT, size=SMALL)
    write_headings(figure, every[:columns], [_make_heading(each, found[0]) for each in found], width=width)
    runs = [run for run in METHODS if any(each.has(run) for each in found)]
    entries = [(ROWS[run], STROKES[run]) for run in runs]
    beyond = (
        [(ROWS[UHB_ON], Stroke(BLUE, "dotted"))] if any(replay_rule(each).fires for each in found) else []
    )
    draw_legend(figure, [*entries, *beyond])
    marks = ["● where the stop rule ends FedUHB."] if beyond else []
    how = "Blue over a panel: the first round at which FedUHB, its rule off, has Retrain's final accuracy (dashed)."
    seeds = f"{describe_federation(found[0])}; {describe_seeds(found, 'band')}."
    write_over(figure, [seeds, " ".join([how, *marks]), cut])
    return figure


def _draw_panel(axes: Axes, federation: Federation, series: str) -> None:
    for run in DRAWN:
        mean, sd = average_series(_select_tracks(federation, run), series)
        draw_band(axes, mean, sd, STROKES[run])
    _draw_feduhb(axes, federation, series)
    style_axes(axes)
    set_round_axis(axes, federation.rounds)


def _select_tracks(federation: Federation, run: str) -> Collection[Track]:
    """Return the runs of the seeds that ended; those that broke off if there is no other."""
    return (federation.tracks(run) or federation.every(run)).values()


def _draw_feduhb(axes: Axes, federation: Federation, series: str) -> None:
    """Draw FedUHB as a line up to the mean round at which its rule ends it, and dotted from there."""
    mean, sd = average_series(_select_tracks(federation, UHB_ON), series)
    if not mean:
        return
    ends = replay_rule(federation)
    end = round(ends.executed.mean or len(mean)) if ends.fires else len(mean)
    draw_band(axes, mean[:end], sd[:end], STROKES[UHB])
    axes.plot(
        range(end, len(mean) + 1), mean[end - 1 :], color=BLUE, linestyle="dotted", linewidth=1.6, zorder=3
    )
    if ends.fires:
        draw_dot(axes, end, mean[end - 1], BLUE)


def _set_accuracy(axes: Axes, federation: Federation) -> None:
    ends = [final_value(federation, run) for run in (*DRAWN, UHB_ON)]
    set_accuracy_axis(axes, ends, final_value(federation, RETRAIN))


def _set_loss(axes: Axes, federation: Federation) -> None:
    """Show every loss on a logarithmic axis, from the least to the peak of a run's first rounds."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(color=GRID, linewidth=0.7)
    seen = [value for value in _list_losses(federation) if 0 < value <= MOST]
    if seen:
        axes.set_ylim(min(seen) / 1.15, max(seen) * 1.15)
    axes.set_xlabel("round", color=SOFT, size=SMALL)


def _list_losses(federation: Federation) -> list[float]:
    runs = (average_series(_select_tracks(federation, run), "test_loss")[0] for run in (*DRAWN, UHB_ON))
    return [value for mean in runs for value in mean if math.isfinite(value)]


def _describe_cut(low: float, found: Sequence[Federation]) -> str:
    """Return what a row's panels share, and what they do not show."""
    under = f"accuracy under {format_percent(low)} is not shown" if low > 0 else ""
    over = (
        f"loss over {MOST:g} is not shown"
        if any(v > MOST for one in found for v in _list_losses(one))
        else ""
    )
    phrases = "; ".join(part for part in (under, over) if part)
    return f"The panels of a row share one range{f': {phrases}' if phrases else ''}."


def _make_heading(federation: Federation, first: Federation) -> Heading:
    goal = final_value(federation, RETRAIN).mean
    found, ends = find_reached(federation, UHB_ON), replay_rule(federation)
    phrases = describe_size(federation, first)
    if goal is not None and found.n:
        phrases.append((f"Retrain's {format_percent(goal)}: {_format_round(found)}", BLUE))
    if ends.n:
        few = "" if ends.fires == ends.n else f", fires in {format_fired(ends)}"
        phrases.append(
            (f"rule: after {format_counts(ends.executed)}{few}" if ends.fires else "rule: never fires", SOFT)
        )
    for run in (*DRAWN, UHB_ON):
        if broke := len(federation.failed(run)):
            many = len(federation.every(run))
            phrases.append((f"{LABELS[run]}: {broke} of {many} broke off", STROKES[run].colour))
    return Heading(federation.short, phrases)


def _format_round(found: Reached) -> str:
    """Return the mean round; the table has its spread."""
    if found.mean is None:
        return "never"
    few = "" if found.all else f" ({found.hits} of {found.n})"
    return f"round {found.mean:.3g}{few}"
