"""The steps of one client in one round: descent by an optimiser of torch, preconditioned descent, and ascent in a ball.

Each starts without a state. A parameter that the model does not use keeps its value.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from feduhb.core.local import BETAS, EPS, Local
from feduhb.core.tasks import Ascend, Precondition


class Descent:
    """The steps of plain training, by an optimiser of torch."""

    def __init__(self, local: Local, parameters: list[nn.Parameter]) -> None:
        self.local = local
        self.parameters = parameters
        self.start = [p.detach().clone() for p in parameters] if local.proximal else []
        if local.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(
                parameters, lr=local.lr, momentum=local.momentum, weight_decay=local.decay
            )
        else:
            kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
            self.optimizer = kind(parameters, lr=local.lr, betas=BETAS, eps=EPS, weight_decay=local.decay)

    def take_step(self, loss: Tensor, scale: float) -> None:
        """Take a step; a parameter that the model does not use keeps its value."""
        self.optimizer.zero_grad()
        loss.backward()
        self._change_gradients()
        for group in self.optimizer.param_groups:
            group["lr"] = self.local.lr * scale
        self.optimizer.step()

    def _change_gradients(self) -> None:
        """Add the proximal term, and clip."""
        if self.start:
            for p, w in zip(self.parameters, self.start, strict=True):
                if p.grad is not None:
                    p.grad.add_(p.detach() - w, alpha=self.local.proximal)
        if self.local.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.local.clip_norm)


class PreconditionedDescent(Descent):
    """The steps of `Precondition`. ``fisher`` must hold the diagonal Fisher of the batch before each step."""

    def __init__(self, local: Local, parameters: list[nn.Parameter], task: Precondition) -> None:
        super().__init__(local, parameters)
        self.task = task
        self.fisher: list[Tensor] = []
        self.steps = 0
        self._m = [torch.zeros_like(p) for p in parameters]
        self._q = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def take_step(self, loss: Tensor, scale: float) -> None:
        """w <- w - lr m̂ / (√q̂ + ε), with the moving averages m of the gradient and q of the squared Fisher."""
        with torch.enable_grad():
            self.optimizer.zero_grad()
            loss.backward()
        self._change_gradients()
        self.steps += 1
        b1, b2 = self.task.b1, self.task.b2
        for w, m, q, fisher in zip(self.parameters, self._m, self._q, self.fisher, strict=True):
            if w.grad is None:
                continue
            g = w.grad + self.local.decay * w if self.local.decay else w.grad
            m.mul_(b1).add_(g, alpha=1 - b1)
            q.mul_(b2).addcmul_(fisher, fisher, value=1 - b2)
            size = (q / (1 - b2**self.steps)).sqrt_().add_(self.task.eps)
            w.addcdiv_(m, size, value=-self.task.lr * scale / (1 - b1**self.steps))


class Ascent:
    """The steps of `Ascend`: each climbs the loss and then returns to the ball around the start."""

    def __init__(self, parameters: list[nn.Parameter], task: Ascend) -> None:
        self.parameters = parameters
        self.task = task
        self.start = [p.detach().clone() for p in parameters]
        self.optimizer = torch.optim.SGD(parameters, lr=task.lr, momentum=task.momentum, maximize=True)

    def take_step(self, loss: Tensor, scale: float) -> None:  # noqa: ARG002 (it has a learning rate of its own)
        """v <- μ v + g, w <- w + lr v, and the projection of w into the ball."""
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.task.clip_norm)
        self.optimizer.step()
        self._project()

    @torch.no_grad()
    def _project(self) -> None:
        moved = [p - w for p, w in zip(self.parameters, self.start, strict=True)]
        length = torch.stack([part.double().square().sum() for part in moved]).sum().sqrt()
        if length > self.task.radius:
            share = float(self.task.radius / length)
            for p, w, part in zip(self.parameters, self.start, moved, strict=True):
                p.copy_(w + share * part)
