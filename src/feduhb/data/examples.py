"""Examples: some rows of tensors, which federations share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from feduhb.core.inputs import join_inputs, list_tensors, make_inputs, map_tensors
from feduhb.errors import DataError


@dataclass(frozen=True, slots=True)
class Examples:
    """Some rows of a data set. Federations share its tensors and never write to them.

    Requests name a row by its key, the position of the row in the data that the client joined with. A row keeps
    its key when other rows are forgotten.
    """

    x: Any  # [N, ...] inputs, shared: a tensor, or several in a dict or tuple (`feduhb.core.inputs.Inputs`)
    y: Tensor  # [N, ...] targets, shared
    rows: Tensor  # [n] positions in x and y
    keys: Tensor  # [n] positions in the data that the client joined with
    marked: Tensor | None = None  # [n] mask of the canaries; None: there are none
    plain: Examples | None = None  # the same examples before they were standardised; None if they were not

    @classmethod
    def of(cls, x: Any, y: Any, rows: Tensor | None = None) -> Examples:
        """Return examples made of all rows, or of some rows, of two tensors or arrays."""
        inputs, targets = make_inputs(x), torch.as_tensor(y)
        first = list_tensors(inputs)[0]
        if first.dim() < 1 or targets.dim() < 1 or len(first) != len(targets):
            shapes = f"{list(first.shape)} inputs do not match {list(targets.shape)} targets"
            raise DataError(f"{shapes}; give one target for each input")
        chosen = torch.arange(len(first)) if rows is None else rows
        return cls(inputs, targets, chosen, torch.arange(len(chosen)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> Tensor:
        """The targets of these rows, in their order [n, ...]."""
        return self.y[self.rows]

    def mask_keys(self, keys: Iterable[int]) -> Tensor:
        """Return a mask [n] of the rows that have one of these keys."""
        return torch.isin(self.keys, torch.tensor([*keys], dtype=self.keys.dtype))

    def where(self, keep: Tensor) -> Examples:
        """Return the rows that a mask [n] selects."""
        marked = None if self.marked is None else self.marked[keep]
        plain = None if self.plain is None else self.plain.where(keep)
        return Examples(self.x, self.y, self.rows[keep], self.keys[keep], marked, plain)

    def batch(self, positions: Tensor) -> tuple[Any, Tensor]:
        """Return copies of the inputs and targets at some positions."""
        rows = self.rows[positions]
        return map_tensors(lambda part: part[rows], self.x), self.y[rows]

    def all(self) -> tuple[Any, Tensor]:
        """Return copies of all inputs and targets, in their order."""
        return map_tensors(lambda part: part[self.rows], self.x), self.targets

    @property
    def canaries(self) -> Examples:
        """The rows that are canaries."""
        return self.where(torch.zeros(len(self), dtype=torch.bool) if self.marked is None else self.marked)

    def renumber(self, keys: Tensor) -> Examples:
        """Return these examples with other keys [n]."""
        return replace(self, keys=keys, plain=None if self.plain is None else self.plain.renumber(keys))

    @property
    def unscaled(self) -> Examples:
        """These examples before they were standardised."""
        return self if self.plain is None else self.plain


def join_examples(parts: Sequence[Examples]) -> Examples:
    """Return the examples of several parts, one after another; parts of the same tensors share them."""
    first = parts[0]
    keys = torch.cat([part.keys for part in parts])
    if all(part.x is first.x and part.y is first.y for part in parts):
        return Examples(first.x, first.y, torch.cat([part.rows for part in parts]), keys)
    pairs = [part.all() for part in parts]
    return Examples(
        join_inputs([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), torch.arange(len(keys)), keys
    )


def fingerprint(examples: Examples, *more: Tensor) -> str:
    """Return the number of examples and a digest of their inputs, targets and keys, and of further numbers."""
    total = blake2b(digest_size=8)
    x, y = examples.all()
    if isinstance(x, dict):
        total.update(repr([*x]).encode())
    for part in (*list_tensors(x), y, examples.keys, *more):
        total.update(f"{part.dtype} {list(part.shape)}".encode())
        total.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{len(examples)} {total.hexdigest()}"
