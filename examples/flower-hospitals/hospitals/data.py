"""Each hospital's own file, and the model they train: benign or malignant, from 30 measurements of a biopsy.

python -m hospitals.data FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

SHARES = {
    "hospital-a": 180,
    "hospital-b": 150,
    "hospital-c": 125,
}  # patients; the other 114 are the server's test set
HOSPITALS = tuple(SHARES)
HELD_OUT = 0.25  # of a hospital's patients, never trained on
TEST = "test"
FEATURES = 30

Pair = tuple[Tensor, Tensor]


def model() -> nn.Module:
    """Give the network; its weights are drawn anew for every run."""
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 2))


def write(folder: Path, seed: int = 1) -> None:
    """Deal the 569 patients of the Wisconsin data set out to the hospitals and the server, a file each."""
    from sklearn.datasets import load_breast_cancer  # slow to load, and no hospital needs it

    folder.mkdir(parents=True, exist_ok=True)
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    parts = np.split(order, np.cumsum(list(SHARES.values())))
    for name, rows in zip((*HOSPITALS, TEST), parts, strict=True):
        part = folder / f".{name}.npz"
        np.savez(part, x=x[rows], y=y[rows])
        part.replace(folder / f"{name}.npz")


def read(file: Path) -> tuple[Pair, Pair]:
    """Give what a hospital trains on and what it holds out; scaled by its own numbers, for nobody shares theirs."""
    with np.load(file) as held:
        x, y = held["x"], held["y"]
    scaled = torch.from_numpy((x - x.mean(axis=0)) / x.std(axis=0)).float()
    labels = torch.from_numpy(y).long()
    kept = len(y) - round(HELD_OUT * len(y))
    return (scaled[:kept], labels[:kept]), (scaled[kept:], labels[kept:])


def read_all(file: Path) -> Pair:
    """Give a whole file, as the server reads its test set."""
    (x, y), (held_x, held_y) = read(file)
    return torch.cat([x, held_x]), torch.cat([y, held_y])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
