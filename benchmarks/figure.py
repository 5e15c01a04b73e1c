"""The figure: everyone side by side, growth with clients, and the way to an accuracy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from feduhb.report.drawing import INK, SIZE, SMALL, SOFT, Heading, blank, quiet, say, write_headings
from feduhb.report.figures import png
from feduhb.report.style import BLUE, GREY, OWN, VERMILLION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.4, 2.9
OURS = ("pool", "stacked", "loop")
NAMES: dict[str, str] = {"flower": "Flower", "pfl": "pfl", "jax": "JAX", "plain": "plain PyTorch loop"}
METHODS = {"feduhb": "FedUHB", "retrain": "Retrain", "federaser": "FedEraser", "fedrecover": "FedRecover"}


def drawn(all: dict[str, Any]) -> bytes:
    """Draw the figure as PNG."""
    figure, every = blank(3, 1, width=WIDTH, height=HEIGHT)
    headings = [rates(every[0], all), growth(every[1], all), targets(every[2], all)]
    write_headings(figure, every, headings, width=WIDTH)
    return png(figure)


def rates(axes: Axes, all: dict[str, Any]) -> Heading:
    """Images a second of everyone, with the roofline."""
    found = all["side-by-side"]
    there: dict[str, float] = {
        name: one["images_per_second"]
        for name, one in found["implementations"].items()
        if "images_per_second" in one
    }
    names = sorted(there, key=lambda name: there[name])
    bars(axes, [NAMES.get(name, name) for name in names], [there[name] for name in names],
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


def growth(axes: Axes, all: dict[str, Any]) -> Heading:
    """Seconds a round and memory, by the number of clients."""
    cases = [one for name, one in all["growth"]["cases"].items() if name.startswith("clients:pool:")]
    counts = [one["clients"] for one in cases]
    axes.plot(counts, [one["seconds"] for one in cases], color=BLUE, marker="o", markersize=5, linewidth=1.8)
    axes.plot(counts, [one["beyond_mib"] for one in cases], color=INK, marker="o", markersize=5,
              linewidth=1.8, linestyle="dashed")  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    quiet(axes)
    axes.minorticks_off()
    axes.set_xlim(counts[0] / 2, counts[-1] * 2)
    axes.set_ylim(cases[0]["seconds"] / 3, cases[-1]["beyond_mib"] * 3)
    axes.set_xlabel("clients", color=SOFT, size=SMALL)
    last = cases[-1]
    for one in cases:
        say(axes, f"{one['seconds']:.2g} s", (one["clients"], one["seconds"]), (0, -11), BLUE, ha="center")
    for one in cases:
        say(
            axes,
            f"{one['beyond_mib']:.0f} MiB",
            (one["clients"], one["beyond_mib"]),
            (0, 10),
            INK,
            ha="center",
        )
    return Heading(
        "Growth with clients",
        [(f"seconds a round (blue) and MiB of memory beyond the data (dashed); {last['parameters']:,} parameters, 2 images a client", SOFT)],
    )  # fmt: skip


def targets(axes: Axes, all: dict[str, Any]) -> Heading:
    """Rounds to the middle target, by method."""
    from matplotlib.ticker import MaxNLocator

    found = all["to-target"]
    target = found["targets"][len(found["targets"]) // 2]
    runs = {
        method: [seed[method]["targets"][target] for seed in found["seeds"].values()] for method in METHODS
    }
    rounds = {method: middle(own, "rounds") for method, own in runs.items()}
    reached = {method: count for method, count in rounds.items() if count < math.inf}
    names = sorted(reached, key=lambda name: -reached[name])
    bars(axes, [METHODS[name] for name in names], [reached[name] for name in names],
         [OWN[name] for name in names], "{:g}")  # fmt: skip
    axes.set_xlim(0, 1.15 * max(reached.values()))
    axes.set_xlabel("rounds", color=SOFT, size=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    seeds = len(found["seeds"])
    words = f"unlearning two of 20 clients of mnist-5k from a fresh model; median of {seeds} seeds"
    return Heading(f"Rounds to {target} test accuracy", [(words, SOFT)])


def middle(runs: Sequence[dict[str, Any] | None], key: str) -> float:
    """The median of all runs; one that never got there counts as the longest."""
    return statistics.median_high(math.inf if run is None else run[key] for run in runs)


def bars(axes: Axes, names: list[str], values: list[float], colours: list[str], spell: str) -> None:
    """Lying bars with their values."""
    axes.barh(range(len(names)), values, color=colours, height=0.62, zorder=3)
    axes.set_yticks(range(len(names)), names)
    quiet(axes)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", labelsize=SIZE, labelcolor=INK)
    for row, value in enumerate(values):
        say(axes, spell.format(value), (value, row), (-4, 0), "white", ha="right")
