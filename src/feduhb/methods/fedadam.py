"""FedAdam: retrain on the remaining clients, with Adam on the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.types import Method, Updates, Work
from feduhb.methods.moments import Moments, check_moments


@dataclass(frozen=True, slots=True)
class FedAdam(Method[Moments]):
    """Exact unlearning: train a fresh model on the remaining clients with Adam's steps on the server.

        g = A(u_1 .. u_|Cr|),    m[t+1] = β₁ m[t] + (1 - β₁) g,    q[t+1] = β₂ q[t] + (1 - β₂) g²,    m[0] = q[0] = 0
        w[t+1] = w[t] - η m̂ / (√q̂ + τ),    m̂ = m[t+1] / (1 - β₁^(t+1)),    q̂ = q[t+1] / (1 - β₂^(t+1)),    w[0] fresh

    Args:
        lr: the server's learning rate η, about the largest change of a parameter in a round. It must fit the
            model and the local training: too small a one costs rounds, too large a one never settles.
        b1: β₁, the decay of the mean m of the updates, at least 0 and below 1.
        b2: β₂, the decay of the mean q of their squares, at least 0 and below 1; 0.99 as in Reddi et al.
        tau: τ, added to the root of q; it keeps the steps of parameters with tiny updates small.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: A. The weighted mean needs only the sum of the updates and works under secure aggregation; the
            robust rules need every update.

    Differs from the paper: Reddi et al. start at q[0] = τ² or more and correct no bias. Here q[0] = 0 and both averages are
    corrected, as in Adam: the rule equals `torch.optim.Adam(eps=τ)` fed with g.
    Reference: Reddi et al., "Adaptive Federated Optimization", 2021; Kingma and Ba, "Adam: A Method for Stochastic
    Optimization", 2015.
    """

    lr: float = 0.01
    b1: float = 0.9
    b2: float = 0.99
    tau: float = 1e-3
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "fedadam"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_moments(self.lr, self.b1, self.b2, self.tau, self.epochs, self.aggregate)

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Return "sum" for the weighted mean, the only rule that works on summed answers; else "each"."""
        return "sum" if self.aggregate is weighted_mean else "each"

    def init(self, params: Tensor) -> Moments:
        """Return the initial state, with both averages at 0."""
        zero = torch.zeros_like(params)
        return Moments(params, mean=zero, square=zero, steps=0)

    def ask(self, state: Moments) -> Work:
        """Return local training for all remaining clients."""
        return Work(state.params, self.epochs)

    def tell(self, state: Moments, answers: Iterable[Updates]) -> Moments:
        """Return the state after one step."""
        w, m, q, t = state
        g = self.aggregate(answers)
        m = self.b1 * m + (1 - self.b1) * g
        q = self.b2 * q + (1 - self.b2) * g.square()
        m_hat, q_hat = m / (1 - self.b1 ** (t + 1)), q / (1 - self.b2 ** (t + 1))
        return Moments(w - self.lr * m_hat / (q_hat.sqrt() + self.tau), mean=m, square=q, steps=t + 1)
