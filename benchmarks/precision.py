"""Measure FedUHB's accuracy on MNIST after each round in float32, tf32 and bf16, with several seeds.

    FEDUHB_DATA=... python benchmarks/precision.py [--rounds 20] [--seeds 3] [--json FILE]
    python benchmarks/precision.py --read results/benchmarks/precision-h200.json

The paper's federation: 20 clients with 3,000 images each, two of them forgotten, so that 18 train; 5 epochs, batch 64. A
precision has no visible cost if in every round its mean over seeds differs from float32's by fewer standard errors than chance
gives (2.8 with three seeds each, at 95 %).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy import stats

import feduhb
from feduhb.core.flat import flatten, with_params
from feduhb.engines import Stacked
from feduhb.runs.loop import run
from measuring import make_header, write

Curves = Sequence[Sequence[float]]  # by seed, by round


class Compared(NamedTuple):
    """The comparison of a precision's curves with float32's."""

    precision: str
    last: float  # accuracy, the mean over seeds
    mean: float  # distance from float32 of the same seed, over all rounds
    most: float
    errors: float  # most standard errors between the means over seeds, of any round
    spread: float  # standard deviation over its own seeds, the mean over rounds


def measure_curve(seed: int, precision: str, rounds: int) -> tuple[list[float], float]:
    """Return the test accuracy after each round, and the seconds of training."""
    federation = feduhb.load("mnist", clients=20, per_client=3000, held_out=0.0, model="cnn", seed=seed)
    engine = Stacked(federation, precision=precision)
    method = feduhb.FedUHB()
    model = federation.fresh_model().cuda()
    x, y = (part.cuda() for part in federation.test.all())
    state = method.init(flatten(model))
    found, seconds, began = [], 0.0, time.perf_counter()
    for new, _ in run(method, engine, tuple(federation.clients)[2:], state, rounds=rounds):
        seconds += time.perf_counter() - began
        with torch.no_grad():
            right = with_params(model, new.params)(x).argmax(1) == y
        found.append(float(right.double().mean()))
        began = time.perf_counter()
    return found, seconds


def find_chance(seeds: int) -> float:
    """Return by how many standard errors two means over this many seeds differ by chance, at 95 %."""
    return float(stats.t.ppf(0.975, 2 * seeds - 2))


def count_errors(own: Curves, reference: Curves) -> float:
    """Return by how many standard errors the means over seeds of two precisions differ, at most over the rounds."""

    def apart(mine: tuple[float, ...], theirs: tuple[float, ...]) -> float:
        error = math.sqrt(statistics.variance(mine) / len(mine) + statistics.variance(theirs) / len(theirs))
        return abs(statistics.mean(mine) - statistics.mean(theirs)) / error if error else 0.0

    rounds = zip(zip(*own, strict=True), zip(*reference, strict=True), strict=True)
    return max(apart(mine, theirs) for mine, theirs in rounds)


def main() -> None:
    """Run every seed in every precision, or read earlier results, and compare."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--read", type=Path, help="compare the results in this file instead of training")
    given = arguments.parse_args()
    if given.read:
        report(json.loads(given.read.read_text()))
        return
    if not torch.cuda.is_available():
        arguments.error("there is no GPU here; --read compares results that were made on one")
    curves = {
        precision: [measure_curve(seed, precision, given.rounds) for seed in range(given.seeds)]
        for precision in ("float32", "tf32", "bf16")
    }
    found = {
        **make_header("precision", gpu=True),
        "rounds": given.rounds,
        "accuracy": {precision: [own for own, _ in runs] for precision, runs in curves.items()},
        "seconds": {
            precision: [round(seconds, 3) for _, seconds in runs] for precision, runs in curves.items()
        },
    }
    report(found)
    if given.json:
        write(given.json, found)


def report(found: dict[str, Any]) -> None:
    """Print a line for each precision."""
    every = compare_precisions(found)
    print(f"float32: seeds differ by {every[0].spread:.4%} (standard deviation, mean over rounds)")
    for one in every:
        print(
            f"{one.precision:8} last {one.last:.4%}, from float32 {one.mean:.4%} (at most {one.most:.4%}), "
            f"means at most {one.errors:.2f} standard errors apart"
        )


def compare_precisions(found: dict[str, Any]) -> list[Compared]:
    """Return the comparison of every precision with float32, which comes first."""
    exact: Curves = found["accuracy"]["float32"]
    made = []
    for precision, runs in found["accuracy"].items():
        apart = [
            abs(a - b)
            for own, reference in zip(runs, exact, strict=True)
            for a, b in zip(own, reference, strict=True)
        ]
        spread = statistics.mean(statistics.stdev(at) for at in zip(*runs, strict=True))
        last = statistics.mean(own[-1] for own in runs)
        made.append(
            Compared(precision, last, statistics.mean(apart), max(apart), count_errors(runs, exact), spread)
        )
    return made


if __name__ == "__main__":
    main()
