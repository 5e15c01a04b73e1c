"""Federations whose forgotten data was deleted: which rows are missing, and which data of a request is still there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feduhb.core.types import ClientId
from feduhb.data.examples import Examples
from feduhb.data.federation import Federation
from feduhb.data.request import Request


def restore_keys(
    federation: Federation, requests: Sequence[Request], remained: Mapping[ClientId, str]
) -> Federation:
    """Return a federation with the original row keys, even if forgotten rows were deleted from its data.

    The deleted rows are found by trying: none, or those of one of the requests. A guess is right if the remaining
    rows then have the recorded fingerprint.

    Args:
        requests: in the order in which they were served; each names everything forgotten until then.
        remained: the fingerprints of the clients' examples after the last request.
    """
    last = requests[-1]
    deleted = {
        client: _find_deleted(federation, client, requests, remained.get(client, ""))
        for client in federation.clients
        if client in last.rows
    }
    return _renumber(federation, deleted) if any(deleted.values()) else federation


def _find_deleted(
    federation: Federation, client: ClientId, requests: Sequence[Request], remained: str
) -> tuple[int, ...]:
    """Return the rows that were deleted from a client's data; none if no guess gives the recorded fingerprint."""
    last = requests[-1]
    own = Request(rows={client: last.rows[client]}, classes=last.classes)
    for deleted in ((), *(request.rows.get(client, ()) for request in requests)):
        rest = _renumber(federation, {client: deleted}).leave_out(own)
        if client in rest.clients and rest.fingerprint(client) == remained:
            return deleted
    return ()


def _renumber(federation: Federation, deleted: Mapping[ClientId, Sequence[int]]) -> Federation:
    """Return a federation whose rows have the numbers that they had before others were deleted."""

    def restore(some: Mapping[ClientId, Examples]) -> dict[ClientId, Examples]:
        return {c: e.renumber(_restore_numbers(e.keys, deleted.get(c, ()))) for c, e in some.items()}

    changes: dict[str, Any] = {"clients": restore(federation.clients)}
    if federation.numbered_together:
        changes["held_out"] = restore(federation.held_out)
        if federation.tested:
            changes["test"] = restore(federation.tested)
    return federation.replace(**changes)


def _restore_numbers(keys: Tensor, deleted: Sequence[int]) -> Tensor:
    """Return the numbers that rows had before others were deleted, given their numbers afterwards."""
    gone = torch.tensor(sorted(deleted), dtype=torch.long)
    return keys + torch.searchsorted(gone - torch.arange(len(gone)), keys, right=True)


def select_held(federation: Federation, request: Request) -> Request | None:
    """Return the part of a request whose data a federation still holds; None if it holds none of it."""
    rows = {
        client: sorted({*some} & federation.list_keys(client))
        for client, some in request.rows.items()
        if client in federation.clients
    }
    everyone = federation.clients.values() if request.classes else ()
    labels = {int(value) for examples in everyone for value in torch.unique(examples.targets).tolist()}
    clients = tuple(client for client in request.clients if client in federation.clients)
    some_rows = {client: tuple(some) for client, some in rows.items() if some}
    classes = tuple(number for number in request.classes if number in labels)
    return Request(clients, some_rows, classes) if clients or some_rows or classes else None
