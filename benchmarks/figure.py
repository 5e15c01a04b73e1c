"""The figure: everyone side by side, the way to an accuracy, and growth with clients in time and in memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from feduhb.report.drawing import (
    BLUE,
    GREY,
    INK,
    OWN,
    SIZE,
    SMALL,
    SOFT,
    VERMILLION,
    Heading,
    new_figure,
    style_axes,
    to_png,
    write_headings,
    write_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.9, 2.7  # inches of a panel
OURS = ("pool", "stacked", "loop")
NAMES: dict[str, str] = {"flower": "Flower", "pfl": "pfl", "jax": "JAX", "plain": "plain PyTorch loop"}
METHODS = {"feduhb": "FedUHB", "retrain": "Retrain", "federaser": "FedEraser", "fedrecover": "FedRecover"}


def draw_figure(all: dict[str, Any]) -> bytes:
    """Draw the figure as PNG."""
    figure, every = new_figure(2, 2, width=WIDTH, height=HEIGHT)
    drawers = (draw_rates, draw_targets, draw_seconds, draw_memory)
    headings = [draw(axes, all) for draw, axes in zip(drawers, every, strict=True)]
    write_headings(figure, every, headings, width=WIDTH, rows=2)
    return to_png(figure)


def draw_rates(axes: Axes, all: dict[str, Any]) -> Heading:
    """Images a second of everyone, with the roofline."""
    found = all["side-by-side"]
    there: dict[str, float] = {
        name: one["images_per_second"]
        for name, one in found["implementations"].items()
        if "images_per_second" in one
    }
    names = sorted(there, key=lambda name: there[name])
    draw_bars(axes, [NAMES.get(name, name) for name in names], [there[name] for name in names],
         [BLUE if name in OURS else GREY for name in names], "{:,.0f}")  # fmt: skip
    roof = found["matrix_gflops"] * 1e9 / found["flop_an_image"]
    axes.axvline(roof, color=VERMILLION, linewidth=1.1, linestyle="dashed", zorder=2)
    axes.set_xlim(0, 1.12 * max(roof, *there.values()))
    task, cores = found["task"], found["machine"]["cores"]
    words = f"{task['clients']} clients x {task['images']} MNIST images, the paper's CNN, {cores} CPU cores; ours in blue"
    return Heading(
        "Images a second",
        [(words, SOFT), (f"dashed: the matrix rate, for direct convolutions: {roof:,.0f}", VERMILLION)],
    )


def draw_seconds(axes: Axes, all: dict[str, Any]) -> Heading:
    """Seconds a round, by the number of clients."""
    draw_growth(axes, all, "seconds", BLUE, "seconds a round", "{:.2g} s")
    return Heading(
        "Seconds a round by clients",
        [("our pool, the paper's CNN, two images a client; both axes log", SOFT)],
    )


def draw_memory(axes: Axes, all: dict[str, Any]) -> Heading:
    """Memory beyond the data, by the number of clients."""
    last = draw_growth(axes, all, "beyond_mib", INK, "MiB beyond the data", "{:.0f} MiB")
    model = last["parameters"] * 4 / 2**20
    words = f"the same rounds; one model of {last['parameters']:,} parameters is {model:.1f} MiB; clients log"
    return Heading("Memory by clients", [(words, SOFT)])


def draw_growth(
    axes: Axes, all: dict[str, Any], key: str, colour: str, unit: str, spell: str
) -> dict[str, Any]:
    """Draw one number of the pool by clients, with a value at each point; return the last case."""
    cases = [one for name, one in all["growth"]["cases"].items() if name.startswith("clients:pool:")]
    counts, heights = [one["clients"] for one in cases], [one[key] for one in cases]
    axes.plot(counts, heights, color=colour, marker="o", markersize=5, linewidth=1.8)
    axes.set_xscale("log")
    if key == "seconds":
        axes.set_yscale("log")
        axes.set_ylim(min(heights) / 2, max(heights) * 3.5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(0, 1.25 * max(heights))
    style_axes(axes)
    axes.minorticks_off()
    axes.set_xlim(counts[0] / 2, counts[-1] * 2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xlabel("clients", color=SOFT, size=SMALL)
    axes.set_ylabel(unit, color=SOFT, size=SMALL)
    for count, height in zip(counts, heights, strict=True):
        write_text(axes, spell.format(height), (count, height), (0, 11), colour, ha="center")
    return cases[-1]


def draw_targets(axes: Axes, all: dict[str, Any]) -> Heading:
    """Rounds to the middle target, by method."""
    from matplotlib.ticker import MaxNLocator

    found = all["to-target"]
    target = found["targets"][len(found["targets"]) // 2]
    runs = {
        method: [seed[method]["targets"][target] for seed in found["seeds"].values()] for method in METHODS
    }
    rounds = {method: find_median(own, "rounds") for method, own in runs.items()}
    reached = {method: count for method, count in rounds.items() if count < math.inf}
    names = sorted(reached, key=lambda name: -reached[name])
    draw_bars(axes, [METHODS[name] for name in names], [reached[name] for name in names],
         [OWN[name] for name in names], "{:g}", [count_seeds(runs[name]) for name in names])  # fmt: skip
    axes.set_xlim(0, 1.15 * max(reached.values()))
    axes.set_xlabel("rounds", color=SOFT, size=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    seeds = len(found["seeds"])
    few = (
        "; a seed that never got there counts as the longest" if any(map(count_seeds, runs.values())) else ""
    )
    words = f"unlearning two of 20 clients of mnist-5k from a fresh model, no stop rule; median of {seeds} seeds{few}"
    return Heading(f"Rounds to {target} test accuracy", [(words, SOFT)])


def find_median(runs: Sequence[dict[str, Any] | None], key: str) -> float:
    """Return the median of all runs; a run that never got there counts as the longest."""
    return statistics.median_high(math.inf if run is None else run[key] for run in runs)


def count_seeds(runs: Sequence[dict[str, Any] | None]) -> str:
    """Return how many seeds got there, or nothing if all did."""
    there = sum(run is not None for run in runs)
    return "" if there == len(runs) else f"{there} of {len(runs)} seeds got there"


def draw_bars(
    axes: Axes,
    names: list[str],
    values: list[float],
    colours: list[str],
    spell: str,
    notes: Sequence[str] = (),
) -> None:
    """Lying bars with their values, and notes before these."""
    axes.barh(range(len(names)), values, color=colours, height=0.62, zorder=3)
    axes.set_yticks(range(len(names)), names)
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", labelsize=SIZE, labelcolor=INK)
    for row, value in enumerate(values):
        note = f"{notes[row]}   " if notes and notes[row] else ""
        write_text(axes, note + spell.format(value), (value, row), (-4, 0), "white", ha="right")
