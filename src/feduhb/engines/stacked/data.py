"""The examples of clients: stored where the engine computes, and sampled for a trial; and the memory there."""

from __future__ import annotations

import functools
import itertools
import os
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feduhb.core.inputs import Inputs, count_rows, join_inputs, list_tensors, map_tensors
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples
from feduhb.engines.loop import client_errors

MOST_NUMBERS = 1 << 22  # numbers in the targets that `sample_targets` reads; beyond that it skips examples


class ExampleStore:
    """The examples of some clients on a device; tensors that clients share are stored once."""

    def __init__(self, clients: Mapping[ClientId, Examples], device: torch.device) -> None:
        whole = {_key(examples): examples for examples in clients.values()}
        begins: dict[Hashable, int] = {}
        length = 0
        for key, examples in whole.items():
            begins[key] = length
            length += count_rows(examples.x)
        everything = join_inputs([examples.x for examples in whole.values()])
        self.x: Any = map_tensors(lambda part: part.to(device).contiguous(), everything)
        (y,) = list_tensors(join_inputs([examples.y for examples in whole.values()]))
        self.y = y.to(device).contiguous()
        # Positions in the store, on the CPU.
        self.rows = {c: _positive_rows(e) + begins[_key(e)] for c, e in clients.items()}
        self._made_of = {client: (examples, _versions(examples)) for client, examples in clients.items()}
        self._checked: set[tuple[ClientId, int | None]] = set()

    def gather(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Return the inputs and targets at positions [C, B]."""
        return map_tensors(lambda part: part[rows], self.x), self.y[rows]

    def holds(self, clients: Mapping[ClientId, Examples]) -> bool:
        """Return whether these examples are stored and unchanged. A change in place by NumPy is not noticed."""
        for client, examples in clients.items():
            known, versions = self._made_of.get(client, (None, ()))
            if known is not examples or versions != _versions(examples):
                return False
        return True

    def check(self, client: ClientId, classes: int | None, ignored: int | None = None) -> None:
        """Raise IndexError for rows outside a client's data and for labels that are not classes.

        Args:
            classes: the number of classes; None if targets are not labels.
            ignored: a label that may occur although it is not a class; None allows no such label.
        """
        if (client, ignored) in self._checked:
            return
        examples, _ = self._made_of[client]
        size = count_rows(examples.x)
        low, high = map(int, torch.aminmax(examples.rows))
        if low < -size or high >= size:
            bad = low if low < -size else high
            raise IndexError(f"row {bad} is out of bounds: the client has {size} examples")
        if classes is not None:
            labels = examples.targets
            labels = labels if ignored is None else labels[labels != ignored]
            low, high = map(int, torch.aminmax(labels)) if len(labels) else (0, 0)
            if low < 0 or high >= classes:
                raise IndexError(f"Target {low if low < 0 else high} is out of bounds.")
        self._checked.add((client, ignored))

    @staticmethod
    def bytes(clients: Mapping[ClientId, Examples]) -> int:
        """Return the size of a store of these clients."""
        whole = {_key(examples): examples for examples in clients.values()}
        return sum(part.nbytes for e in whole.values() for part in _list_parts(e))


class Stores:
    """Finds a store that holds some clients' examples, and keeps one of all examples if there is room for it."""

    def __init__(self, clients: Mapping[ClientId, Examples], device: torch.device) -> None:
        self.clients = clients
        self.device = device
        self.kept: ExampleStore | None = None

    def find(self, clients: Sequence[ClientId]) -> ExampleStore:
        """Return a store of all clients' examples if it can be kept, else one of these clients' examples."""
        block = {client: self.clients[client] for client in clients}
        if self.kept is not None and self.kept.holds(block):
            return self.kept
        self.kept = ExampleStore(self.clients, self.device) if self.keeps_all else None
        return self.kept or ExampleStore(block, self.device)

    @functools.cached_property
    def keeps_all(self) -> bool:
        """Whether all examples stay on the device: all clients share their tensors, or a GPU has room for a copy."""
        if are_tensors_shared(self.clients):
            return True
        return self.device.type == "cuda" and 4 * ExampleStore.bytes(self.clients) < count_free_bytes(
            self.device
        )


def are_tensors_shared(clients: Mapping[ClientId, Examples]) -> bool:
    """Return whether the examples of all clients are rows of the same tensors."""
    first, *others = clients.values()
    return all(_key(examples) == _key(first) for examples in others)


def _key(examples: Examples) -> Hashable:
    """Return a key that is equal for two clients if their tensors read the same memory in the same way."""
    return tuple((t.data_ptr(), t.dtype, t.shape, t.stride()) for t in _list_parts(examples))


def _list_parts(examples: Examples) -> list[Tensor]:
    return [*list_tensors(examples.x), examples.y]


def _versions(examples: Examples) -> tuple[int, ...]:
    """Return how often each tensor was changed in place."""
    parts = (*_list_parts(examples), examples.rows)
    return tuple(0 if part.is_inference() else part._version for part in parts)


def _positive_rows(examples: Examples) -> Tensor:
    """Return a client's rows counted from its first: -1 is the last row of the client, not of the store."""
    return torch.where(examples.rows < 0, examples.rows + count_rows(examples.x), examples.rows)


def count_free_bytes(device: torch.device) -> int:
    """Return the number of free bytes on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not all systems have these names
        return 2 << 30


def sample_examples(clients: Mapping[ClientId, Examples], count: int) -> tuple[Any, Tensor]:
    """Return the inputs and targets of ``count`` examples, evenly spaced over all clients."""
    everyone = list(clients.values())
    ends = list(itertools.accumulate(map(len, everyone)))
    places = sorted(set(torch.linspace(0, ends[-1] - 1, count, dtype=torch.float64).long().tolist()))
    found = []
    for place in places:
        who = bisect_right(ends, place)
        found.append(everyone[who].batch(torch.tensor([place - (ends[who] - len(everyone[who]))])))
    x, y = zip(*found, strict=True)
    return join_inputs(list(x)), torch.cat(y)


def sample_targets(clients: Mapping[ClientId, Examples], most: int) -> Tensor:
    """Return targets [n, ...] that hold the smallest, the largest and the ``most`` commonest values of all targets.

    If a target holds several numbers, return the targets with the most and with the fewest of each of these values,
    and ``most`` evenly spaced ones.
    """
    y = _read_targets(clients)
    numbers = y.reshape(len(y), -1)
    if numbers.is_floating_point():
        numbers = numbers.where(~numbers.isnan(), torch.inf)  # each NaN would count as another value
    values, which, counts = torch.unique(numbers, return_inverse=True, return_counts=True)
    common = counts.argsort(descending=True, stable=True)[:most]
    chosen = torch.cat([common, torch.tensor([0, len(values) - 1])])
    richest, poorest = (found[chosen] for found in _extremes(which))
    if numbers.shape[1] == 1:
        return y[richest.unique()]
    evenly = torch.linspace(0, len(y) - 1, most, dtype=torch.float64).long()
    return y[torch.cat([richest, poorest, evenly]).unique()]


def _extremes(which: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each value 0, 1, ... in rows [n, k], the first rows in which it is most and least frequent."""
    rows = len(which)
    pairs, counts = torch.unique(which * rows + torch.arange(rows).unsqueeze(1), return_counts=True)
    value, row = pairs // rows, pairs % rows  # sorted by value, then by row
    held = value.bincount()  # number of rows with each value
    none = torch.zeros_like(held)
    most = none.scatter_reduce(0, value, counts * rows + rows - 1 - row, "amax")
    fewest = none.scatter_reduce(0, value, counts * rows + row, "amin", include_self=False)
    rank = torch.arange(len(row)) - (held.cumsum(0) - held)[value]
    skipped = rank.where(row != rank, rows)
    lacking = held.scatter_reduce(0, value, skipped, "amin")  # the first row without the value
    return rows - 1 - most % rows, torch.where(held < rows, lacking, fewest % rows)


def _read_targets(clients: Mapping[ClientId, Examples]) -> Tensor:
    """Return the targets of all clients, or of every n-th example if there are more than `MOST_NUMBERS` numbers."""
    each = next(iter(clients.values())).y[0].numel()
    step = -(-sum(map(len, clients.values())) * each // MOST_NUMBERS)
    found = []
    for client, examples in clients.items():
        with client_errors(client, 0):
            found.append(examples.y[examples.rows[::step]])
    return torch.cat(found)
