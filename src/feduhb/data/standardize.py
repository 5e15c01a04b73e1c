"""Standardise the inputs of each client by its own mean and spread, which no other client's data can change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from feduhb.data.examples import Examples
from feduhb.data.storage import make_tensor
from feduhb.errors import DataError

Columns = bool | Sequence[int]  # which columns to standardise; True: all
CHUNK = 2**21  # numbers that are computed at once


class Scale(NamedTuple):
    """The mean and the spread of each column of inputs, in float64."""

    mean: Tensor
    spread: Tensor  # 1 where all values are equal


def measure_scale(examples: Examples, columns: Columns) -> Scale:
    """Return the mean and the population standard deviation of each column, over the values that are not missing.

    Columns that are not to be standardised have mean 0 and spread 1.
    """
    shape = examples.x.shape[1:]
    total, count, squares = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for part in _read_parts(examples):
        total += part.nan_to_num(0.0).sum(dim=0)
        count += (~part.isnan()).sum(dim=0)
    mean = total / count.clamp(min=1)
    for part in _read_parts(examples):
        squares += (part - mean).nan_to_num(0.0).square().sum(dim=0)
    spread = (squares / count.clamp(min=1)).sqrt()
    spread[spread == 0] = 1.0
    if not isinstance(columns, bool):
        left = torch.ones(shape[-1], dtype=torch.bool)
        left[list(columns)] = False
        mean, spread = mean.masked_fill(left, 0.0), spread.masked_fill(left, 1.0)
    return Scale(mean, spread)


def apply_scales(parts: Sequence[tuple[Examples, Scale]]) -> list[Examples]:
    """Return examples with standardised inputs, which keep the plain ones beside them. A missing value becomes the mean.

    All parts share one tensor of inputs, which is in a file if it is large.
    """
    if not parts:
        return []
    sizes = [len(examples) for examples, _ in parts]
    like = parts[0][0].x
    x = make_tensor((sum(sizes), *like.shape[1:]), like.dtype)
    y = torch.cat([examples.targets for examples, _ in parts])
    found: list[Examples] = []
    begin = 0
    for rows, (examples, scale) in zip(torch.arange(len(x)).split(sizes), parts, strict=True):
        for values in _read_parts(examples):
            x[begin : begin + len(values)] = ((values - scale.mean) / scale.spread).nan_to_num(0.0)
            begin += len(values)
        found.append(replace(examples, x=x, y=y, rows=rows, plain=examples))
    return found


def check_numbers(examples: Examples, what: str) -> None:
    """Raise DataError if the inputs are not numbers that can be standardised."""
    if not isinstance(examples.x, Tensor) or not examples.x.is_floating_point():
        raise DataError(
            f"{what} cannot be standardised, because its inputs are not one tensor of a floating-point type; "
            "give x.float(), or leave standardize out"
        )


def _read_parts(examples: Examples) -> Iterator[Tensor]:
    """Yield the inputs in float64, a part at a time."""
    size = max(1, CHUNK // max(1, examples.x[:1].numel()))
    for rows in examples.rows.split(size):
        yield examples.x[rows].double()
