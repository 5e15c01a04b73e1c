"""Split the rows of clients into those to train on, to hold out and to test on, by a hash of each row alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from feduhb.core.inputs import list_tensors
from feduhb.core.seeds import seed_for
from feduhb.core.types import ClientId
from feduhb.data.download import print_notice
from feduhb.data.examples import Examples
from feduhb.errors import DataError

AT_ONCE = 2**16  # rows
MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of SplitMix64


class Shared(NamedTuple):
    """The rows of all clients."""

    name: str  # of the data, for errors
    x: Any  # [N, ...] inputs
    y: Tensor  # [N, ...] targets
    owners: Tensor  # [N] positions in `clients`
    clients: Sequence[ClientId]
    keys: Tensor  # [N] by which requests name rows
    has_names: bool  # whether the keys are names that the rows bring along, or their positions, which change


class Split(NamedTuple):
    """The examples of every client that has some, to train on, held out, and to test on."""

    trained: dict[ClientId, Examples]
    held_out: dict[ClientId, Examples]
    tested: dict[ClientId, Examples]


def split_rows(rows: Shared, *, seed: int, test: float, held_out: float) -> Split:
    """Split the rows of every client by a hash of (seed, client, row), so that no row moves when others are deleted.

    The row is its name or, without one, its content: equal rows stay together.

    Args:
        test: the share of rows to test on; 0 if the server has a test set of its own.
        held_out: the share of the other rows that is never trained on.
    """
    found = Split({}, {}, {})
    groups = rows.owners * len(found) + _choose_parts(rows, seed, test, held_out)
    sizes = torch.bincount(groups, minlength=len(rows.clients) * len(found)).tolist()
    chosen = iter(torch.argsort(groups, stable=True).split(sizes))
    for client in rows.clients:
        for part in found:
            if len(own := next(chosen)):
                part[client] = Examples(rows.x, rows.y, own.clone(), rows.keys[own])
    for client in {*found.held_out} - {*found.trained}:
        del found.held_out[client]
    _check_split(rows, found, test)
    return found


def number_rows(owners: Tensor, clients: int) -> Tensor:
    """Return the number of each row among the rows of its client, from 0."""
    order = torch.argsort(owners, stable=True)
    sizes = torch.bincount(owners, minlength=clients)
    starts = torch.cumsum(sizes, 0) - sizes
    keys = torch.empty(len(owners), dtype=torch.int64)
    keys[order] = torch.arange(len(owners)) - starts[owners[order]]
    return keys


def _check_split(rows: Shared, split: Split, test: float) -> None:
    together = "" if rows.has_names else " (equal rows of a client stay together, unless row= numbers them)"
    if not split.trained:
        raise DataError(
            f"{rows.name} holds no row to train on{together}; give more rows, or a smaller test and held_out"
        )
    if test and not split.tested:
        raise DataError(
            f"no row of {rows.name} falls into the test set of {test:g}{together}; give a larger share, or test data of the server's own"
        )
    if alone := [client for client in rows.clients if client not in split.trained]:
        several = f" and {len(alone) - 1} others take", "their"
        others, their = several if len(alone) > 1 else (" takes", "its")
        print_notice(
            f"client {alone[0]}{others} no part in training, because all of {their} rows are held out or in the test set"
        )


def _choose_parts(rows: Shared, seed: int, test: float, held_out: float) -> Tensor:
    """Return the part of each row: 0 to train on, 1 held out, 2 to test on."""
    salts = np.array([seed_for(seed, "split", client) for client in rows.clients], dtype=np.uint64)
    found = torch.zeros(len(rows.y), dtype=torch.uint8)
    for begin in range(0, len(found), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        value = salts[rows.owners[some].numpy()]
        for bits in _list_bits(rows, some):
            value = _mix(value ^ _mix(bits + np.uint64(MIX[0])))
        share = (value >> np.uint64(11)) / np.float64(2**53)  # uniform in [0, 1)
        is_held = (share - test) / (1 - test) < held_out
        found[some] = torch.from_numpy(np.where(share < test, 2, np.where(is_held, 1, 0)))
    return found


def _list_bits(rows: Shared, some: slice) -> Iterator[np.ndarray]:
    """Yield what tells some rows from others, as columns of whole numbers."""
    if rows.has_names:
        yield rows.keys[some].numpy().astype(np.uint64)
        return
    for part in (*list_tensors(rows.x), rows.y):
        values = part[some].reshape(len(part[some]), -1)
        if values.is_floating_point():
            whole = values.add(0.0).numpy()  # -0 and 0 are equal
            values = torch.from_numpy(whole.view(f"int{8 * whole.itemsize}"))
        yield from values.numpy().T.astype(np.uint64)


def _mix(value: np.ndarray) -> np.ndarray:
    """Return the mixing function of SplitMix64, modulo 2^64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(MIX[1])
    value = (value ^ (value >> np.uint64(27))) * np.uint64(MIX[2])
    return value ^ (value >> np.uint64(31))
