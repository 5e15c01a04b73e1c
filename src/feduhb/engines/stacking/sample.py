"""A few examples that stand for all, whoever holds them, and the targets that occur: what a trial looks at."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping

import torch
from torch import Tensor

from feduhb.core.types import ClientId
from feduhb.data.federation import Examples
from feduhb.engines.local import named

LOOKED = 1 << 22  # numbers of targets that are looked at; of more, evenly spaced examples of every client


def spread(clients: Mapping[ClientId, Examples], count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets at so many places, evenly spaced over the examples of all clients."""
    everyone = list(clients.values())
    ends = list(itertools.accumulate(map(len, everyone)))
    places = sorted(set(torch.linspace(0, ends[-1] - 1, count, dtype=torch.float64).long().tolist()))
    found = []
    for place in places:
        who = bisect_right(ends, place)
        found.append(everyone[who].batch(torch.tensor([place - (ends[who] - len(everyone[who]))])))
    x, y = zip(*found, strict=True)
    return torch.cat(x), torch.cat(y)


def occurring(clients: Mapping[ClientId, Examples], most: int) -> Tensor:
    """Targets [n, ...] in which every value that occurs is met: at least the smallest, the largest and the ``most`` commonest.

    Of targets that hold several numbers, those with the most and the fewest of each such value, and ``most`` evenly spaced.
    """
    y = _looked_at(clients)
    numbers = y.reshape(len(y), -1)
    if numbers.is_floating_point():
        numbers = numbers.where(~numbers.isnan(), torch.inf)  # each would count as a value of its own
    values, which, counts = torch.unique(numbers, return_inverse=True, return_counts=True)
    common = counts.argsort(descending=True, stable=True)[:most]
    chosen = torch.cat([common, torch.tensor([0, len(values) - 1])])
    richest, poorest = (found[chosen] for found in _extremes(which))
    if numbers.shape[1] == 1:
        return y[richest.unique()]
    evenly = torch.linspace(0, len(y) - 1, most, dtype=torch.float64).long()
    return y[torch.cat([richest, poorest, evenly]).unique()]


def _extremes(which: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows [n, k] of values 0, 1, ..., all of which occur: the first row with the most, and with the fewest, of each."""
    rows = len(which)
    pairs, counts = torch.unique(which * rows + torch.arange(rows).unsqueeze(1), return_counts=True)
    value, row = pairs // rows, pairs % rows  # sorted by value, then by row
    held = value.bincount()  # in so many rows
    none = torch.zeros_like(held)
    most = none.scatter_reduce(0, value, counts * rows + rows - 1 - row, "amax")
    fewest = none.scatter_reduce(0, value, counts * rows + row, "amin", include_self=False)
    rank = torch.arange(len(row)) - (held.cumsum(0) - held)[value]
    skipped = rank.where(row != rank, rows)
    lacking = held.scatter_reduce(0, value, skipped, "amin")  # the first row without it
    return rows - 1 - most % rows, torch.where(held < rows, lacking, fewest % rows)


def _looked_at(clients: Mapping[ClientId, Examples]) -> Tensor:
    """The targets of all clients, or of every so many-th example."""
    each = next(iter(clients.values())).y[0].numel()
    step = -(-sum(map(len, clients.values())) * each // LOOKED)
    found = []
    for client, examples in clients.items():
        with named(client, 0):
            found.append(examples.y[examples.rows[::step]])
    return torch.cat(found)
