"""Large tensors, which are kept in files without a name: the system frees these when nobody uses them any more."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

LARGE = 2**26  # bytes; what is larger is kept in a file


def make_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor of zeros, in a file if it is large."""
    size = math.prod(shape) * dtype.itemsize
    if size <= LARGE:
        return torch.zeros(tuple(shape), dtype=dtype)
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        return _map_file(file, shape, dtype)


class RowWriter:
    """Rows of numbers that arrive in parts and become one tensor at the end. Use it in a ``with`` block."""

    def __init__(self, dtype: torch.dtype, shape: Sequence[int] = ()) -> None:
        self.dtype, self.shape, self.count = dtype, tuple(shape), 0
        self._file = tempfile.SpooledTemporaryFile(max_size=LARGE)  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, rows: np.ndarray) -> None:
        """Add rows [n, ...]."""
        self._file.write(np.ascontiguousarray(rows, dtype=_name(self.dtype)).tobytes())
        self.count += len(rows)

    def finish(self) -> Tensor:
        """Return all rows as one tensor."""
        shape = (self.count, *self.shape)
        if math.prod(shape) * self.dtype.itemsize > LARGE:
            self._file.flush()
            return _map_file(self._file, shape, self.dtype)
        self._file.seek(0)
        return torch.from_numpy(np.frombuffer(self._file.read(), _name(self.dtype)).reshape(shape).copy())


def _map_file(file: Any, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.memmap(file, dtype=_name(dtype), mode="r+", shape=tuple(shape)))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
