"""The paper's theorem on a problem where all its constants are known: l2-regularised softmax regression.

    ‖w_uhb[t] - w_retrain[t]‖ <= ρ^t ‖w_uhb[0] - w_retrain[0]‖ + (α G / (1 - β)) (1 - ρ^t) / (1 - ρ),    ρ = sqrt(1 - α μ)

The proof's last step drops a factor β; with it the second term is α β G / (1 - β) ..., the tight bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.types import ClientId, Engine, Method, Updates, Work
from feduhb.data.federation import Examples, Federation
from feduhb.errors import ConfigError
from feduhb.models import softmax
from feduhb.runs.loop import run


@dataclass(frozen=True, slots=True)
class Constants:
    """What the theorem knows of a loss; α = 1 / L is the largest step it speaks of."""

    strong: float  # μ: the loss curves at least so much in every direction
    smooth: float  # L: and at most so much

    def __post_init__(self) -> None:
        if not 0 < self.strong <= self.smooth < math.inf or self.shrink >= 1:
            raise ConfigError(
                f"mu is {self.strong:g} and L {self.smooth:g}; the theorem needs 0 < mu <= L, and a mu / L that floats can tell from 0: give a larger regulariser, such as 0.02"
            )

    @property
    def step_size(self) -> float:
        """α."""
        return 1 / self.smooth

    @property
    def shrink(self) -> float:
        """ρ: what the distance shrinks by a round, as the paper has it."""
        return shrink(self.step_size, self.strong)


def shrink(step_size: float, strong: float) -> float:
    """ρ = sqrt(1 - α μ)."""
    return math.sqrt(max(0.0, 1 - step_size * strong))


def push(step_size: float, momentum: float, largest: float, *, tight: bool) -> float:
    """Return what momentum may add to the distance in one round: α G / (1 - β), or α β G / (1 - β) where tight."""
    return (momentum if tight else 1.0) * step_size * largest / (1 - momentum)


def bound(rounds: int, rho: float, pushed: float, apart: float = 0.0) -> list[float]:
    """Bound the distance after 0 to ``rounds`` rounds, for a start ``apart`` and a `push` a round."""
    return [rho**t * apart + pushed * (1 - rho**t) / (1 - rho) for t in range(rounds + 1)]


def limit(rho: float, pushed: float) -> float:
    """Return what the bound tends to."""
    return pushed / (1 - rho)


def regression(federation: Federation) -> Federation:
    """Return softmax regression in float64 on the same clients, each example divided by its own norm.

    Raw images of 784 pixels in [-1, 1] make L some hundreds and the steps tiny. An example's own norm is no
    other client's data, so scaling by it lets nothing of a leaver flow to those who remain.
    """
    everyone = (federation.test, *federation.clients.values())
    classes = 1 + max(int(examples.targets.max()) for examples in everyone)
    module = softmax(federation.test.x.shape[1:], classes).double()
    clients = {client: _scaled(examples) for client, examples in federation.clients.items()}
    return federation.replace(clients=clients, test=_scaled(federation.test), held_out={}, model=module)


def _scaled(examples: Examples) -> tuple[Tensor, Tensor]:
    x, y = examples.all()
    flat = x.double().flatten(1)
    norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp_min(1e-12)  # an empty image stays one
    return (flat / norms).view(x.shape), y


def constants(federation: Federation, regulariser: float) -> Constants:
    """Return μ and L of the clients' mean loss plus regulariser / 2 ‖w‖², biases included.

        μ = regulariser,    L = μ + λ_max(X'X / n) / 2,    a row of X an example and a 1 for the bias

    L holds at every w: the Hessian of an example is S ⊗ xx' with S = diag(p) - pp', whose eigenvalues are in [0, 1/2].
    """
    gram, count = torch.zeros(()), 0
    for examples in federation.clients.values():
        x = examples.all()[0].double().flatten(1)
        rows = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        gram, count = gram + rows.T @ rows, count + len(rows)
    largest = float(torch.linalg.eigvalsh(gram / count)[-1])
    return Constants(regulariser, regulariser + largest / 2)


@dataclass(frozen=True, slots=True)
class Gradients:
    """An engine that notes ‖∇L(w[t])‖, the norm of the mean of the clients' gradients, of each round."""

    engine: Engine
    norms: list[float] = field(default_factory=list)

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's own."""
        return self.engine.about

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Pass the answers on, all of a round at once."""
        blocks = list(self.engine.train(work, clients, round))
        self.norms.append(float(torch.linalg.vector_norm(weighted_mean(blocks))))
        return iter(blocks)


class Path(NamedTuple):
    """Where a method went."""

    weights: Tensor  # [T + 1, P] w[0] .. w[T]
    gradients: list[float]  # ‖∇L(w[0])‖ .. ‖∇L(w[T])‖

    def gap(self, strong: float) -> float:
        """Bound the distance from the end to the optimum: ‖w - w*‖ <= ‖∇L(w)‖ / μ."""
        return self.gradients[-1] / strong


def follow(
    method: Method[Any],
    engine: Engine,
    clients: Sequence[ClientId],
    start: Tensor,
    rounds: int,
    show: Callable[[Any], None] | None = None,
) -> Path:
    """Run a method that asks for gradients, and keep every model and every gradient's norm."""
    noting = Gradients(engine)
    weights = [start]
    for state, record in run(method, noting, clients, method.init(start), rounds=rounds):
        weights.append(state.params)
        if show:
            show(record)
    for _ in noting.train(Work(weights[-1], epochs=0), sorted(clients), rounds):
        pass
    return Path(torch.stack(weights), noting.norms)


def distances(one: Path, other: Path) -> list[float]:
    """Return ‖w[t] - w'[t]‖ after every round, the start first."""
    return torch.linalg.vector_norm(one.weights - other.weights, dim=1).tolist()


def largest_gradient(*paths: Path) -> float:
    """G: the largest gradient on any of these paths.

    Differs from the paper: it bounds every client's gradient; the proof needs only their mean's, which is smaller.
    """
    return max(max(path.gradients) for path in paths)
