"""What the paper's figures share: a mean line in its band, an axis of rounds, a legend, a line over everything."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from feduhb.report.drawing import (
    CHARACTERS_AN_INCH,
    INK,
    LINE_POINTS,
    POINTS_AN_INCH,
    SIZE,
    SMALL,
    SOFT,
    WIDE_LINE,
    line,
)
from feduhb.report.style import GREY, Stroke
from feduhb_reproduction.cells import Cell, Track
from feduhb_reproduction.report.federations import Federation, sized
from feduhb_reproduction.report.measures import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
WIDE = 10.2  # inches of a figure that fills a page: its small text is still read when shown 900 pixels wide
ENTRY = 1.7  # inches of a legend's column
SHARE = 0.92  # of a line that text over the panels may fill
BELOW = 0.25  # of accuracy, under Retrain's last, that is always shown
NARROWEST, WIDEST = 2.5, 4.6  # inches of a panel


def panel_width(columns: int) -> float:
    """Share the page's width out."""
    return max(NARROWEST, min(WIDEST, WIDE / columns))


def in_percent(axes: Axes) -> None:
    """Label shares as percent, with as many digits as they have."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 4):g}%")


def mean_line(tracks: Iterable[Track], series: str) -> tuple[list[float], list[float]]:
    """Give the mean and the standard deviation over the seeds, round by round, up to the shortest run."""
    found = [track.of(series) for track in tracks]
    rounds = min((len(values) for values in found), default=0)
    if not rounds:
        return [], []
    all_of_them = np.array([values[:rounds] for values in found], dtype=float)  # [seeds, rounds]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = all_of_them.mean(0)
        sd = all_of_them.std(0, ddof=1) if len(found) > 1 else np.zeros(rounds)
    return mean.tolist(), sd.tolist()


def banded(axes: Axes, mean: Sequence[float], sd: Sequence[float], stroke: Stroke) -> None:
    """Draw a mean line in a band of one standard deviation to either side."""
    line(axes, list(mean), stroke)
    if any(value > 0 for value in sd if math.isfinite(value)):
        x, low, high = (
            range(1, len(mean) + 1),
            *([m + side * s for m, s in zip(mean, sd, strict=True)] for side in (-1, 1)),
        )
        axes.fill_between(x, low, high, color=stroke.colour, alpha=0.16, linewidth=0, zorder=1)


def count_rounds(axes: Axes, rounds: int) -> None:
    """Let the horizontal axis count rounds, with few enough ticks for a narrow panel."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(1 - 0.03 * rounds, rounds * 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, steps=[1, 2, 5, 10], min_n_ticks=1))


def accuracy_axis(axes: Axes, ends: Sequence[Spread], retrain: Spread) -> None:
    """Look from a little above the best accuracy down to the worst and well under Retrain's, which is dashed."""
    means = [end.mean for end in ends if end.mean is not None]
    goal = retrain.mean
    if means:
        low = min(*means, (max(means) if goal is None else goal) - BELOW)
        drawn = [float(y) for one in axes.get_lines() for y in np.asarray(one.get_ydata(), dtype=float)]
        top = max([*means, *(y for y in drawn if math.isfinite(y))])
        span = top - low
        axes.set_ylim(max(0.0, low - 0.04 * span), top + 0.08 * span)
    in_percent(axes)
    if goal is not None:
        axes.axhline(goal, color=GREY, linewidth=0.9, linestyle="dashed", zorder=1)


def one_range(row: Sequence[Axes]) -> tuple[float, float]:
    """Let panels that stand side by side show one range, the widest that any of them asks for."""
    low, high = min(axes.get_ylim()[0] for axes in row), max(axes.get_ylim()[1] for axes in row)
    for axes in row:
        axes.set_ylim(low, high)
    return low, high


def bar_of(axes: Axes, x: float, spread: Spread, colour: str, *, most: float = math.inf) -> None:
    """Draw a spread as an upright bar of one standard deviation to either side of its mean, from 0 to the most there can be."""
    if spread.mean is not None and spread.sd:
        ends = max(0.0, spread.mean - spread.sd), min(most, spread.mean + spread.sd)
        axes.plot([x, x], ends, color=colour, linewidth=1.2, zorder=2)


def legend(figure: Figure, entries: Sequence[tuple[str, Stroke]]) -> None:
    """Name the strokes under the panels, in as many rows as the figure's width asks for."""
    from matplotlib.lines import Line2D

    columns = min(len(entries), int(figure.get_figwidth() / ENTRY))
    rows = math.ceil(len(entries) / columns)
    figure.set_figheight(figure.get_figheight() + (rows - 1) * 1.6 * SIZE / POINTS_AN_INCH)
    lines = [
        Line2D([], [], color=stroke.colour, linestyle=stroke.dash, linewidth=WIDE_LINE if stroke.wide else 2)
        for _, stroke in entries
    ]
    figure.legend(
        lines, [name for name, _ in entries], loc="outside lower center", ncols=columns, frameon=False,
        fontsize=SIZE, labelcolor=INK,
    )  # fmt: skip


def write_over(figure: Figure, sentences: Sequence[str]) -> None:
    """Write sentences over all panels, each on lines of its own, and make the figure higher by what they take."""
    fits = int(figure.get_figwidth() * CHARACTERS_AN_INCH * SHARE)
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, fits)]
    figure.set_figheight(figure.get_figheight() + len(lines) * LINE_POINTS / POINTS_AN_INCH)
    figure.suptitle("\n".join(lines), x=0.012, ha="left", size=SMALL, color=SOFT, parse_math=False)


def unlike(federation: Federation, first: Federation) -> list[tuple[str, str]]:
    """Say a federation's size where it is not that of the first beside it."""
    return [(sized(federation.per_client), SOFT)] if federation.per_client != first.per_client else []


def about(federation: Federation) -> str:
    """Say what the seeds of a size of federation are: data, images, clients, seeds."""
    at = federation.cells[0].place
    gone = len(at.forget.split(","))
    return f"{NAMES.get(at.data, at.data)}, {sized(at.per_client)}, {at.clients} clients of which {gone} are forgotten"


def seeds_of(found: Sequence[Federation], drawn: str = "") -> str:
    """Say how many seeds stand behind a figure, and what, if anything, is drawn one standard deviation wide to either side."""
    counted = sorted({len(each.seeds) for each in found})
    if counted == [1]:
        return "one seed"
    many = " to ".join(str(n) for n in dict.fromkeys((counted[0], counted[-1])))
    return f"mean of {many} seeds" + (f", {drawn} ± 1 standard deviation" if drawn else "")


def data_of(cells: Sequence[Cell]) -> str:
    """Name the data set as people do."""
    return NAMES.get(cells[0].place.data, cells[0].place.data)
