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
    """Targets [n, ...] in which every value that occurs is met: at least the smallest, the largest and the ``most`` commonest."""
    y = _looked_at(clients)
    numbers = y.flatten()
    if numbers.is_floating_point():
        numbers = numbers.where(~numbers.isnan(), torch.inf)  # each would count as a value of its own
    values, which, counts = torch.unique(numbers, return_inverse=True, return_counts=True)
    first = torch.full_like(counts, len(numbers)).scatter_reduce(0, which, torch.arange(len(which)), "amin")
    common = counts.argsort(descending=True, stable=True)[:most]
    chosen = torch.cat([common, torch.tensor([0, len(values) - 1])])
    return y[(first[chosen] // (len(numbers) // len(y))).unique()]


def _looked_at(clients: Mapping[ClientId, Examples]) -> Tensor:
    """The targets of all clients, or of every so many-th example."""
    each = next(iter(clients.values())).y[0].numel()
    step = -(-sum(map(len, clients.values())) * each // LOOKED)
    found = []
    for client, examples in clients.items():
        with named(client, 0):
            found.append(examples.y[examples.rows[::step]])
    return torch.cat(found)
