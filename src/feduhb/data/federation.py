"""A federation: clients with their examples, a test set, and the model they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.checks import whole
from feduhb.core.flat import ModelSource, fresh
from feduhb.core.types import ClientId, Loss
from feduhb.data.backdoor import Backdoor
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import DataError, ModelError, RequestError


@dataclass(frozen=True, slots=True)
class Examples:
    """Some rows of a data set: an index list over tensors that may be shared, never copied.

    ``keys`` are the names that requests use for the rows: their positions in the client's data as it first
    joined. They stay with a row when others before it are forgotten. ``marked`` are the canaries, if there are any.
    """

    x: Tensor  # [N, ...] inputs, shared
    y: Tensor  # [N, ...] targets, shared
    rows: Tensor  # [n] positions in x and y
    keys: Tensor  # [n]
    marked: Tensor | None = None  # [n] which rows are canaries

    @classmethod
    def of(cls, x: Any, y: Any, rows: Tensor | None = None) -> Examples:
        """Take tensors or arrays, all rows of them or some."""
        inputs, targets = torch.as_tensor(x), torch.as_tensor(y)
        if inputs.dim() < 1 or targets.dim() < 1 or len(inputs) != len(targets):
            raise DataError(
                f"{list(inputs.shape)} inputs do not match {list(targets.shape)} targets; give one target an input"
            )
        chosen = torch.arange(len(inputs)) if rows is None else rows
        return cls(inputs, targets, chosen, torch.arange(len(chosen)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def targets(self) -> Tensor:
        """The targets of these rows, in their order [n, ...]."""
        return self.y[self.rows]

    def where(self, keep: Tensor) -> Examples:
        """Keep the rows of a mask [n]."""
        marked = None if self.marked is None else self.marked[keep]
        return Examples(self.x, self.y, self.rows[keep], self.keys[keep], marked)

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Gather the examples at some positions of the list."""
        rows = self.rows[positions]
        return self.x[rows], self.y[rows]

    def all(self) -> tuple[Tensor, Tensor]:
        """Gather every example."""
        return self.x[self.rows], self.targets

    @property
    def canaries(self) -> Examples:
        """The rows that are canaries; none where none were planted."""
        none = torch.zeros(len(self), dtype=torch.bool)
        return self.where(none if self.marked is None else self.marked)


Pair = tuple[Any, Any]


class Federation:
    """Clients, a test set and a model: everything a run needs to know of the world.

    Args:
        clients: by id, the training examples (x, y) of each.
        test: the server's (x, y) to score models on; no client's.
        model: a module, whose weights are never used: every run draws w[0] afresh from the seed; or a
            factory for modules whose layers cannot be drawn anew.
        seed: of every draw in runs over this federation.
        held_out: by id, examples of the same client that are never trained on.
        loss: of (outputs, targets), the mean over a batch.
        backdoor: the trigger some clients carry, so that its success can be measured.
        about: how the federation was made, where a config file can say it.
    """

    def __init__(
        self,
        clients: Mapping[ClientId, Examples | Pair],
        test: Examples | Pair,
        model: ModelSource,
        *,
        seed: int = 0,
        held_out: Mapping[ClientId, Examples | Pair] | None = None,
        loss: Loss = nn.functional.cross_entropy,
        backdoor: Backdoor | None = None,
        about: object = None,
    ) -> None:
        self.clients = {
            check_id(client): _examples(data, f"client {client}") for client, data in clients.items()
        }
        self.test = _examples(test, "the test set")
        self.held_out = {
            client: _examples(data, f"held-out part of {client}", empty=True)
            for client, data in (held_out or {}).items()
        }
        self.model = model
        whole("seed", seed, least=None)
        self.seed = seed
        self.loss = loss
        self.backdoor = backdoor
        self.about = about
        if not self.clients:
            raise DataError("a federation needs at least one client; give clients={'name': (x, y)}")
        if strangers := [c for c in self.held_out if c not in self.clients]:
            raise DataError(f"held_out names {strangers[0]}, who is not among the clients; use the same ids")
        shape = self.test.x.shape[1:]
        everyone = [(f"client {c}", e) for c, e in self.clients.items()] + [
            (f"held-out part of {c}", e) for c, e in self.held_out.items()
        ]
        for what, examples in everyone:
            if examples.x.dtype != self.test.x.dtype:
                raise DataError(
                    f"{what} holds inputs of {examples.x.dtype}, the test set of {self.test.x.dtype}; make them alike"
                )
            if examples.x.shape[1:] != shape:
                raise DataError(
                    f"{what} holds inputs {list(examples.x.shape[1:])}, the test set {list(shape)}; make them alike"
                )

    def __repr__(self) -> str:
        sizes = [len(e) for e in self.clients.values()]
        return f"Federation({len(sizes)} clients, {min(sizes)} to {max(sizes)} examples each, {len(self.test)} for testing, seed {self.seed})"

    def fresh_model(self) -> nn.Module:
        """Draw w[0], and see that the model reads the data and draws nothing at random on the way."""
        module = fresh(self.model, self.seed)
        x, y = self.test.batch(torch.arange(min(2, len(self.test))))
        before = torch.default_generator.get_state()
        try:
            value = self.loss(module(x), y)
            drew = not torch.equal(before, torch.default_generator.get_state())
        except Exception as error:
            raise ModelError(
                f"the model and its loss cannot read this data ({' '.join(str(error).split())}); check shapes and types"
            ) from error
        finally:
            torch.default_generator.set_state(before)
        if not isinstance(value, Tensor) or value.dim():
            given = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ModelError(f"the loss gives {given} instead of one number; use its mean over the batch")
        if drew:
            raise ModelError(
                "the model's forward draws random numbers (dropout?), so no run could be held to a seed; remove that"
            )
        return module

    def without(self, forget: Forget) -> Federation:
        """Give the federation that remains when a request is served. A client left with nothing leaves whole."""
        request = as_request(forget)
        self._check(request)
        split = {c: e.where(~request.mask(c, e.keys, e.targets)) for c, e in self.clients.items()}
        clients = {c: remaining for c, remaining in split.items() if len(remaining)}
        if not clients:
            raise RequestError(
                "nobody would remain to retrain on; leave at least one client with examples, or delete the model instead"
            )
        held = {c: e.where(~request.class_mask(e.targets)) for c, e in self.held_out.items() if c in clients}
        return self.replace(clients=clients, held_out=held)

    def replace(self, **changes: Any) -> Federation:
        """Give a federation like this one but for some arguments."""
        kept = {
            key: getattr(self, key)
            for key in ("clients", "test", "model", "seed", "held_out", "loss", "backdoor", "about")
        }
        return Federation(**{**kept, **changes})

    def fingerprints(self) -> dict[ClientId, str]:
        """Name each client's data by its size and a digest, so that a run is never resumed on other data."""
        return {client: fingerprint(examples) for client, examples in sorted(self.clients.items())}

    def forgotten(self, forget: Forget) -> dict[ClientId, Examples]:
        """Give what a request takes away, by client."""
        request = as_request(forget)
        self._check(request)
        taken = {c: e.where(request.mask(c, e.keys, e.targets)) for c, e in self.clients.items()}
        return {client: examples for client, examples in taken.items() if len(examples)}

    def _check(self, request: Request) -> None:
        named = [*request.clients, *request.rows]
        if unknown := [c for c in named if c not in self.clients]:
            raise RequestError(
                f"there is no client {unknown[0]!r} to forget; this federation has {_listed(self.clients)}"
            )
        for client, rows in request.rows.items():
            if missing := sorted(set(rows) - set(self.clients[client].keys.tolist())):
                raise RequestError(
                    f"client {client} has no row {missing[0]}: it holds {len(self.clients[client])} rows, "
                    "counted from 0 in the data it joined with, less those already forgotten"
                )
        if request.classes:
            for examples in self.clients.values():
                request.class_mask(examples.targets[:1])
            present = {int(v) for e in self.clients.values() for v in torch.unique(e.targets).tolist()}
            if missing := sorted(set(request.classes) - present):
                raise RequestError(
                    f"nobody holds class {missing[0]}; this federation has {', '.join(map(str, sorted(present)))}"
                )


def fingerprint(examples: Examples) -> str:
    """Name examples by how many they are and a digest of all that is in them."""
    total = blake2b(digest_size=8)
    for part in (*examples.all(), examples.keys):
        total.update(f"{part.dtype} {list(part.shape)}".encode())
        total.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{len(examples)} {total.hexdigest()}"


def check_id(client: Any) -> ClientId:
    """Refuse names that requests could not spell."""
    odd = (
        not isinstance(client, str)
        or not client
        or any(ch in client for ch in ",:+\n")
        or client != client.strip()
    )
    if odd or client == "class":
        raise DataError(
            f"{client!r} cannot be a client's id; use a word other than class, without commas, colons, plus signs or spaces around it"
        )
    return client


def _examples(data: Examples | Pair, what: str, *, empty: bool = False) -> Examples:
    try:
        examples = data if isinstance(data, Examples) else Examples.of(*data)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{what} is not a pair of arrays; give inputs and targets, (x, y)") from None
    if not len(examples) and not empty:
        raise DataError(f"{what} holds no examples; leave it out, or give it at least one")
    return examples


def _listed(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
