"""Federations whose models remember what they saw, methods that pass off an old model as new, and hand-made findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import feduhb
from feduhb.audit.result import AucDifference, Interval, Roc
from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.types import Method, Updates, Work
from feduhb.methods.replay import MISSING
from feduhb.methods.retrain import Plain

LEAVERS = ("c00", "c01", "c02")
TRAINED: dict[str, Any] = {"epochs": 4, "batch_size": 20, "lr": 0.5, "engine": "loop", "show": None}
ROUNDS = 12
QUIET: dict[str, Any] = {"relearn": 0, "show": None}  # of audits


def make_wide_model() -> nn.Module:
    """Return a model that is large enough to memorize wrong labels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def load_digits(**changes: Any) -> feduhb.Federation:
    """Return five clients with 100 images to train on and 100 held out."""
    asked: dict[str, Any] = {
        "clients": 5,
        "per_client": 200,
        "held_out": 0.5,
        "model": make_wide_model,
        **changes,
    }
    return feduhb.load("digits", **asked)


def draw_federation(
    sizes: dict[str, int], *, held: int = 4, classes: int = 3, seed: int = 3
) -> feduhb.Federation:
    """Return a federation of random points with random labels: there is nothing to learn, only to memorize."""
    draw = torch.Generator().manual_seed(seed)

    def some(count: int) -> tuple[Tensor, Tensor]:
        return torch.randn(count, 6, generator=draw), torch.randint(0, classes, (count,), generator=draw)

    return feduhb.Federation(
        {client: some(size) for client, size in sizes.items()},
        some(30),
        nn.Linear(6, classes),
        held_out={client: some(held) for client in sizes} if held else None,
        seed=seed,
    )


def make_roc(auc: float, se: float = 0.01) -> Roc:
    """Return the result of an attack, with normal intervals."""

    def around(z: float) -> Interval:
        return Interval(auc - z * se, auc + z * se)

    some = Interval(0.0, 0.1)
    return Roc(auc, se, around(2.576), around(1.645), 0.01, some, 0.0, some, 500, 500)


def compare_rocs(first: Roc, second: Roc) -> AucDifference:
    """Return the difference of two results whose errors are independent."""
    value, se = first.auc - second.auc, (first.se**2 + second.se**2) ** 0.5
    wide, equal = (Interval(value - z * se, value + z * se) for z in (2.576, 1.645))
    return AucDifference(value, se, wide, equal)


class AsksNoClients(Method[Plain]):
    """The base of methods that return weights which they already have."""

    __slots__ = ()
    exact: ClassVar[bool] = True

    def init(self, params: Tensor) -> Plain:
        return Plain(params)

    def ask(self, state: Plain) -> Work | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True)
class Keeps(AsksNoClients):
    """A method that claims to retrain, trains no client, and returns the weights that it carries."""

    weights: Tensor | None = None
    epochs: int = 1
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "keeps"

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:  # noqa: ARG002
        assert self.weights is not None
        return Plain(self.weights.clone())


class Called(Keeps):
    """The same, with the old model in a field that can be called."""

    __slots__ = ()
    name: ClassVar[str] = "called"

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:  # noqa: ARG002
        old: Any = self.aggregate
        return Plain(torch.cat([p.detach().flatten() for p in old.parameters()]))


@dataclass(frozen=True, slots=True)
class Replays(AsksNoClients):
    """A method that claims to be exact, and starts from the last model of its history."""

    epochs: int = 1
    history: Any = MISSING
    clients: tuple[str, ...] = ()

    name: ClassVar[str] = "replays"
    needs_history: ClassVar[bool] = True

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:  # noqa: ARG002
        return Plain(self.history.params(self.history.rounds[-1]).clone())
