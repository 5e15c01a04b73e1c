"""Each hospital's own file, and the model they train: benign or malignant, from 30 measurements of a biopsy."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

SHARES = {"hospital-a": 180, "hospital-b": 150, "hospital-c": 125}  # patients; 114 more are the test set
HOSPITALS = tuple(SHARES)
HELD_OUT = 0.25  # of a hospital's patients, never trained on
# (centre, spread) to scale by: round numbers that everybody agrees on like units, computed from nobody's patients
MEASURED = {
    "radius": (15, 5), "texture": (20, 5), "perimeter": (100, 30), "area": (700, 400), "smoothness": (0.1, 0.02),
    "compactness": (0.1, 0.1), "concavity": (0.1, 0.1), "concave points": (0.05, 0.05), "symmetry": (0.2, 0.05),
    "fractal dimension": (0.06, 0.01),
}  # fmt: skip
FEATURES = 3 * len(MEASURED)  # of each its mean over a biopsy's cells, the error of that, and the worst

Pair = tuple[Tensor, Tensor]


def model() -> nn.Module:
    """Return the network; every run draws its weights anew."""
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 2))


def write(folder: Path, seed: int = 1) -> None:
    """Split the 569 patients of the Wisconsin data set into a file per hospital and one for the server."""
    from sklearn.datasets import load_breast_cancer  # slow to import, and no hospital needs it

    folder.mkdir(parents=True, exist_ok=True)
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    parts = np.split(order, np.cumsum(list(SHARES.values())))
    for name, rows in zip((*HOSPITALS, "test"), parts, strict=True):
        part = folder / f".{name}.npz"
        np.savez(part, x=x[rows], y=y[rows])
        part.replace(folder / f"{name}.npz")


def scale(x: np.ndarray) -> Tensor:
    """Scale rows [n, 30] by constants: a mean over all rows would carry a forgotten patient into the others."""
    centre, spread = np.array(list(MEASURED.values())).T
    mean, error, worst = np.split(x, 3, axis=1)
    parts = (mean - centre) / spread, 5 * error / spread - 1, (worst - centre) / spread
    return torch.from_numpy(np.hstack(parts)).float()


def read_all(file: Path) -> Pair:
    """Return all patients of a file, as the server reads its test set."""
    with np.load(file) as arrays:
        return scale(arrays["x"]), torch.from_numpy(arrays["y"]).long()


def read(file: Path) -> tuple[Pair, Pair]:
    """Return the patients that a hospital trains on and those that it holds out."""
    x, y = read_all(file)
    kept = len(y) - round(HELD_OUT * len(y))
    return (x[:kept], y[:kept]), (x[kept:], y[kept:])


if __name__ == "__main__":  # python -P -m hospitals.data FOLDER
    write(Path(sys.argv[1]))
