"""A federation: clients with their examples, a test set, and the model that the clients train."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Protocol, get_args
from weakref import WeakSet

import torch
from torch import Tensor, nn

from feduhb.core.checks import check_whole
from feduhb.core.flat import ModelSource, copy_module, draw_model
from feduhb.core.fresh import find_unlike
from feduhb.core.inputs import compare_inputs, list_tensors, make_inputs, map_tensors
from feduhb.core.local import Augment, Loss, find_loss
from feduhb.core.modules import list_carried
from feduhb.core.scores import ScoreSource, find_scores
from feduhb.core.trial import check_fit
from feduhb.core.types import ClientId
from feduhb.data.backdoor import Backdoor
from feduhb.data.request import Forget, Request, as_request, explain_unclear
from feduhb.errors import DataError, ModelError, RequestError


@dataclass(frozen=True, slots=True)
class Examples:
    """Some rows of a data set. Federations share its tensors and never write to them.

    Requests name a row by its key, the position of the row in the data that the client joined with. A row keeps
    its key when other rows are forgotten.
    """

    x: Any  # [N, ...] inputs, shared: a tensor, or several in a dict or tuple (`feduhb.core.inputs.Inputs`)
    y: Tensor  # [N, ...] targets, shared
    rows: Tensor  # [n] positions in x and y
    keys: Tensor  # [n] positions in the data that the client joined with
    marked: Tensor | None = None  # [n] mask of the canaries; None: there are none

    @classmethod
    def of(cls, x: Any, y: Any, rows: Tensor | None = None) -> Examples:
        """Return examples made of all rows, or of some rows, of two tensors or arrays."""
        inputs, targets = make_inputs(x), torch.as_tensor(y)
        first = list_tensors(inputs)[0]
        if first.dim() < 1 or targets.dim() < 1 or len(first) != len(targets):
            shapes = f"{list(first.shape)} inputs do not match {list(targets.shape)} targets"
            raise DataError(f"{shapes}; give one target for each input")
        chosen = torch.arange(len(first)) if rows is None else rows
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

    def batch(self, positions: Tensor) -> tuple[Any, Tensor]:
        """Return copies of the inputs and targets at some positions."""
        rows = self.rows[positions]
        return map_tensors(lambda part: part[rows], self.x), self.y[rows]

    def all(self) -> tuple[Any, Tensor]:
        """Return copies of all inputs and targets, in their order."""
        return map_tensors(lambda part: part[self.rows], self.x), self.targets

    @property
    def canaries(self) -> Examples:
        """The rows that are canaries."""
        return self.where(torch.zeros(len(self), dtype=torch.bool) if self.marked is None else self.marked)


Pair = tuple[Any, Any]
Start = Literal["fresh", "given"]


class Description(Protocol):
    """Settings from which a federation can be made again."""

    def keep_data(self, seed: int) -> Description:
        """Return the settings for runs with other seeds than ``seed``, which made the data."""
        ...


class Federation:
    """Clients, a test set and a model.

    Args:
        clients: the training examples (x, y) of each client, by id. The inputs x are a tensor, or several in a dict or
            tuple, such as {"tokens": ..., "mask": ...}, which the model gets as arguments of these names.
        test: the server's examples (x, y), on which models are scored.
        model: a module, or a factory if the module's layers have no ``reset_parameters``.
        start: "fresh" draws w[0] from the seed in every run, and the weights of a module are never used. "given" starts every
            run from the module's own weights; by this you declare that they are public and never saw clients' data.
        seed: the seed of every draw in runs over this federation.
        held_out: examples of each client that are never trained on, by id.
        loss: a function of (outputs, targets) that returns the mean over a batch, or "cross_entropy", "bce_with_logits",
            "mse" or "huber".
        augment: changes the batches of clients in training: a function of a batch and of 16 numbers in [0, 1) for each row.
        scores: what models are scored by beside the loss: "accuracy", "auroc", "f1", "rmse", "mae", several of them, functions
            of (outputs, targets) by name, or `Score`s. Runs are compared by the first. None takes the accuracy of labels, and
            of logits for targets 0 and 1 with "bce_with_logits".
        backdoor: the trigger in some clients' data, to measure how often it works.
        about: the settings that describe this federation in a config file; None if only code can make it.
    """

    is_remote: ClassVar[bool] = False  # whether the examples stay with the clients
    draws_seeds: bool = False  # whether every run draws its own seed; else all runs share the federation's

    def __init__(
        self,
        clients: Mapping[ClientId, Examples | Pair],
        test: Examples | Pair,
        model: ModelSource,
        *,
        seed: int = 0,
        held_out: Mapping[ClientId, Examples | Pair] | None = None,
        loss: str | Loss = nn.functional.cross_entropy,
        backdoor: Backdoor | None = None,
        about: Description | None = None,
        start: Start = "fresh",
        augment: Augment | None = None,
        scores: ScoreSource | None = None,
    ) -> None:
        for what, given in (("clients", clients), ("held_out", held_out or {})):
            if not isinstance(given, Mapping):
                raise DataError(
                    f"{what} is a {type(given).__name__}; give examples by the ids of clients: {what}={{'c00': (x, y)}}"
                )
        self.clients = {check_id(c): _make_examples(data, f"client {c}") for c, data in clients.items()}
        self.test = _make_examples(test, "the test set")
        held = (held_out or {}).items()
        self.held_out = {c: _make_examples(data, f"held-out part of {c}", empty=True) for c, data in held}
        self.model = _keep_module(model, start)
        check_whole("seed", seed, least=None)
        self.seed = seed
        self.loss = find_loss(loss)
        self.backdoor = backdoor
        self.about = about
        if start not in get_args(Start):
            raise ModelError(
                f"start is {start!r}; give 'fresh', or 'given' for a module whose weights are public"
            )
        self.start: Start = start
        if augment is not None and not callable(augment):
            raise DataError(
                f"augment is {augment!r}; give a function of a batch and of 16 numbers for each row"
            )
        self.augment = augment
        self.scores = find_scores(scores)
        self._draw = _Draw.of(self)
        if not self.clients:
            raise DataError("a federation needs at least one client; give clients={'name': (x, y)}")
        if strangers := [c for c in self.held_out if c not in self.clients]:
            raise DataError(f"held_out names {strangers[0]}, which is not a client; use the ids of clients")
        named = {f"client {c}": e for c, e in self.clients.items()}
        named.update({f"held-out part of {c}": e for c, e in self.held_out.items()})
        for what, examples in named.items():
            if (difference := compare_inputs(examples.x, self.test.x)) is not None:
                raise DataError(f"{what} holds inputs {difference}; make them alike")

    def __repr__(self) -> str:
        sizes = [len(e) for e in self.clients.values()]
        return f"Federation({len(sizes)} clients, {min(sizes)} to {max(sizes)} examples each, {len(self.test)} for testing, seed {self.seed})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the drawn model out of pickles and copies, which draw it again."""
        return {**self.__dict__, "_draw": _Draw.of(self)}

    def fresh_model(self) -> nn.Module:
        """Return a copy of w[0], which is drawn and checked at the first call."""
        if not self._draw.fits(self):
            self._draw = _Draw.of(self)
        module = self._draw.copy_module()
        for client in self._list_unlike():
            try:
                check_fit(copy.deepcopy(module), self.loss, self.clients[client], self.augment)
            except ModelError as error:
                raise ModelError(f"client {client}: {error}") from error
        return module

    def _list_unlike(self) -> list[ClientId]:
        """Return a client for each type and shape of targets that is not the test set's, such as probabilities of classes."""
        kinds = {} if self.is_remote else {_kind(e.y): client for client, e in self.clients.items()}
        return [client for kind, client in kinds.items() if kind != _kind(self.test.y)]

    def explain_unused(self) -> str | None:
        """Return a notice if the model is a module whose own weights, which no run uses, do not look like a fresh draw."""
        is_drawn = isinstance(self.model, nn.Module) and self.start == "fresh"
        name = find_unlike(self.model, self.seed) if is_drawn else None  # pyright: ignore[reportArgumentType]
        if name is None:
            return None
        return (
            f"the weights that the module holds are not used: every run draws them anew from its seed, by the reset_parameters of "
            f"the layers, and {name} does not look like such a draw. To draw weights in another way, give a factory: model=make_net"
        )

    def without(self, forget: Forget) -> Federation:
        """Return the federation without the data that a request forgets, and without clients that have no data left."""
        request = as_request(forget)
        self._check_request(request)
        split = {c: e.where(~request.mask(c, e.keys, e.targets)) for c, e in self.clients.items()}
        clients = {c: remaining for c, remaining in split.items() if len(remaining)}
        if not clients:
            raise RequestError(
                "no client would remain to train on; keep at least one client with examples, or delete the model instead"
            )
        held = {c: e.where(~request.class_mask(e.targets)) for c, e in self.held_out.items() if c in clients}
        return self.replace(clients=clients, held_out=held)

    def replace(self, **changes: Any) -> Federation:
        """Return a federation with other values for some of the arguments."""
        names = (
            "clients",
            "test",
            "model",
            "seed",
            "held_out",
            "loss",
            "backdoor",
            "about",
            "start",
            "augment",
            "scores",
        )
        made = Federation(**{**{name: getattr(self, name) for name in names}, **changes})
        made.share_draw(self)
        return made

    def reseed(self, seed: int) -> Federation:
        """Return the federation with another seed for its runs: the same data, but another fresh model and other batches."""
        if seed == self.seed:
            return self
        return self.replace(seed=seed, about=self.about and self.about.keep_data(self.seed))

    def share_draw(self, other: Federation) -> None:
        """Use the fresh model of another federation if it has the same model, seed, loss and test set.

        If only the seed differs, the model is drawn again but not checked again.
        """
        if other._draw.fits(self):
            self._draw = other._draw
        else:
            self._draw.is_checked = other._draw.is_checked and other._draw.has_parts_of(self)

    def fingerprints(self) -> dict[ClientId, str]:
        """Return the size and a digest of each client's data, by which a run recognises its data."""
        return {client: fingerprint(examples) for client, examples in sorted(self.clients.items())}

    def forgotten(self, forget: Forget) -> dict[ClientId, Examples]:
        """Return the examples that a request forgets, by client."""
        request = as_request(forget)
        self._check_request(request)
        taken = {c: e.where(request.mask(c, e.keys, e.targets)) for c, e in self.clients.items()}
        return {client: examples for client, examples in taken.items() if len(examples)}

    def _check_request(self, request: Request) -> None:
        """Raise RequestError if a request names clients, rows or classes that this federation does not have."""
        named = [*request.clients, *request.rows]
        if unknown := [c for c in named if c not in self.clients]:
            some = ", ".join([*self.clients][:8]) + (" and others" if len(self.clients) > 8 else "")
            # c09 is never meant by c03.
            alike = [c for c in self.clients if _read_numbers(c) == _read_numbers(unknown[0])]
            near = difflib.get_close_matches(unknown[0], alike, n=1)
            meant = f"did you mean {near[0]}? The" if near else "the"
            raise RequestError(f"there is no client {unknown[0]!r}; {meant} clients are {some}")
        for client, rows in request.rows.items():
            if missing := sorted(set(rows) - set(self.clients[client].keys.tolist())):
                raise RequestError(
                    f"client {client} has no row {missing[0]}, or it was forgotten before: {len(self.clients[client])} rows remain; "
                    "count rows from 0 in the data that the client joined with"
                )
        if request.classes:
            for examples in self.clients.values():
                request.class_mask(examples.targets[:1])
            present = {int(v) for e in self.clients.values() for v in torch.unique(e.targets).tolist()}
            if missing := sorted(set(request.classes) - present):
                raise RequestError(
                    f"no client holds class {missing[0]}; the classes are {', '.join(map(str, sorted(present)))}"
                )


KEPT: WeakSet[nn.Module] = WeakSet()  # copies that federations share and nobody changes


def _keep_module(model: ModelSource, start: Start) -> ModelSource:
    """Return a copy of a module whose own values count, so that a later change of it does not reach a run."""
    if not isinstance(model, nn.Module) or model in KEPT or not (start == "given" or list_carried(model)):
        return model
    kept = copy_module(model)
    KEPT.add(kept)
    return kept


@dataclass(eq=False, slots=True)
class _Draw:
    """One draw of w[0], shared by federations with the same model, seed, loss and test set."""

    model: ModelSource
    seed: int
    loss: Loss
    test: Examples
    start: Start
    augment: Augment | None
    module: nn.Module | None = None  # None until it is needed
    # Whether the model was found to be fresh and to fit its data, with this seed or another.
    is_checked: bool = False

    @classmethod
    def of(cls, federation: Federation) -> _Draw:
        """Return the draw of a federation, without drawing yet."""
        federated = (federation.loss, federation.test, federation.start, federation.augment)
        return cls(federation.model, federation.seed, *federated)

    def fits(self, federation: Federation) -> bool:
        """Return whether a federation has this model, seed, loss and test set, so that it can share the draw."""
        return federation.seed == self.seed and self.has_parts_of(federation)

    def has_parts_of(self, federation: Federation) -> bool:
        """Return whether a federation has this model, start, loss, augmentation and test set."""
        names = ("model", "loss", "test", "augment")
        alike = all(getattr(federation, name) is getattr(self, name) for name in names)
        return alike and federation.start == self.start

    def copy_module(self) -> nn.Module:
        """Return a copy of the model; draw and check it first if that has not been done."""
        if self.module is None:
            drawn = draw_model(self.model, self.seed, check=not self.is_checked, given=self.start == "given")
            if not self.is_checked:  # the trial changes the module
                check_fit(copy.deepcopy(drawn), self.loss, self.test, self.augment)
            self.module, self.is_checked = drawn, True
        return copy_module(self.module)


def _kind(y: Tensor) -> tuple[torch.dtype, torch.Size]:
    return y.dtype, y.shape[1:]


def fingerprint(examples: Examples) -> str:
    """Return the number of examples and a digest of their inputs, targets and keys."""
    total = blake2b(digest_size=8)
    x, y = examples.all()
    if isinstance(x, dict):
        total.update(repr([*x]).encode())
    for part in (*list_tensors(x), y, examples.keys):
        total.update(f"{part.dtype} {list(part.shape)}".encode())
        total.update(part.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{len(examples)} {total.hexdigest()}"


def check_id(client: Any) -> ClientId:
    """Return a client's id; raise DataError if a request could not name it."""
    is_plain = isinstance(client, str) and client == client.strip() and not set(",:+\n") & set(client)
    if not is_plain or client in ("", "class"):
        raise DataError(
            f"{client!r} cannot be a client's id; use a word other than class, without commas, colons, plus signs or spaces around it"
        )
    if (unclear := explain_unclear(client)) is not None:
        raise DataError(unclear)
    return client


def _read_numbers(client: ClientId) -> list[int]:
    return [int(digits) for digits in re.findall("[0-9]+", str(client))]


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

    def restore(client: ClientId, examples: Examples) -> Examples:
        if client not in last.rows:
            return examples
        for deleted in ((), *(request.rows.get(client, ()) for request in requests)):
            keys = examples.keys
            if deleted:
                original = torch.arange(len(examples) + len(deleted))
                keys = original[~torch.isin(original, torch.tensor(deleted, dtype=torch.long))]
            if len(keys) != len(examples):  # a request named rows that never existed
                continue
            guess = replace(examples, keys=keys)
            remaining = guess.where(~last.mask(client, keys, guess.targets))
            if fingerprint(remaining) == remained.get(client, ""):
                return guess
        return examples

    return federation.replace(clients={c: restore(c, e) for c, e in federation.clients.items()})


def select_held(federation: Federation, request: Request) -> Request | None:
    """Return the part of a request whose data a federation still holds; None if it holds none of it."""
    rows = {
        client: sorted({*some} & {*federation.clients[client].keys.tolist()})
        for client, some in request.rows.items()
        if client in federation.clients
    }
    everyone = federation.clients.values() if request.classes else ()
    labels = {int(value) for examples in everyone for value in torch.unique(examples.targets).tolist()}
    clients = tuple(client for client in request.clients if client in federation.clients)
    some_rows = {client: tuple(some) for client, some in rows.items() if some}
    classes = tuple(number for number in request.classes if number in labels)
    return Request(clients, some_rows, classes) if clients or some_rows or classes else None
