"""Measure the rounds and seconds until each unlearning method reaches a test accuracy, on the demo's federation.

    python benchmarks/to_target.py [--targets 0.8 0.85 0.88] [--seeds 3] [--rounds 40] [--json FILE]

As in `feduhb demo`: 20 clients of `mnist-5k`, Dirichlet(0.2), a perceptron; two clients are forgotten. Each method starts from a
fresh model and runs all rounds, without a stop rule. Seconds are those of the rounds, without scoring; bytes are those that
clients would send. FedEraser and FedRecover also need the history of the training, whose bytes are reported separately.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import feduhb
from feduhb.api import train_from
from feduhb.demo import LEAVERS, METHODS, SETTINGS
from feduhb.runs.folder import Round
from feduhb.stopping import never
from measuring import make_header, write


def find_target(rounds: Sequence[Round], target: float) -> dict[str, Any] | None:
    """Return the rounds, seconds and bytes until a run first reached the target; None if it never did."""
    seconds = sent = 0.0
    for count, record in enumerate(rounds, 1):
        seconds += record.client_seconds + record.server_seconds
        sent += record.bytes_up
        if record.scores["test_accuracy"] >= target:
            return {"rounds": count, "seconds": seconds, "bytes_up": sent}
    return None


def measure_methods(seed: int, rounds: int, targets: Sequence[float]) -> dict[str, Any]:
    """Train with one seed, unlearn with every method, and return when each reached the targets."""
    settings = replace(SETTINGS, seed=seed, train=replace(SETTINGS.train, rounds=rounds))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        trained = train_from(settings, Path(place) / "original", show=None)
        history = trained.history.bytes if trained.history else 0
        for method in METHODS:
            run = feduhb.unlearn(
                trained, LEAVERS, method=method, rounds=rounds, stop=never, erase_history=False, show=None
            )
            found[method] = {
                "targets": {f"{target:.0%}": find_target(run.rounds, target) for target in targets},
                "last": run.rounds[-1].scores["test_accuracy"],
                "best": max(record.scores["test_accuracy"] for record in run.rounds),
                "rounds": len(run.rounds),
                "seconds": sum(record.client_seconds + record.server_seconds for record in run.rounds),
                "history_bytes": history if method in {"federaser", "fedrecover"} else 0,
            }
            print(f"seed {seed} {method:10} {found[method]}", flush=True)
    return found


def main() -> None:
    """Run every seed, then write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=float, nargs="+", default=(0.8, 0.85, 0.88))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    seeds = {
        str(seed): measure_methods(seed, given.rounds, given.targets) for seed in range(1, given.seeds + 1)
    }
    if given.json:
        targets = [f"{target:.0%}" for target in given.targets]
        write(given.json, {**make_header("to_target"), "targets": targets, "seeds": seeds})


if __name__ == "__main__":
    main()
