"""Standardise the inputs of each client by its own mean and spread, which no other client's data can change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from feduhb.data.examples import Examples
from feduhb.data.storage import make_tensor
from feduhb.errors import DataError

ColumnChoice = bool | Sequence[int]  # which columns to standardise; True: all
CHUNK = 2**21  # numbers that are computed at once


class Scale(NamedTuple):
    """The mean and the spread of each column of inputs, in float64."""

    mean: Tensor
    spread: Tensor  # 1 where all values are equal


def measure_scale(examples: Examples, columns: ColumnChoice) -> Scale:
    """Return the mean and the population standard deviation of each column, over the values that are not missing.

    Columns that are not to be standardised have mean 0 and spread 1.
    """
    shape = examples.x.shape[1:]
    total, count, squares = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    low, high = (torch.full(shape, end, dtype=torch.float64) for end in (math.inf, -math.inf))
    for part in _read_parts(examples):
        missing = part.isnan()
        low = low.minimum(part.masked_fill(missing, math.inf).amin(dim=0))
        high = high.maximum(part.masked_fill(missing, -math.inf).amax(dim=0))
        count += (~missing).sum(dim=0)
        total += part.nan_to_num_(0.0).sum(dim=0)
    mean = torch.where(low == high, low, total / count.clamp(min=1))  # a sum of equal values is rounded
    for part in _read_parts(examples):
        squares += part.sub_(mean).nan_to_num_(0.0).square_().sum(dim=0)
    spread = (squares / count.clamp(min=1)).sqrt()
    spread[(low >= high) | (spread == 0)] = 1.0
    if not isinstance(columns, bool):
        left = torch.ones(shape[-1], dtype=torch.bool)
        left[list(columns)] = False
        mean, spread = mean.masked_fill(left, 0.0), spread.masked_fill(left, 1.0)
    return Scale(mean, spread)


def standardize_parts(
    trained: dict[str, Examples],
    held_out: dict[str, Examples],
    tested: dict[str, Examples],
    columns: ColumnChoice,
) -> None:
    """Standardise the examples of clients in place, unless they are standardised already. A missing value becomes the mean.

    Each client is measured by its training examples; one that has none left, by its test examples. All examples share one
    tensor of inputs, of torch's default type and in a file if it is large, and keep the plain ones beside them.
    """
    todo: dict[str, list[dict[str, Examples]]] = {}
    for group in (trained, held_out, tested):
        for who in group:
            if group[who].plain is None:
                todo.setdefault(who, []).append(group)
    if not todo:
        return
    for who in todo:
        check_columns((trained.get(who) or tested[who]).unscaled, columns, who)
    like = next(group[who] for who, groups in todo.items() for group in groups)
    sizes = [len(group[who]) for who, groups in todo.items() for group in groups]
    ends = accumulate(sizes)
    # Made first: between the large parts computed below, they would keep the memory of those from being used again.
    places = iter([torch.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)])
    x = make_tensor((sum(sizes), *like.x.shape[1:]), torch.get_default_dtype())
    y = make_tensor((sum(sizes), *like.y.shape[1:]), like.y.dtype)
    begin = 0
    for who, groups in todo.items():
        scale = measure_scale((trained.get(who) or tested[who]).unscaled, columns)
        _check_finite(who, *scale)
        for group in groups:
            plain = group[who]
            y[begin : begin + len(plain)] = plain.targets
            for values in _read_parts(plain):
                scaled = x[begin : begin + len(values)]
                scaled.copy_(values.sub_(scale.mean).div_(scale.spread).nan_to_num_(0.0, math.inf, -math.inf))
                _check_finite(who, scaled)
                begin += len(values)
            group[who] = replace(plain, x=x, y=y, rows=next(places), plain=plain)


def check_columns(examples: Examples, columns: ColumnChoice, who: str) -> None:
    """Raise DataError if inputs are not numbers, or if there are no such columns to standardise."""
    if not isinstance(examples.x, Tensor) or not examples.x.is_floating_point() or examples.x.dim() < 2:
        raise DataError(
            f"{who} cannot be standardised, because its inputs are not one tensor of columns of a floating-point type; "
            "give x.float(), or leave standardize out"
        )
    width = examples.x.shape[-1]
    if isinstance(columns, bool):
        return
    strange = [c for c in columns if isinstance(c, bool) or not isinstance(c, int) or not 0 <= c < width]
    if isinstance(columns, str) or strange:
        raise DataError(
            f"standardize is {columns!r}; give True, or the numbers of columns, from 0 to {width - 1}"
        )


def _check_finite(who: str, *values: Tensor) -> None:
    if not all(bool(part.isfinite().all()) for part in values):
        raise DataError(
            f"{who} holds infinite or very large inputs, which cannot be standardised; correct them"
        )


def _read_parts(examples: Examples) -> Iterator[Tensor]:
    """Yield copies of the inputs in float64, a part at a time."""
    size = max(1, CHUNK // max(1, examples.x[:1].numel()))
    for rows in examples.rows.split(size):
        yield examples.x[rows].double()
