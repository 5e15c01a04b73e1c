"""FedNadam: retrain on the remaining clients, with Nadam (Adam with Nesterov's momentum) on the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from feduhb.core.types import Updates
from feduhb.methods.moments import Moments, MomentsMethod


@dataclass(frozen=True, slots=True)
class FedNadam(MomentsMethod):
    """Exact unlearning: train a fresh model on the remaining clients with Nadam's steps on the server.

        g = A(u_1 .. u_|Cr|),    m[t+1] = β₁ m[t] + (1 - β₁) g,    q[t+1] = β₂ q[t] + (1 - β₂) g²,    m[0] = q[0] = 0
        w[t+1] = w[t] - η m̂ / (√q̂ + τ),    q̂ = q[t+1] / (1 - β₂^(t+1)),    w[0] fresh
        m̂ = β₁ m[t+1] / (1 - β₁^(t+2)) + (1 - β₁) g / (1 - β₁^(t+1))

    Args:
        lr: the server's learning rate η, about the largest change of a parameter in a round. It must fit the
            model and the local training: too small a one costs rounds, too large a one never settles.
        b1: β₁, the decay of the mean m of the updates, at least 0 and below 1.
        b2: β₂, the decay of the mean q of their squares, at least 0 and below 1; 0.99 as in Reddi et al.
        tau: τ, added to the root of q; it keeps the steps of parameters with tiny updates small.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: A. The weighted mean needs only the sum of the updates and works under secure aggregation; the
            robust rules need every update.

    Differs from the paper: Dozat lets β₁ grow with the rounds. Here it is constant: the rule equals `torch.optim.NAdam` with
    eps=τ and momentum_decay=1e6 (not 0), fed with g. Dozat describes an optimiser; here it runs on the server.
    Reference: Dozat, "Incorporating Nesterov Momentum into Adam", 2016; Reddi et al., "Adaptive Federated Optimization",
    2021.
    """

    name: ClassVar[str] = "fednadam"
    exact: ClassVar[bool] = True

    def tell(self, state: Moments, answers: Iterable[Updates]) -> Moments:
        """Return the state after one step."""
        w, m, q, t = state
        g = self.aggregate(answers)
        m = self.b1 * m + (1 - self.b1) * g
        q = self.b2 * q + (1 - self.b2) * g.square()
        ahead = self.b1 * m / (1 - self.b1 ** (t + 2))
        m_hat, q_hat = ahead + (1 - self.b1) * g / (1 - self.b1 ** (t + 1)), q / (1 - self.b2 ** (t + 1))
        return Moments(w - self.lr * m_hat / (q_hat.sqrt() + self.tau), mean=m, square=q, steps=t + 1)
