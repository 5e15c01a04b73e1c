"""Images a second of the engines, side by side in one run, on the paper's MNIST CNN.

    python benchmarks/engines.py [--clients 6] [--images 500] [--epochs 1] [--repeats 3] [--json]

Each engine trains the same clients on real images (`mnist-5k`), batch 64. Each runs in its own process. They take turns, so
that a busy machine slows all of them alike, and the best turn counts. `loop` uses one thread, because its bits must not depend
on the number of threads, and is therefore the easiest to beat. "plain" is the same loop with all of torch's threads, as most
people write it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch

import feduhb
from feduhb.core.flat import flatten
from feduhb.core.types import Engine

KINDS = ("loop", "plain", "pool")


def measure(kind: str, clients: int, images: int, epochs: int) -> float:
    """Return the images a second of one engine in this process, after a warm-up."""
    federation = feduhb.load("mnist-5k", clients=clients, per_client=images, held_out=0.0)
    threads = torch.get_num_threads() if kind == "plain" else 1
    engine: Engine = feduhb.Pool(federation) if kind == "pool" else feduhb.Loop(federation, threads=threads)
    work = feduhb.Work(flatten(federation.fresh_model()), epochs)
    everyone = tuple(federation.clients)
    list(engine.train(work, everyone[:2], 0))
    began = time.perf_counter()
    list(engine.train(work, everyone, 1))
    return clients * images * epochs / (time.perf_counter() - began)


def measure_matrix_rate(size: int = 1024, repeats: int = 20) -> float:
    """Return the rate of float32 matrix products with all threads, in GFLOP/s."""
    a, b = torch.randn(2, size, size)
    torch.mm(a, b)
    began = time.perf_counter()
    for _ in range(repeats):
        torch.mm(a, b)
    return repeats * 2 * size**3 / (time.perf_counter() - began) / 1e9


def main() -> None:
    """Measure the engines in turns and print the table."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("--clients", 6), ("--images", 500), ("--epochs", 1), ("--repeats", 3)):
        arguments.add_argument(name, type=int, default=default)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    sizes = (given.clients, given.images, given.epochs)
    if given.only:
        print(measure(given.only, *sizes))
        return
    turns: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(given.repeats):
        for kind in KINDS:
            command = [sys.executable, __file__, "--only", kind]
            command += [
                f"--{name}={size}" for name, size in zip(("clients", "images", "epochs"), sizes, strict=True)
            ]
            turns[kind].append(
                float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            )
    best = {kind: max(rates) for kind, rates in turns.items()}
    report(best, given.json)


def report(best: dict[str, float], as_json: bool) -> None:
    """Print images a second and the pool's ratios."""
    ratios = {f"pool / {kind}": best["pool"] / best[kind] for kind in KINDS[:-1]}
    if as_json:
        print(
            json.dumps({"images_per_second": best, "ratios": ratios, "matrix_gflops": measure_matrix_rate()})
        )
        return
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, matrix products at {measure_matrix_rate():.0f} GFLOP/s\n"
    )
    for kind, rate in best.items():
        print(f"{kind:<8} {rate:>8,.0f} images/s")
    print()
    for words, ratio in ratios.items():
        print(f"{words}: {ratio:.2f}")


if __name__ == "__main__":
    main()
