"""FedYogi: retrain on the remaining clients, with Yogi on the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feduhb.core.types import Updates
from feduhb.methods.moments import Moments, MomentsMethod


@dataclass(frozen=True, slots=True)
class FedYogi(MomentsMethod):
    """Exact unlearning: train a fresh model on the remaining clients with Yogi's steps on the server.

        g = A(u_1 .. u_|Cr|),    m[t+1] = β₁ m[t] + (1 - β₁) g,    m[0] = 0
        q[t+1] = q[t] - (1 - β₂) g² sign(q[t] - g²),    q[0] = τ²
        w[t+1] = w[t] - η m[t+1] / (√q[t+1] + τ),    w[0] fresh

    Unlike Adam's, the average q shrinks by at most (1 - β₂) g² in a round, so steps do not grow suddenly when updates become
    small.

    Args:
        lr: the server's learning rate η, about the largest change of a parameter in a round. It must fit the
            model and the local training.
        b1: β₁, the decay of the mean m of the updates, at least 0 and below 1.
        b2: β₂, the decay of the mean q of their squares, at least 0 and below 1; 0.99 as in Reddi et al.
        tau: τ, added to the root of q; it keeps the steps of parameters with tiny updates small.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: A. The weighted mean needs only the sum of the updates and works under secure aggregation; the
            robust rules need every update.

    Differs from the paper: Reddi et al. leave q[0] open, at τ² or more. Here it is τ²: the smallest value that they allow, and
    with τ = 0.001 the 1e-6 at which Yogi usually starts. As in their paper no bias is corrected, because q[0] is not 0.
    Reference: Reddi et al., "Adaptive Federated Optimization", 2021; Zaheer et al., "Adaptive Methods for Nonconvex
    Optimization", 2018.
    """

    name: ClassVar[str] = "fedyogi"
    exact: ClassVar[bool] = True

    def init(self, params: Tensor) -> Moments:
        """Return the initial state, with m[0] = 0 and q[0] = τ²."""
        square = torch.full_like(params, self.tau**2)
        return Moments(params, mean=torch.zeros_like(params), square=square, steps=0)

    def tell(self, state: Moments, answers: Iterable[Updates]) -> Moments:
        """Return the state after one step."""
        w, m, q, t = state
        g = self.aggregate(answers)
        m = self.b1 * m + (1 - self.b1) * g
        q = q - (1 - self.b2) * g.square() * (q - g.square()).sign()
        return Moments(w - self.lr * m / (q.sqrt() + self.tau), mean=m, square=q, steps=t + 1)
