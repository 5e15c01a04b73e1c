"""FedRecovery: subtract a weighted mean of what the leavers changed in each round, and add Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from feduhb.core.checks import check_positive, is_finite
from feduhb.core.seeds import generator
from feduhb.core.types import ClientId, History, Updates
from feduhb.errors import ConfigError
from feduhb.methods.binding import require_model
from feduhb.methods.federaser import Replay
from feduhb.methods.replay import MISSING, ReplayMethod, compute_residual


@dataclass(frozen=True, slots=True)
class FedRecovery(ReplayMethod[Replay]):
    """Approximate unlearning without any training: one step of the server.

        r[t] = A(remaining) - A(all),    p[t] = ‖A(all)‖² / Σ_s ‖A(all)‖²,    of the stored updates of round t
        w <- w - Σ p[t] r[t] + z,    z ~ N(0, σ² I),    w the old model
        σ = d / (√2 (√(log(1/δ) + ε) - √log(1/δ)))

    A is the weighted mean. For one leaver l among n clients of one size, r[t] = 1/n (1/(n-1) Σ_{c≠l} u_c - u_l), the
    gradient residual. The weights p sum to 1: what is subtracted is as long as one round's residual, however many
    rounds the leaver took part in.

    Args:
        distance: d, a bound on the distance between the corrected model and the retrained one. The paper derives one from
            constants of the loss that a federation does not know, so you must justify your own. 0 adds no noise, and then
            nothing is promised.
        epsilon: ε of the noise.
        delta: δ of the noise.
        history: the history of the run to unlearn from; `feduhb.unlearn` sets it.
        clients: the remaining clients; `feduhb.unlearn` sets them.
        model: the old model; `feduhb.unlearn` sets it.
        seed: the seed of the noise; `feduhb.unlearn` sets it to that of the run.

    Differs from the paper: clients count by their examples, several may leave at once, and updates of local training stand
    for gradients times the learning rate. The paper's promise also needs a training that ends with the same noise.
    Reference: Zhang et al., "FedRecovery: Differentially Private Machine Unlearning for Federated Learning Frameworks", 2023.
    """

    distance: float = 0.0
    epsilon: float = 1.0
    delta: float = 1e-5
    history: History = MISSING
    clients: tuple[ClientId, ...] = ()
    model: Tensor | None = field(default=None, compare=False, repr=False)  # [P]
    seed: int = 0

    name: ClassVar[str] = "fedrecovery"
    exact: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True
    bound: ClassVar[tuple[str, ...]] = ("seed",)
    samples_clients: ClassVar[bool] = False  # it asks nobody

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon, example=1.0)
        if not (is_finite(self.delta) and 0 < self.delta < 1):
            raise ConfigError(f"delta is {self.delta!r}; give a number between 0 and 1, such as 1e-5")
        if not (is_finite(self.distance) and self.distance >= 0):
            raise ConfigError(f"distance is {self.distance!r}; give 0 for no noise, or a positive number")

    @property
    def rounds(self) -> int | None:
        """One round, in which no client is asked."""
        return 1

    @property
    def sigma(self) -> float:
        """The standard deviation σ of the noise."""
        tail = math.log(1 / self.delta)
        return self.distance / (math.sqrt(2) * (math.sqrt(tail + self.epsilon) - math.sqrt(tail)))

    def init(self, params: Tensor) -> Replay:
        """Return the state at the old model, whatever fresh model is given."""
        return Replay(require_model(self.model, params, self.name), step=0)

    def ask(self, state: Replay) -> None:  # noqa: ARG002
        """Return None: no client is needed."""
        return

    def tell(self, state: Replay, answers: Iterable[Updates]) -> Replay:  # noqa: ARG002
        """Return the state after the correction, which is made once."""
        if state.step > 0:
            return state._replace(step=state.step + 1)
        return Replay(
            state.params - self._weigh_residuals(state.params) + self._draw_noise(state.params), step=1
        )

    def _weigh_residuals(self, like: Tensor) -> Tensor:
        """Return Σ p[t] r[t]; 0 if training never moved."""
        total, weight = torch.zeros_like(like), 0.0
        for t in self.history.rounds:
            step, residual = compute_residual(self.history, t, self.clients)
            square = float(step.double().square().sum())
            total.add_(residual.to(like), alpha=square)
            weight += square
        return total / weight if weight > 0 else total

    def _draw_noise(self, like: Tensor) -> Tensor:
        draw = generator(self.seed, "fedrecovery")
        return self.sigma * torch.randn(len(like), generator=draw, dtype=torch.float64).to(like)
