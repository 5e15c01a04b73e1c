"""The task of every implementation, read from a folder: the clients' images, the first model, and how to train.

`side_by_side.py` writes the folder. This file needs only numpy, because some environments have no torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BATCH, RATE = 64, 0.005


@dataclass(frozen=True, slots=True)
class Task:
    """The clients' images, the first parameters, and how long to train."""

    folder: str
    clients: int
    images: int  # of each client
    epochs: int
    rounds: int  # the first is not timed

    @classmethod
    def from_arguments(cls) -> Task:
        """Read the task that the command line names."""
        return cls.read(sys.argv[1])

    @classmethod
    def read(cls, folder: str) -> Task:
        """Read a task from its folder."""
        return cls(folder, **json.loads((Path(folder) / "task.json").read_text()))

    def read_part(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a client's images [n, 1, 28, 28] and labels [n]."""
        rows = slice(client * self.images, (client + 1) * self.images)
        x, y = (np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r") for name in "xy")
        return np.array(x[rows]), np.array(y[rows])

    @property
    def start(self) -> np.ndarray:
        """The first parameters, flat [P]."""
        return np.load(Path(self.folder) / "start.npy")

    def draw_batches(self, client: int, round: int) -> Iterator[np.ndarray]:
        """Yield the positions of each batch of a round; every epoch has a new order."""
        draw = np.random.default_rng((client, round))
        for _ in range(self.epochs):
            order = draw.permutation(self.images)
            yield from (order[i : i + BATCH] for i in range(0, self.images, BATCH))


def print_answer(seconds: list[float], params: np.ndarray, version: str) -> None:
    """Print the seconds of each round and how far the parameters moved, which must be about equal for all."""
    moved = float(np.linalg.norm(params - Task.from_arguments().start))
    print("\n" + json.dumps({"seconds": seconds, "moved": moved, "version": version}), flush=True)
