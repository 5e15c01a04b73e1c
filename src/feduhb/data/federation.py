"""A federation: clients with their examples, a test set, and the model that the clients train."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args
from weakref import WeakSet

import torch
from torch import Tensor, nn

from feduhb.core.checks import check_whole, name_kind
from feduhb.core.flat import ModelSource, copy_module, draw_model
from feduhb.core.fresh import find_unlike
from feduhb.core.inputs import Inputs, compare_inputs, count_rows, list_tensors, make_inputs
from feduhb.core.local import Augment, Loss, find_loss
from feduhb.core.modules import list_carried
from feduhb.core.scores import ScoreSource, find_scores
from feduhb.core.trial import check_fit
from feduhb.core.types import ClientId
from feduhb.data.backdoor import Backdoor
from feduhb.data.convert import read_data, to_inputs
from feduhb.data.examples import Examples, fingerprint, join_examples
from feduhb.data.request import Forget, Request, as_request, check_request, explain_unclear
from feduhb.data.standardize import ColumnChoice, standardize_parts
from feduhb.errors import ConfigError, DataError, ModelError, RequestError

Pair = Any  # (x, y), or other data that `feduhb.data.convert` reads
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
            tuple, such as {"tokens": ..., "mask": ...}, which the model gets as arguments of these names. Arrays, lists and
            pandas objects are read too, and instead of a pair a torch Dataset or DataLoader, or a Hugging Face Dataset.
        test: the server's examples, on which models are scored; or examples of each client, by id, which leave the test set
            when their client or their row is forgotten.
        model: a module, or a factory if the module's layers have no ``reset_parameters``.
        start: "fresh" draws w[0] from the seed in every run, and the weights of a module are never used. "given" starts every
            run from the module's own weights; with this you declare that they are public and never saw clients' data.
        seed: the seed of every draw in runs over this federation.
        held_out: examples of each client that are never trained on, by id.
        loss: a function of (outputs, targets) that returns the mean over a batch, or "cross_entropy", "bce_with_logits",
            "mse" or "huber".
        augment: changes the batches of clients in training: a function of a batch and of 16 numbers in [0, 1) for each row.
        scores: what models are scored by besides the loss: "accuracy", "auroc", "f1", "rmse", "mae", several of them, functions
            of (outputs, targets) by name, or `Score`s. Runs are compared by the first. None takes the accuracy of labels, and
            of logits for targets 0 and 1 with "bce_with_logits".
        backdoor: the trigger in some clients' data, to measure how often it works.
        standardize: True subtracts from each client's inputs their own mean and divides them by their own standard deviation,
            over the client's training examples; a list of numbers names the columns to standardise. Both are computed
            again when rows are forgotten. Missing values (NaN) become the mean.
        numbered_together: whether a client's training, held-out and test examples share one numbering of rows, so that
            a request for rows reaches all three.
        public: inputs of the server's own, without targets, for methods that distil on them. They are used as they are, also
            with ``standardize``.
        about: the settings that describe this federation in a config file; None if only code can make it.
    """

    is_remote: ClassVar[bool] = False  # whether the examples stay with the clients
    draws_seeds: bool = False  # whether every run draws its own seed; else all runs share the federation's

    def __init__(
        self,
        clients: Mapping[ClientId, Examples | Pair],
        test: Examples | Pair | Mapping[ClientId, Examples | Pair],
        model: ModelSource,
        *,
        seed: int = 0,
        held_out: Mapping[ClientId, Examples | Pair] | None = None,
        loss: str | Loss = nn.functional.cross_entropy,
        backdoor: Backdoor | None = None,
        about: Description | None = None,
        start: Start = "fresh",
        augment: Augment | None = None,
        standardize: ColumnChoice = False,
        numbered_together: bool = False,
        scores: ScoreSource | None = None,
        public: Any = None,
    ) -> None:
        for what, given in (("clients", clients), ("held_out", held_out or {})):
            if not isinstance(given, Mapping):
                raise DataError(
                    f"{what} is {name_kind(given)}; give examples by the ids of clients: {what}={{'c00': (x, y)}}"
                )
        self.clients = {check_id(c): _make_examples(data, f"client {c}") for c, data in clients.items()}
        self.tested: dict[ClientId, Examples] = {}  # the test set by client; empty if it is the server's own
        if isinstance(test, Mapping):
            self.tested = {check_id(c): _make_examples(data, f"test part of {c}") for c, data in test.items()}
            if not self.tested:
                raise DataError("the test set is empty; give the examples (x, y) of at least one client")
        self.test = next(iter(self.tested.values())) if self.tested else _make_examples(test, "the test set")
        held = (held_out or {}).items()
        self.held_out = {c: _make_examples(data, f"held-out part of {c}", empty=True) for c, data in held}
        # What leavers asked to forget, by client, for a run whose method asks them to work on it.
        self.leaving: dict[ClientId, Examples] = {}
        if not callable(model):  # a module is callable too
            raise ModelError(
                f"model is {model!r}; give a module, or a function that returns a new one. feduhb.load, Federation.from_table and "
                "from_huggingface know models by name too"
            )
        self.model = _keep_module(model, start)
        check_whole("seed", seed, least=None)
        self.seed = operator.index(seed)
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
        self.standardize = standardize
        self.numbered_together = numbered_together
        self.scores = find_scores(scores)
        if not self.clients:
            raise DataError("a federation needs at least one client; give clients={'name': (x, y)}")
        if strangers := [c for c in self.held_out if c not in self.clients]:
            raise DataError(f"held_out names {strangers[0]}, which is not a client; use the ids of clients")
        named = {f"client {c}": e for c, e in self.clients.items()}
        named.update({f"held-out part of {c}": e for c, e in self.held_out.items()})
        named.update({f"test part of {c}": e for c, e in self.tested.items()})
        is_scaled = standardize is not False
        for what, examples in named.items():
            pair = [(one.unscaled if is_scaled else one).x for one in (examples, self.test)]
            if (difference := compare_inputs(*pair)) is not None:
                raise DataError(f"{what} holds inputs {difference}; make them alike")
        if is_scaled:
            self._standardize()
        self.public = None if public is None else _read_public(public, self.test)
        if self.tested:
            self.test = join_examples([*self.tested.values()])
        self._draw = _Draw.of(self)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        client: str,
        target: str | Sequence[str],
        test: Any = 0.2,
        held_out: float = 0.25,
        row: str | None = None,
        numbers: Sequence[str] | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        dates: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        classes: Sequence[Any] | None = None,
        scaling: Mapping[str, Sequence[float]] | None = None,
        fills: Mapping[str, float | str] | None = None,
        standardize: bool = True,
        model: str | ModelSource | None = None,
        loss: str | None = None,
        seed: int = 0,
        **more: Any,
    ) -> Federation:
        """Return the federation of a table in which a column names the client of each row.

        Nothing is inferred from the rows, because what is inferred from all rows would carry a leaver's data into the
        inputs of the others. Columns that no argument names are numbers; `feduhb.describe_table` drafts the other declarations.

        Args:
            table: a .csv, .tsv or .parquet file, or a pandas DataFrame.
            client: the column that names the client.
            target: the column to predict; several for multi-label targets or several numbers.
            test: the share of every client's rows on which models are scored, or a table of the server's own. A row is
                assigned by a hash of the seed, its client and itself, so it stays where it is when others are deleted.
            held_out: the share of the other rows that is never trained on.
            row: a column of whole numbers by which requests name rows, such as the number of a patient, who may have several.
                Without it, the rows of a client are counted from 0 in the order of the table.
            numbers: the columns of numbers; None takes all columns that no other argument names.
            categories: the values of text columns, {"sex": ["F", "M"]}; "*" stands for all values that are not listed.
            dates: columns of dates, with the day to count from: {"admitted": "2000-01-01"}.
            drop: columns to leave out.
            classes: the values of the target, in their order; None is 0 and 1. A loss other than cross-entropy needs none.
            scaling: what to subtract from a column and what to divide it by, {"age": (50, 20)}.
            fills: what stands for a missing value: a number, a category, or "mean", the mean of the client's own rows.
            standardize: standardise the other numbers of each client by the client's own mean and standard deviation.
            model: "mlp", "softmax", ..., a module or a factory; None is "mlp".
            loss: "cross_entropy", "bce_with_logits", "mse" or "huber".
            seed: of the split and of every run over this federation.
            more: further arguments of `Federation`.
        """
        from feduhb.data.load import make_table_federation

        settings = {
            "client": client, "target": target, "test": test, "row": row, "numbers": numbers, "categories": categories or {},
            "dates": dates or {}, "drop": drop, "classes": classes, "scaling": scaling or {}, "fills": {} if fills is None else fills,
            "standardize": standardize, "loss": loss,
        }  # fmt: skip
        return make_table_federation(table, settings, held_out=held_out, model=model, seed=seed, **more)

    @classmethod
    def from_huggingface(
        cls,
        ds: Any,
        *,
        client: str,
        target: str,
        columns: Sequence[str] | None = None,
        row: str | None = None,
        test: Any = None,
        held_out: float = 0.25,
        classes: Sequence[Any] | None = None,
        model: str | ModelSource = "mlp",
        seed: int = 0,
        **more: Any,
    ) -> Federation:
        """Return a federation of a Hugging Face data set, one column of which names the client of each row.

        Several input columns become a dict of tensors by their names. If all inputs are single values, such as numbers
        and categories, they are read as by `from_table`.

        Args:
            ds: a `datasets.Dataset`, or a `DatasetDict` with the splits train and test.
            client: the column with the ids of clients.
            target: the column with the targets.
            columns: the input columns; None takes all others.
            row: the column with the keys of rows, whole numbers by which requests name them; None takes the positions among
                the rows of the client, which change if a row is deleted from the data set.
            test: a data set of the server, or the share of each client's rows that are for testing; None takes the split
                test, or else 0.2.
            held_out: the share of each client's other rows that is never trained on.
            classes: the classes in the order of their numbers, if the column is not a `ClassLabel`, which declares them.
            model: a module or a factory, or the name of a model.
            seed: the seed of the split and of every run over this federation.
            more: other arguments of the federation, such as loss; for a table, of `from_table`.
        """
        from feduhb.data.huggingface import read_huggingface

        return read_huggingface(
            ds, client=client, target=target, columns=columns, row=row, test=test, held_out=held_out, classes=classes, model=model,
            seed=seed, more=more,
        )  # fmt: skip

    def __repr__(self) -> str:
        sizes = [len(e) for e in self.clients.values()]
        return f"Federation({len(sizes)} clients, {min(sizes)} to {max(sizes)} examples each, {len(self.test)} for testing, seed {self.seed})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the drawn model out of pickles and copies, which draw it again."""
        return {**self.__dict__, "_draw": _Draw.of(self)}

    def _standardize(self) -> None:
        """Standardise the examples of every client that are not standardised yet, and the server's own test set by itself."""
        standardize_parts(self.clients, self.held_out, self.tested, self.standardize)
        if not self.tested and self.test.plain is None:
            own = {"the test set": self.test}
            standardize_parts(own, {}, {}, self.standardize)
            self.test = own["the test set"]

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
        check_request(request, self)
        return self.leave_out(request)

    def leave_out(self, request: Request) -> Federation:
        """Return the federation without the data that a request names, as far as it is here."""
        masks = {c: request.mask(c, e.keys, e.targets) for c, e in self.clients.items()}
        changed = {c for c, mask in masks.items() if mask.any()}  # these are standardised anew

        def keep(client: ClientId, examples: Examples, mask: Tensor) -> Examples:
            if client in changed:
                return examples.unscaled.where(~mask)
            return examples.where(~mask) if mask.any() else examples

        split = {c: keep(c, e, masks[c]) for c, e in self.clients.items()}
        clients = {c: remaining for c, remaining in split.items() if len(remaining)}
        if not clients:
            raise RequestError(
                "no client would remain to train on; keep at least one client with examples, or delete the model instead"
            )
        held = {
            c: keep(c, e, self._mask_held(request, c, e)) for c, e in self.held_out.items() if c in clients
        }
        rows = request.rows if self.numbered_together else {}
        tested = {c: keep(c, e, _mask_named(request.clients, rows, c, e)) for c, e in self.tested.items()}
        if tested and not any(map(len, tested.values())):
            raise RequestError(
                "no test example would remain to score models on; give the federation test data of the server's own"
            )
        is_same = all(tested[c] is e for c, e in self.tested.items())
        more = {} if is_same else {"test": {c: e for c, e in tested.items() if len(e)}}
        return self.replace(clients=clients, held_out=held, **more)

    def _mask_held(self, request: Request, client: ClientId, examples: Examples) -> Tensor:
        """Return a mask of the held-out examples of a remaining client that a request forgets."""
        if self.numbered_together:
            return request.mask(client, examples.keys, examples.targets)
        return request.class_mask(examples.targets)

    def _list_unscaled(self) -> dict[str, Any]:
        """Return all examples before they were standardised, as changes for `replace`."""
        found: dict[str, Any] = {
            name: {c: e.unscaled for c, e in getattr(self, name).items()} for name in ("clients", "held_out")
        }
        tested = {c: e.unscaled for c, e in self.tested.items()}
        return found | {"test": tested or self.test.unscaled}

    @property
    def unscaled_test(self) -> Examples:
        """The test set before it was standardised."""
        return (
            join_examples([e.unscaled for e in self.tested.values()]) if self.tested else self.test.unscaled
        )

    def replace(self, **changes: Any) -> Federation:
        """Return a federation with other values for some of the arguments."""
        kept = {name: getattr(self, name) for name in ARGUMENTS}
        if self.tested:
            kept["test"] = self.tested
        if "standardize" in changes:
            kept |= self._list_unscaled()
        made = Federation(**{**kept, **changes})
        if not {"test", "standardize"} & {*changes}:
            made.test = self.test  # the same object, so that the draw is shared
        made.share_draw(self)
        return made

    def with_leaving(self, leaving: Mapping[ClientId, Examples]) -> Federation:
        """Return the federation for an engine that may let leavers work on what they asked to forget."""
        made = self.replace()
        made.leaving = dict(leaving)
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
        return {client: self.fingerprint(client) for client in sorted(self.clients)}

    def fingerprint(self, client: ClientId) -> str:
        """Return the number of training examples of a client and a digest of them.

        If all of its rows are numbered together, the numbers of the others are digested too, and the number of all rows follows.
        """
        if not self.numbered_together:
            return fingerprint(self.clients[client])
        others = [part[client].keys for part in (self.held_out, self.tested) if client in part]
        more = torch.cat([torch.zeros(0, dtype=torch.int64), *others])
        return f"{fingerprint(self.clients[client], more)} {len(self.clients[client]) + len(more)}"

    def forgotten(self, forget: Forget) -> dict[ClientId, Examples]:
        """Return the examples that a request forgets, by client."""
        request = as_request(forget)
        check_request(request, self)
        taken = {c: e.where(request.mask(c, e.keys, e.targets)) for c, e in self.clients.items()}
        return {client: examples for client, examples in taken.items() if len(examples)}

    def list_keys(self, client: ClientId) -> set[int]:
        """Return the numbers by which a request can name rows of a client."""
        parts = [self.clients[client]]
        if self.numbered_together:
            parts += [some[client] for some in (self.held_out, self.tested) if client in some]
        return {key for part in parts for key in part.keys.tolist()}


# A federation has each of its arguments as an attribute.
ARGUMENTS = tuple(inspect.signature(Federation).parameters)
# Those that classmethods take for the federation.
PASSED = ("augment", "backdoor", "public", "scores", "start")


def check_passed(name: str, more: Mapping[str, Any], passed: Sequence[str] = PASSED) -> None:
    """Raise ConfigError if a classmethod is given an argument that neither it nor the federation takes from it."""
    if unknown := [key for key in more if key not in passed]:
        raise ConfigError(
            f"{name} has no argument {unknown[0]!r}; besides its own it takes {', '.join(sorted(passed))}"
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
                check_fit(copy_module(drawn), self.loss, self.test, self.augment)
            self.module, self.is_checked = drawn, True
        return copy_module(self.module)


def _mask_named(
    clients: Sequence[ClientId], rows: Mapping[ClientId, Sequence[int]], client: ClientId, examples: Examples
) -> Tensor:
    """Return a mask of the examples of a client that are named, as a whole client or by their rows."""
    if client in clients:
        return torch.ones(len(examples), dtype=torch.bool)
    return examples.mask_keys(rows.get(client, ()))


def _kind(y: Tensor) -> tuple[torch.dtype, torch.Size]:
    return y.dtype, y.shape[1:]


def check_id(client: Any) -> ClientId:
    """Return a client's id; raise DataError if a request could not name it."""
    if not isinstance(client, str):
        raise DataError(f"{client!r} cannot be a client's id, because it is not text; write {str(client)!r}")
    is_plain = client == client.strip() and not set(",:+\n") & set(client)
    if not is_plain or client in ("", "class"):
        raise DataError(
            f"{client!r} cannot be a client's id; use a word other than class, without commas, colons, plus signs or spaces around it"
        )
    if (unclear := explain_unclear(client)) is not None:
        raise DataError(unclear)
    return client


def _read_public(data: Any, test: Examples) -> Inputs:
    """Return the inputs that the server holds; raise DataError if there are none, or not of the test set's kind."""
    public = make_inputs(to_inputs(data))
    if not (list_tensors(public)[0].dim() and count_rows(public)):
        raise DataError("public holds no inputs; leave it out, or give at least one row")
    if (difference := compare_inputs(public, test.x)) is not None:
        raise DataError(
            f"public holds inputs {difference}; make them alike, and give inputs alone, without targets"
        )
    return public


def _make_examples(data: Examples | Pair, what: str, *, empty: bool = False) -> Examples:
    try:
        examples = data if isinstance(data, Examples) else Examples.of(*read_data(data))
    except DataError as error:
        raise DataError(f"{what}: {error}") from error.__cause__
    if not len(examples) and not empty:
        raise DataError(f"{what} holds no examples; leave it out, or give it at least one")
    return examples
