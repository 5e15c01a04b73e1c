"""The work that every implementation does, read from a folder: clients' images, the model to begin with, how to train.

`side_by_side.py` writes the folder. Here are only numpy and the standard library, for some environments have no torch.
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
    """Clients' images, the parameters to begin with, and how long to train."""

    folder: str
    clients: int
    images: int  # of each client
    epochs: int
    rounds: int  # the first is not timed

    @classmethod
    def given(cls) -> Task:
        """Read the task that the command line names."""
        return cls.read(sys.argv[1])

    @classmethod
    def read(cls, folder: str) -> Task:
        """Read a task from its folder."""
        return cls(folder, **json.loads((Path(folder) / "task.json").read_text()))

    def part(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's images [n, 1, 28, 28] and labels [n]."""
        rows = slice(client * self.images, (client + 1) * self.images)
        x, y = (np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r") for name in "xy")
        return np.array(x[rows]), np.array(y[rows])

    @property
    def start(self) -> np.ndarray:
        """The parameters to begin with, flat [P]."""
        return np.load(Path(self.folder) / "start.npy")

    def batches(self, client: int, round: int) -> Iterator[np.ndarray]:
        """The positions of each batch of a round, every epoch shuffled anew."""
        draw = np.random.default_rng((client, round))
        for _ in range(self.epochs):
            order = draw.permutation(self.images)
            yield from (order[i : i + BATCH] for i in range(0, self.images, BATCH))


def tell(seconds: list[float], params: np.ndarray, version: str) -> None:
    """Print the seconds of each round and the parameters' way from the start, for all must have gone about as far."""
    moved = float(np.linalg.norm(params - Task.given().start))
    print("\n" + json.dumps({"seconds": seconds, "moved": moved, "version": version}), flush=True)
