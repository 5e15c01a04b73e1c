"""Each hospital's own file, and the model they train: benign or malignant, from 30 measurements of a biopsy.

python -m hospitals.data FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
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
MEASURED = {
    "radius": (15, 5),
    "texture": (20, 5),
    "perimeter": (100, 30),
    "area": (700, 400),
    "smoothness": (0.1, 0.02),
    "compactness": (0.1, 0.1),
    "concavity": (0.1, 0.1),
    "concave points": (0.05, 0.05),
    "symmetry": (0.2, 0.05),
    "fractal dimension": (0.06, 0.01),
}  # (centre, spread) to scale by: round numbers that all agree on like units, worked out from nobody's file
FEATURES = 3 * len(MEASURED)  # of each its mean over a biopsy's cells, the error of that, and the worst

Pair = tuple[Tensor, Tensor]
Measurements = npt.NDArray[np.float64]


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


def scaled(x: Measurements) -> Tensor:
    """Scale rows [n, 30] each by itself: with the mean of all rows in every row, a forgotten patient would stay in the others'."""
    centre, spread = np.array(list(MEASURED.values())).T
    mean, error, worst = np.split(x, 3, axis=1)
    parts = (mean - centre) / spread, 5 * error / spread - 1, (worst - centre) / spread
    return torch.from_numpy(np.hstack(parts)).float()


def read(file: Path) -> tuple[Pair, Pair]:
    """Give what a hospital trains on and what it holds out."""
    with np.load(file) as held:
        x, y = scaled(held["x"]), held["y"]
    labels = torch.from_numpy(y).long()
    kept = len(y) - round(HELD_OUT * len(y))
    return (x[:kept], labels[:kept]), (x[kept:], labels[kept:])


def read_all(file: Path) -> Pair:
    """Give a whole file, as the server reads its test set."""
    (x, y), (held_x, held_y) = read(file)
    return torch.cat([x, held_x]), torch.cat([y, held_y])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
