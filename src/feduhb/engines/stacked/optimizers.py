"""The optimisers of `torch.optim`, and the steps of `Precondition`, for a stack of clients.

Each client has a state of its own, which starts at 0 in every round. Plain SGD needs none of this:
`feduhb.engines.stacked.layers.Descent`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from feduhb.core.local import BETAS, EPS, Local
from feduhb.core.tasks import Precondition

RATES = 3  # numbers that a step needs: `list_rates`


def count_moments(local: Local) -> int:
    """Return how many numbers an optimiser keeps for each parameter."""
    return 2 if local.optimizer != "sgd" else int(local.momentum > 0)


def list_rates(
    local: Local, scale: float, step: int, task: Precondition | None = None
) -> tuple[float, float, float]:
    """Return lr, lr / (1 - β1^s) and √(1 - β2^s) of step s, counted from 1, with the schedule's factor of lr."""
    lr, betas = (local.lr, BETAS) if task is None else (task.lr, (task.b1, task.b2))
    first, second = (1 - beta**step for beta in betas)
    return lr * scale, lr * scale / first, second**0.5


class Optimizer:
    """Steps on weights [C, ...] by name.

    Args:
        task: steps of this task, which are those of Adam with the diagonal Fisher in place of the gradient in the second
            average; None: steps of ``local``.
    """

    def __init__(self, local: Local, weights: Mapping[str, Tensor], task: Precondition | None = None) -> None:
        self.local = local
        self.kind = local.optimizer if task is None else "adam"
        self.betas, self.eps = (BETAS, EPS) if task is None else ((task.b1, task.b2), task.eps)
        count = count_moments(local) if task is None else 2
        self.moments = {name: [torch.empty_like(w) for _ in range(count)] for name, w in weights.items()}
        self.start = {name: w.new_empty(w.shape[1:]) for name, w in weights.items()} if local.proximal else {}

    def begin(self, start: Mapping[str, Tensor]) -> None:
        """Start a round of all clients at the same weights."""
        for moments in self.moments.values():
            for moment in moments:
                moment.zero_()
        for name, own in self.start.items():
            own.copy_(start[name])

    @torch.no_grad()
    def step(
        self,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        on: Tensor,
        rates: Tensor,
        fisher: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Move the weights [C, ...] in place. A client that has finished does not move, and its state stays.

        Args:
            on: [C] 1 for clients that take the step, 0 for clients that have finished.
            rates: [C, RATES], as `list_rates` returns them.
            fisher: [C, ...] of the batch, by name, for the steps of `Precondition`.
        """
        found = self._clip({name: self._pull(name, w, gradients[name]) for name, w in weights.items()})
        for name, w in weights.items():
            moments = [moment[: len(w)] for moment in self.moments[name]]
            spread = [_spread(rate, w) for rate in rates.unbind(1)]
            values = self._move(w, found[name], None if fisher is None else fisher[name], moments, spread)
            for own, value in zip((w, *moments), values, strict=True):
                own.copy_(torch.where(_spread(on, w) > 0, value, own))

    def _pull(self, name: str, w: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient with FedProx's term μ (w - w[t])."""
        return gradient + self.local.proximal * (w - self.start[name]) if self.start else gradient

    def _clip(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return gradients whose norm over all parameters of a client is at most ``clip_norm``."""
        if self.local.clip_norm is None:
            return gradients
        norms = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
        factor = (self.local.clip_norm / (norms + 1e-6)).clamp(max=1)
        return {name: g * _spread(factor, g) for name, g in gradients.items()}

    def _move(
        self, w: Tensor, g: Tensor, fisher: Tensor | None, moments: list[Tensor], rates: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the new weights and moments."""
        lr, corrected, root = rates
        decay, (b1, b2) = self.local.decay, self.betas
        if self.kind == "adamw":
            w = w * (1 - lr * decay)
        elif decay:
            g = g + decay * w
        if self.kind == "sgd":
            if not moments:
                return (w - lr * g,)
            speed = self.local.momentum * moments[0] + g
            return w - lr * speed, speed
        first = torch.lerp(moments[0], g, 1 - b1)
        second = b2 * moments[1] + (1 - b2) * (g if fisher is None else fisher).square()
        return w - corrected * first / (second.sqrt() / root + self.eps), first, second


def _spread(numbers: Tensor, like: Tensor) -> Tensor:
    """Return numbers [C] in a shape that can be multiplied with [C, ...]."""
    return numbers.view(-1, *[1] * (like.dim() - 1))
