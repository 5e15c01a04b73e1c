"""How images lie in files: idx, CIFAR-10's records, and the scaling of bytes to inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

RECORD = (3, 32, 32)  # channels (red, green, blue), rows, columns


def idx(raw: bytes) -> np.ndarray:
    """Read the idx format: two zero bytes, a type, the number of dimensions, their sizes, the values."""
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", count=dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def records(raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Read CIFAR-10's binary version, a label and 3,072 pixels a record: images [n, 3, 32, 32] and labels [n]."""
    rows = np.frombuffer(raw, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return rows[:, 1:].reshape(-1, *RECORD), rows[:, 0]


def scaled(pixels: np.ndarray, white: int) -> Tensor:
    """Bring pixels from 0 to ``white`` into [-1, 1]."""
    return torch.from_numpy(pixels.astype(np.float32)).mul_(2 / white).sub_(1)


def labels(values: np.ndarray) -> Tensor:
    """Make labels of bytes [n]."""
    return torch.from_numpy(values.astype(np.int64))
