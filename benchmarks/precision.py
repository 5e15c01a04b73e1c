"""FedUHB's accuracy on MNIST, round by round, in float32, tf32 and bf16, with several seeds.

    FEDUHB_DATA=... python benchmarks/precision.py [--rounds 20] [--seeds 3] [--json FILE]

The paper's federation: 20 clients of 3,000 images, of which two are forgotten, so that 18 train; 5 epochs, batch 64. A precision
costs nothing that can be seen if its curve differs from float32's, seed by seed, by no more than seeds differ from each other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import feduhb
from feduhb.core.flat import flatten, with_params
from feduhb.engines import Stacked
from feduhb.run.loop import run


def curve(seed: int, precision: str, rounds: int) -> tuple[list[float], float]:
    """Test accuracy after each round, and the seconds of training."""
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


def main() -> None:
    """Run every seed in every precision, then compare."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    curves = {
        precision: [curve(seed, precision, given.rounds) for seed in range(given.seeds)]
        for precision in ("float32", "tf32", "bf16")
    }
    exact = [accuracies for accuracies, _ in curves["float32"]]
    spread = statistics.mean(statistics.stdev(at) for at in zip(*exact, strict=True))
    print(f"float32: seeds differ by {spread:.4%} (standard deviation, mean over rounds)")
    for precision, runs in curves.items():
        apart = [
            abs(a - b)
            for (own, _), reference in zip(runs, exact, strict=True)
            for a, b in zip(own, reference, strict=True)
        ]
        last = statistics.mean(own[-1] for own, _ in runs)
        seconds = statistics.mean(seconds for _, seconds in runs)
        print(
            f"{precision:8} last {last:.4%}, from float32 {statistics.mean(apart):.4%} (at most {max(apart):.4%}), {seconds:.1f} s"
        )
    if given.json:
        given.json.write_text(json.dumps({"spread": spread, "curves": curves}))


if __name__ == "__main__":
    main()
