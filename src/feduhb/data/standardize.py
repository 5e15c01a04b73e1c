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

ColumnChoice = bool | Sequence[int]  # which columns to standardise; True: all
CHUNK = 2**21  # numbers that are computed at once


class Scale(NamedTuple):
    """The mean and the spread of each column of inputs, in float64."""

    mean: Tensor
    spread: Tensor  # 1 where all values are equal


def measure_scale(examples: Examples, columns: ColumnChoice) -> Scale:
    """Return the mean and the population standard deviation of each column, over the values that are not missing.

    ColumnChoice that are not to be standardised have mean 0 and spread 1.
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

    All parts share one tensor of inputs, of torch's default type, which is in a file if it is large.
    """
    if not parts:
        return []
    sizes = [len(examples) for examples, _ in parts]
    like = parts[0][0].x
    x = make_tensor((sum(sizes), *like.shape[1:]), torch.get_default_dtype())
    targets = parts[0][0].y
    y = make_tensor((sum(sizes), *targets.shape[1:]), targets.dtype)
    found: list[Examples] = []
    begin = 0
    for rows, (examples, scale) in zip(torch.arange(len(x)).split(sizes), parts, strict=True):
        y[rows] = examples.targets
        for values in _read_parts(examples):
            x[begin : begin + len(values)] = ((values - scale.mean) / scale.spread).nan_to_num(0.0)
            begin += len(values)
        found.append(replace(examples, x=x, y=y, rows=rows, plain=examples))
    return found


def standardize_parts(
    trained: dict[str, Examples],
    held_out: dict[str, Examples],
    tested: dict[str, Examples],
    columns: ColumnChoice,
) -> None:
    """Standardise the examples of clients in place, unless they are standardised already.

    Each client is measured by its training examples; one that has none left, by its test examples.
    """
    todo = [
        (group, who) for group in (trained, held_out, tested) for who in group if group[who].plain is None
    ]
    scales: dict[str, Scale] = {}
    for who in dict.fromkeys(who for _, who in todo):
        own = (trained.get(who) or tested[who]).unscaled
        check_columns(own, columns, who)
        scales[who] = measure_scale(own, columns)
        if not all(bool(part.isfinite().all()) for part in scales[who]):
            raise DataError(
                f"{who} holds infinite or very large inputs, which cannot be standardised; correct them"
            )
    done = apply_scales([(group[who], scales[who]) for group, who in todo])
    for (group, who), examples in zip(todo, done, strict=True):
        group[who] = examples


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


def _read_parts(examples: Examples) -> Iterator[Tensor]:
    """Yield the inputs in float64, a part at a time."""
    size = max(1, CHUNK // max(1, examples.x[:1].numel()))
    for rows in examples.rows.split(size):
        yield examples.x[rows].double()
