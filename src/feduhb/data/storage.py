"""Large tensors, which are kept in files without a name: the system frees these when nobody uses them any more."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

LARGE = 2**24  # bytes; what is larger is kept in a file


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
        self._file.write(np.ascontiguousarray(rows, dtype=_name(self.dtype)).data)
        self.count += len(rows)

    def read(self, begin: int, end: int) -> np.ndarray:
        """Return rows that were added before, in their order. Nothing can be added after it."""
        found = np.empty((end - begin, *self.shape), _name(self.dtype))
        if self._is_large and hasattr(os, "posix_fadvise"):  # or the system would read megabytes around it
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        self._file.seek(begin * math.prod(self.shape) * self.dtype.itemsize)
        self._file.readinto(found.reshape(-1).view(np.uint8).data)
        return found

    def finish(self) -> Tensor:
        """Return all rows as one tensor."""
        if not self._is_large:
            return torch.from_numpy(self.read(0, self.count))
        self._file.flush()
        return _map_file(self._file, (self.count, *self.shape), self.dtype)

    @property
    def _is_large(self) -> bool:
        return self.count * math.prod(self.shape) * self.dtype.itemsize > LARGE


def _map_file(file: Any, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.memmap(file, dtype=_name(dtype), mode="r+", shape=tuple(shape)))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
