"""A federation: clients with their examples, a test set, and the model that they train together."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from feduhb.core.checks import check_whole
from feduhb.core.flat import ModelSource, fresh
from feduhb.core.types import ClientId, Loss
from feduhb.data.backdoor import Backdoor
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import DataError, ModelError, RequestError


@dataclass(frozen=True, slots=True)
class Examples:
    """Some rows of a data set: a list of row numbers over tensors that federations share and never write to.

    A request names a row by its key: the position of the row in the data that the client joined with. A row
    keeps its key when other rows are forgotten.
    """

    x: Tensor  # [N, ...] inputs, shared
    y: Tensor  # [N, ...] targets, shared
    rows: Tensor  # [n] positions in x and y
    keys: Tensor  # [n] positions in the data that the client joined with
    marked: Tensor | None = None  # [n] which rows are canaries; None: no row is

    @classmethod
    def of(cls, x: Any, y: Any, rows: Tensor | None = None) -> Examples:
        """Make examples of all rows of two tensors or arrays, or of some rows."""
        inputs, targets = torch.as_tensor(x), torch.as_tensor(y)
        if inputs.dim() < 1 or targets.dim() < 1 or len(inputs) != len(targets):
            raise DataError(
                f"{list(inputs.shape)} inputs do not match {list(targets.shape)} targets; give one target for each input"
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
        """Return the rows that a mask [n] selects."""
        marked = None if self.marked is None else self.marked[keep]
        return Examples(self.x, self.y, self.rows[keep], self.keys[keep], marked)

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of the inputs and targets at some positions of the list."""
        rows = self.rows[positions]
        return self.x[rows], self.y[rows]

    def all(self) -> tuple[Tensor, Tensor]:
        """Return copies of all inputs and targets, in their order."""
        return self.x[self.rows], self.targets

    @property
    def canaries(self) -> Examples:
        """The rows that are canaries: an empty list if none were planted."""
        none = torch.zeros(len(self), dtype=torch.bool)
        return self.where(none if self.marked is None else self.marked)


Pair = tuple[Any, Any]


class Federation:
    """Clients, a test set and a model: everything that a run needs to know of the world.

    Args:
        clients: the training examples (x, y) of each client, by id.
        test: the server's own (x, y) to score models on.
        model: a module, whose weights are never used: every run draws w[0] afresh from the seed; or a
            factory, for modules whose layers cannot be drawn again.
        seed: of every draw in runs over this federation.
        held_out: examples of each client that are never trained on, by id.
        loss: of (outputs, targets), the mean over a batch.
        backdoor: the trigger that some clients carry, to measure how often it works.
        about: the settings that describe this federation in a config file; None if only code can make it.
    """

    is_remote: ClassVar[bool] = False  # whether the examples stay with the clients

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
            check_id(client): _make_examples(data, f"client {client}") for client, data in clients.items()
        }
        self.test = _make_examples(test, "the test set")
        self.held_out = {
            client: _make_examples(data, f"held-out part of {client}", empty=True)
            for client, data in (held_out or {}).items()
        }
        self.model = model
        check_whole("seed", seed, least=None)
        self.seed = seed
        self.loss = loss
        self.backdoor = backdoor
        self.about = about
        self._draw = _Draw.of(self)
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

    def __getstate__(self) -> dict[str, Any]:
        """Leave the drawn model out of pickles and copies: they draw it again."""
        return {**self.__dict__, "_draw": _Draw.of(self)}

    def fresh_model(self) -> nn.Module:
        """Return a copy of w[0].

        The model is drawn once, and checked then: it must read the data and draw no random numbers on the way.
        """
        if not self._draw.fits(self):
            self._draw = _Draw.of(self)
        return self._draw.copy_module()

    def without(self, forget: Forget) -> Federation:
        """Return the federation that remains when a request is served. A client with no examples left is not in it."""
        request = as_request(forget)
        self._check_request(request)
        split = {c: e.where(~request.mask(c, e.keys, e.targets)) for c, e in self.clients.items()}
        clients = {c: remaining for c, remaining in split.items() if len(remaining)}
        if not clients:
            raise RequestError(
                "nobody would remain to retrain on; leave at least one client with examples, or delete the model instead"
            )
        held = {c: e.where(~request.class_mask(e.targets)) for c, e in self.held_out.items() if c in clients}
        return self.replace(clients=clients, held_out=held)

    def replace(self, **changes: Any) -> Federation:
        """Return a federation with other values for some of the arguments."""
        kept = {
            key: getattr(self, key)
            for key in ("clients", "test", "model", "seed", "held_out", "loss", "backdoor", "about")
        }
        made = Federation(**{**kept, **changes})
        made.share_draw(self)
        return made

    def share_draw(self, other: Federation) -> None:
        """Take the fresh model from another federation if that has the same model, seed, loss and test set."""
        if other._draw.fits(self):
            self._draw = other._draw

    def fingerprints(self) -> dict[ClientId, str]:
        """Return the size and a digest of each client's data, so that no run is resumed on other data."""
        return {client: fingerprint(examples) for client, examples in sorted(self.clients.items())}

    def forgotten(self, forget: Forget) -> dict[ClientId, Examples]:
        """Return the examples that a request forgets, by client."""
        request = as_request(forget)
        self._check_request(request)
        taken = {c: e.where(request.mask(c, e.keys, e.targets)) for c, e in self.clients.items()}
        return {client: examples for client, examples in taken.items() if len(examples)}

    def _check_request(self, request: Request) -> None:
        """Refuse a request for clients, rows or classes that are not here."""
        named = [*request.clients, *request.rows]
        if unknown := [c for c in named if c not in self.clients]:
            raise RequestError(
                f"there is no client {unknown[0]!r} to forget; this federation has {_format_names(self.clients)}"
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


@dataclass(eq=False, slots=True)
class _Draw:
    """One draw of w[0], shared by the federations that were made of one another."""

    model: ModelSource
    seed: int
    loss: Loss
    test: Examples
    module: nn.Module | None = None  # None until it is needed

    @classmethod
    def of(cls, federation: Federation) -> _Draw:
        """Make the draw of a federation, without drawing yet."""
        return cls(federation.model, federation.seed, federation.loss, federation.test)

    def fits(self, federation: Federation) -> bool:
        """Whether a federation would draw and check the same model."""
        return (
            federation.model is self.model
            and federation.seed == self.seed
            and federation.loss is self.loss
            and federation.test is self.test
        )

    def copy_module(self) -> nn.Module:
        """Return a copy of the drawn model; draw and check it first if that has not been done."""
        if self.module is None:
            drawn = fresh(self.model, self.seed)
            self._check(copy.deepcopy(drawn))  # which a forward pass may change
            self.module = drawn
        return copy.deepcopy(self.module)

    def _check(self, module: nn.Module) -> None:
        """Refuse a model that cannot read the test set, and one whose forward pass draws random numbers."""
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


def fingerprint(examples: Examples) -> str:
    """Return the number of examples and a digest of their inputs, targets and keys."""
    total = blake2b(digest_size=8)
    for part in (*examples.all(), examples.keys):
        total.update(f"{part.dtype} {list(part.shape)}".encode())
        total.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{len(examples)} {total.hexdigest()}"


def check_id(client: Any) -> ClientId:
    """Return a client's id; refuse one that a request could not name."""
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


def _make_examples(data: Examples | Pair, what: str, *, empty: bool = False) -> Examples:
    try:
        examples = data if isinstance(data, Examples) else Examples.of(*data)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{what} is not a pair of arrays; give inputs and targets, (x, y)") from None
    if not len(examples) and not empty:
        raise DataError(f"{what} holds no examples; leave it out, or give it at least one")
    return examples


def _format_names(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def restore_keys(
    federation: Federation, requests: Sequence[Request], remained: Mapping[ClientId, str]
) -> Federation:
    """Return a federation with the original row keys, although forgotten rows may have been deleted from its data.

    Which rows were deleted is found by trying: none, or those of one of the requests. The right guess is the one
    under which the rows that remain have the recorded fingerprint.

    Args:
        requests: in the order in which they were served; each names all that was forgotten until then.
        remained: the fingerprint of the examples that remained after the last request, by client.
    """
    clients = {
        client: _restore_client_keys(client, examples, requests, remained.get(client, ""))
        for client, examples in federation.clients.items()
    }
    return federation.replace(clients=clients)


def _restore_client_keys(
    client: ClientId, examples: Examples, requests: Sequence[Request], remained: str
) -> Examples:
    last = requests[-1]
    if client not in last.rows:
        return examples
    for deleted in ((), *(request.rows.get(client, ()) for request in requests)):
        keys = examples.keys
        if deleted:
            original = torch.arange(len(examples) + len(deleted))
            keys = original[~torch.isin(original, torch.tensor(deleted, dtype=torch.long))]
        if len(keys) != len(examples):  # some of these rows never existed
            continue
        guess = replace(examples, keys=keys)
        if fingerprint(guess.where(~last.mask(client, keys, guess.targets))) == remained:
            return guess
    return examples


def select_held(federation: Federation, request: Request) -> Request | None:
    """Return the part of a request that names data which the federation still holds; None if it holds none of it."""
    rows = {
        client: sorted({*some} & {*federation.clients[client].keys.tolist()})
        for client, some in request.rows.items()
        if client in federation.clients
    }
    everyone = federation.clients.values() if request.classes else ()
    labels = {int(value) for examples in everyone for value in torch.unique(examples.targets).tolist()}
    held = {
        "clients": tuple(client for client in request.clients if client in federation.clients),
        "rows": {client: tuple(some) for client, some in rows.items() if some},
        "classes": tuple(number for number in request.classes if number in labels),
    }
    return Request(**held) if any(held.values()) else None
