"""Parts of the paper's figures: a mean line in its band, axes, a legend, text above the panels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from feduhb.report.drawing import (
    CHARACTERS_AN_INCH,
    GREY,
    INK,
    LINE_POINTS,
    POINTS_AN_INCH,
    SIZE,
    SMALL,
    SOFT,
    WIDE_LINE,
    Stroke,
    draw_line,
)
from feduhb_reproduction.cells import Cell, Track
from feduhb_reproduction.federations import Federation, format_size
from feduhb_reproduction.measures import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
WIDE = 10.2  # inches of a figure that fills a page: its small text is still read when shown 900 pixels wide
ENTRY = 1.7  # inches of a legend's column
SHARE = 0.92  # of a line that text over the panels may fill
BELOW = 0.25  # of accuracy, under Retrain's last, that is always shown
NARROWEST, WIDEST = 2.5, 4.6  # inches of a panel


def find_panel_width(columns: int) -> float:
    """Return the width of a panel, in inches."""
    return max(NARROWEST, min(WIDEST, WIDE / columns))


def format_percent_axis(axes: Axes) -> None:
    """Label shares as percent, with as many digits as they have."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{round(100 * value, 4):g}%")


def average_series(tracks: Iterable[Track], series: str) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation over the seeds, round by round, up to the shortest run."""
    found = [track.of(series) for track in tracks]
    rounds = min((len(values) for values in found), default=0)
    if not rounds:
        return [], []
    all_of_them = np.array([values[:rounds] for values in found], dtype=float)  # [seeds, rounds]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = all_of_them.mean(0)
        sd = all_of_them.std(0, ddof=1) if len(found) > 1 else np.zeros(rounds)
    return mean.tolist(), sd.tolist()


def draw_band(axes: Axes, mean: Sequence[float], sd: Sequence[float], stroke: Stroke) -> None:
    """Draw a mean line in a band of one standard deviation to either side."""
    draw_line(axes, list(mean), stroke)
    if any(value > 0 for value in sd if math.isfinite(value)):
        low, high = ([m + side * s for m, s in zip(mean, sd, strict=True)] for side in (-1, 1))
        axes.fill_between(
            range(1, len(mean) + 1), low, high, color=stroke.colour, alpha=0.16, linewidth=0, zorder=1
        )


def set_round_axis(axes: Axes, rounds: int) -> None:
    """Make the horizontal axis count rounds, with few enough ticks for a narrow panel."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(1 - 0.03 * rounds, rounds * 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, steps=[1, 2, 5, 10], min_n_ticks=1))


def set_accuracy_axis(axes: Axes, ends: Sequence[Spread], retrain: Spread) -> None:
    """Set the range of an accuracy axis, and draw Retrain's accuracy dashed."""
    means = [end.mean for end in ends if end.mean is not None]
    goal = retrain.mean
    if means:
        low = min(*means, (max(means) if goal is None else goal) - BELOW)
        drawn = [float(y) for one in axes.get_lines() for y in np.asarray(one.get_ydata(), dtype=float)]
        top = max([*means, *(y for y in drawn if math.isfinite(y))])
        span = top - low
        axes.set_ylim(max(0.0, low - 0.04 * span), top + 0.08 * span)
    format_percent_axis(axes)
    if goal is not None:
        axes.axhline(goal, color=GREY, linewidth=0.9, linestyle="dashed", zorder=1)


def share_range(row: Sequence[Axes]) -> tuple[float, float]:
    """Set the same range for all panels of a row, and return it."""
    low, high = min(axes.get_ylim()[0] for axes in row), max(axes.get_ylim()[1] for axes in row)
    for axes in row:
        axes.set_ylim(low, high)
    return low, high


def draw_whisker(axes: Axes, x: float, spread: Spread, colour: str, *, most: float = math.inf) -> None:
    """Draw an upright bar of one standard deviation to either side of a mean, between 0 and ``most``."""
    if spread.mean is not None and spread.sd:
        ends = max(0.0, spread.mean - spread.sd), min(most, spread.mean + spread.sd)
        axes.plot([x, x], ends, color=colour, linewidth=1.2, zorder=2)


def draw_legend(figure: Figure, entries: Sequence[tuple[str, Stroke]]) -> None:
    """Draw a legend under the panels, in as many rows as the figure's width needs."""
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
    """Write sentences above all panels, and make the figure higher by their lines."""
    fits = int(figure.get_figwidth() * CHARACTERS_AN_INCH * SHARE)
    lines = [draw_line for sentence in sentences for draw_line in textwrap.wrap(sentence, fits)]
    figure.set_figheight(figure.get_figheight() + len(lines) * LINE_POINTS / POINTS_AN_INCH)
    figure.suptitle("\n".join(lines), x=0.012, ha="left", size=SMALL, color=SOFT, parse_math=False)


def describe_size(federation: Federation, first: Federation) -> list[tuple[str, str]]:
    """Return a federation's size as a line of a heading, if it differs from the first federation's."""
    return [(format_size(federation.per_client), SOFT)] if federation.per_client != first.per_client else []


def describe_federation(federation: Federation) -> str:
    """Return a federation's data, images and clients in words."""
    at = federation.cells[0].place
    gone = len(at.forget.split(","))
    return f"{NAMES.get(at.data, at.data)}, {format_size(at.per_client)}, {at.clients} clients of which {gone} are forgotten"


def describe_seeds(found: Sequence[Federation], drawn: str = "") -> str:
    """Return the number of seeds behind a figure, and what is drawn one standard deviation wide."""
    counted = sorted({len(each.seeds) for each in found})
    if counted == [1]:
        return "one seed"
    many = " to ".join(str(n) for n in dict.fromkeys((counted[0], counted[-1])))
    return f"mean of {many} seeds" + (f", {drawn} ± 1 standard deviation" if drawn else "")


def name_data(cells: Sequence[Cell]) -> str:
    """Return the name of the data set."""
    return NAMES.get(cells[0].place.data, cells[0].place.data)
