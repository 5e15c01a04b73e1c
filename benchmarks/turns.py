"""Time rounds of two versions of the source on one GPU, in turns, so that neither has a warmer or busier machine.

    git worktree add before 86df9ec
    PYTHONPATH=before/src python benchmarks/turns.py before lock & PYTHONPATH=src python benchmarks/turns.py after lock; wait

Each process prints its line when both have had five turns of four rounds. A round has 18 clients, 5 epochs, batch 64 and the paper's
CNN in tf32, on random images. The sums of the first answers tell whether the versions give the same bits.
"""

from __future__ import annotations

import fcntl
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import feduhb
from feduhb.core.flat import flatten
from feduhb.data.federation import Examples
from feduhb.engines import Stacked
from feduhb.models import paper_cnn

TASKS = {"mnist": ((1, 28, 28), 3000), "cifar10": ((3, 32, 32), 2500)}
TURNS, ROUNDS = 5, 4
PAUSE = 0.05  # seconds, in which the other process takes the lock


class Timed:
    """A federation of random images with its engine."""

    def __init__(self, task: str) -> None:
        shape, images = TASKS[task]
        draw = torch.Generator().manual_seed(1)
        x = torch.rand(18 * images, *shape, generator=draw)
        y = torch.randint(0, 10, (len(x),), generator=draw)
        rows = torch.randperm(len(x), generator=draw).split([images] * 18)
        own = {f"c{i:02}": Examples.of(x, y, part) for i, part in enumerate(rows)}
        federation = feduhb.Federation(own, (x[:64], y[:64]), paper_cnn(shape, 10), seed=3)
        self.engine: Any = Stacked(federation, precision="tf32")
        self.work = feduhb.Work(flatten(federation.fresh_model()).cuda(), 5)
        self.clients = tuple(federation.clients)

    def run(self, round: int) -> tuple[float, torch.Tensor]:
        """Return the milliseconds of a round and its answers."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        values = torch.cat([block.values for block in self.engine.train(self.work, self.clients, round)])
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3, values


def main() -> None:
    """Wait until both processes are ready, take turns, and print the milliseconds."""
    name, path = sys.argv[1], Path(sys.argv[2])
    timed = {task: Timed(task) for task in TASKS}
    sums = {task: float(one.run(0)[1].double().sum()) for task, one in timed.items()}
    ready = path.with_name(f"{path.name}.{name}")
    ready.touch()
    while len([*path.parent.glob(f"{path.name}.*")]) < 2:
        time.sleep(PAUSE)
    took: dict[str, list[float]] = {task: [] for task in TASKS}
    with path.open("w") as lock:
        for turn in range(TURNS):
            for task, one in timed.items():
                fcntl.flock(lock, fcntl.LOCK_EX)
                one.run(1)
                took[task] += [round(one.run(2 + turn)[0], 2) for _ in range(ROUNDS)]
                fcntl.flock(lock, fcntl.LOCK_UN)
                time.sleep(PAUSE)
    medians = {task: statistics.median(values) for task, values in took.items()}
    print(json.dumps({"version": name, "sums": sums, "median": medians, "all": took}))


if __name__ == "__main__":
    main()
