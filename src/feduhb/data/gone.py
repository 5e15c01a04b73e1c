"""Data of which what a request named has been deleted already, as it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation, fingerprint
from feduhb.data.request import Request


def numbered_as_before(
    federation: Federation, requests: Sequence[Request], left: Mapping[ClientId, str]
) -> Federation:
    """Give rows the numbers that they had in the data a client joined with, where some of its rows have been deleted since.

    Which ones were is found by trying: none, or those that one of the requests names; what is left of them must have the right digest.

    Args:
        requests: served one after the other, each naming all that was forgotten until then.
        left: by client, the fingerprint of what remained of the last.
    """
    clients = {
        client: _numbered(client, examples, requests, left.get(client, ""))
        for client, examples in federation.clients.items()
    }
    return federation.replace(clients=clients)


def still_there(federation: Federation, request: Request) -> Request | None:
    """Give what of a request a federation still holds; None where nothing."""
    rows = {
        client: sorted({*some} & {*federation.clients[client].keys.tolist()})
        for client, some in request.rows.items()
        if client in federation.clients
    }
    held = {int(value) for e in federation.clients.values() for value in _classes(e, request)}
    found = {
        "clients": tuple(client for client in request.clients if client in federation.clients),
        "rows": {client: tuple(some) for client, some in rows.items() if some},
        "classes": tuple(number for number in request.classes if number in held),
    }
    return Request(**found) if any(found.values()) else None


def _numbered(client: ClientId, examples: Examples, requests: Sequence[Request], left: str) -> Examples:
    last = requests[-1]
    if client not in last.rows:
        return examples
    for gone in ((), *(request.rows.get(client, ()) for request in requests)):
        numbers = torch.arange(len(examples) + len(gone))
        keys = numbers[~torch.isin(numbers, torch.tensor(gone, dtype=torch.long))] if gone else examples.keys
        if len(keys) != len(examples):  # it never had some of these
            continue
        tried = replace(examples, keys=keys)
        if fingerprint(tried.where(~last.mask(client, keys, tried.targets))) == left:
            return tried
    return examples


def _classes(examples: Examples, request: Request) -> list[float]:
    return torch.unique(examples.targets).tolist() if request.classes else []
