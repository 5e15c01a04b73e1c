"""The paper's theorem on a problem where all its constants are known: l2-regularised softmax regression.

    ‖w_uhb[t] - w_retrain[t]‖ <= ρ^t ‖w_uhb[0] - w_retrain[0]‖ + (α G / (1 - β)) (1 - ρ^t) / (1 - ρ),    ρ = sqrt(1 - α μ)

The proof's last step drops a factor β; with it the second term is α β G / (1 - β) ..., the tight bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from feduhb import Federation, Method, Updates, Work, weighted_mean
from feduhb.core import ClientId, Engine
from feduhb.data import Examples
from feduhb.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of a loss. α = 1 / L is the largest step that the theorem allows."""

    strong: float  # μ: the least curvature of the loss in any direction
    smooth: float  # L: the largest curvature

    def __post_init__(self) -> None:
        if not 0 < self.strong <= self.smooth < math.inf or self.shrink >= 1:
            raise ConfigError(
                f"mu is {self.strong:g} and L {self.smooth:g}; the theorem needs 0 < mu <= L, and mu / L above the precision of floats; give a larger regulariser, such as 0.02"
            )

    @property
    def step_size(self) -> float:
        """The step size α."""
        return 1 / self.smooth

    @property
    def shrink(self) -> float:
        """The factor ρ by which the distance shrinks in a round, by the paper."""
        return compute_rho(self.step_size, self.strong)


def compute_rho(step_size: float, strong: float) -> float:
    """Return ρ = sqrt(1 - α μ)."""
    return math.sqrt(max(0.0, 1 - step_size * strong))


def compute_push(step_size: float, momentum: float, largest: float, *, tight: bool) -> float:
    """Return what momentum may add to the distance in one round: α G / (1 - β), or α β G / (1 - β) if tight."""
    return (momentum if tight else 1.0) * step_size * largest / (1 - momentum)


def bound_distances(rounds: int, rho: float, pushed: float, apart: float = 0.0) -> list[float]:
    """Return the bound on the distance after 0 to ``rounds`` rounds, for a start ``apart`` and a push a round."""
    return [rho**t * apart + pushed * (1 - rho**t) / (1 - rho) for t in range(rounds + 1)]


def find_limit(rho: float, pushed: float) -> float:
    """Return the limit of the bound."""
    return pushed / (1 - rho)


def make_regression(federation: Federation) -> Federation:
    """Return softmax regression in float64 on the same clients, each example divided by its own norm.

    Raw images of 784 pixels in [-1, 1] make L some hundreds and the steps tiny. An example's own norm is not
    another client's data, so scaling by it tells the remaining clients nothing of a leaver.
    """
    everyone = (federation.test, *federation.clients.values())
    classes = 1 + max(int(examples.targets.max()) for examples in everyone)
    inputs = math.prod(federation.test.x.shape[1:])
    module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes)).double()
    clients = {client: _scale_examples(examples) for client, examples in federation.clients.items()}
    return federation.replace(
        clients=clients, test=_scale_examples(federation.test), held_out={}, model=module
    )


def _scale_examples(examples: Examples) -> tuple[Tensor, Tensor]:
    x, y = examples.all()
    flat = x.double().flatten(1)
    norms = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp_min(1e-12)  # an empty image stays one
    return (flat / norms).view(x.shape), y


def find_constants(federation: Federation, regulariser: float) -> Constants:
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
    """An engine that records ‖∇L(w[t])‖ of each round, the norm of the mean of the clients' gradients."""

    engine: Engine
    norms: list[float] = field(default_factory=list)

    @property
    def about(self) -> Mapping[str, Any]:
        """What the engine reports about itself."""
        return self.engine.about

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Return the engine's answers of a round, and record their norm."""
        blocks = list(self.engine.train(work, clients, round))
        self.norms.append(float(torch.linalg.vector_norm(weighted_mean(blocks))))
        return iter(blocks)


class Path(NamedTuple):
    """The models and gradients of a method's rounds."""

    weights: Tensor  # [T + 1, P] w[0] .. w[T]
    gradients: list[float]  # ‖∇L(w[0])‖ .. ‖∇L(w[T])‖

    def gap(self, strong: float) -> float:
        """Return a bound on the distance from the end to the optimum: ‖w - w*‖ <= ‖∇L(w)‖ / μ."""
        return self.gradients[-1] / strong


def follow_method(
    method: Method[Any], engine: Engine, clients: Sequence[ClientId], start: Tensor, rounds: int
) -> Path:
    """Run a method that asks for gradients, and keep every model and every gradient's norm."""
    noting, asked = Gradients(engine), sorted(clients)
    state, weights = method.init(start), [start]
    for t in range(rounds):
        work = method.ask(state)
        assert work is not None  # noqa: S101 (Retrain and FedUHB ask in every round)
        state = method.tell(state, noting.train(work, asked, t))
        weights.append(state.params)
    noting.train(Work(weights[-1], epochs=0), asked, rounds)
    return Path(torch.stack(weights), noting.norms)


def measure_distances(one: Path, other: Path) -> list[float]:
    """Return ‖w[t] - w'[t]‖ after every round, the start first."""
    return torch.linalg.vector_norm(one.weights - other.weights, dim=1).tolist()


def find_largest_gradient(*paths: Path) -> float:
    """Return G, the largest gradient on any of these paths.

    Differs from the paper: it bounds every client's gradient; the proof needs only their mean's, which is smaller.
    """
    return max(max(path.gradients) for path in paths)
