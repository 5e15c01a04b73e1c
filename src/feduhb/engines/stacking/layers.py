"""Layers with a client dimension: every client its own weights, all of them in one call.

Inputs are [C, B, ...], C clients of B examples. A layer goes forward, then backward: that gives the gradient of its
input and takes the step of its own weights, so that no gradient of all parameters is ever held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.engines.stacking.tracing import Chain


@dataclass(frozen=True, slots=True)
class Descent:
    """One step of SGD: w <- w - lr (g + l2 w). A client whose mask is off does not move: its gradient is 0."""

    lr: float
    l2: float
    on: Tensor  # [C] 1 for clients that take the step, 0 for those that have finished

    def decay(self, w: Tensor) -> None:
        """w <- w - lr l2 w, for weights [C, ...]."""
        if self.l2:
            w.mul_(1 - self.lr * self.l2 * self.on.view(-1, *[1] * (w.dim() - 1)))

    def __call__(self, w: Tensor, gradient: Tensor) -> None:
        """Move weights [C, ...] in place."""
        self.decay(w)
        w.sub_(gradient, alpha=self.lr)


class Layer:
    """A layer in plain torch, its gradient by autograd."""

    batch_last = False  # whether it reads images of a batch next to each other

    def __init__(self, module: nn.Module, clients: int, device: torch.device, *, first: bool = False) -> None:
        self.module = module
        self.function = function_of(module)
        self.first = first  # nobody needs the gradient of its input
        self.weights = [
            torch.empty(clients, *p.shape, dtype=p.dtype, device=device) for p in module.parameters()
        ]

    def begin(self, start: list[Tensor]) -> None:
        """Give every client the same weights."""
        for w, part in zip(self.weights, start, strict=True):
            w.copy_(part.expand_as(w))

    def end(self) -> list[Tensor]:
        """The weights as the module shapes them, each [C, ...]."""
        return self.weights

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer for the first len(x) clients, and remember what going backward needs."""
        x = x.detach().to(self.weights[0].dtype) if self.weights else x.detach()
        x.requires_grad_(not self.first)
        own = [w[: len(x)].detach().requires_grad_() for w in self.weights]
        with torch.enable_grad():
            y = self.function(x, *own)
        self._kept = x, own, y
        return y.detach()

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Give the gradient of the input (None where nobody needs it), and take the step."""
        x, own, y = self._kept
        del self._kept
        wanted = own if self.first else [x, *own]
        found = list(torch.autograd.grad(y, wanted, dy.to(y.dtype))) if wanted else []
        dx = None if self.first else found.pop(0)
        for w, gradient in zip(self.weights, found, strict=True):
            descent(w[: len(x)], gradient)
        return dx


class Dense(Layer):
    """nn.Linear: y = x w' + b as batched matrix products; the step is part of the last of them."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply for the first len(x) clients."""
        w, *bias = (w[: len(x)] for w in self.weights)
        rows = x.to(w.dtype).reshape(len(x), -1, w.shape[2])
        self._kept = rows, x.shape
        y = torch.baddbmm(bias[0].unsqueeze(1), rows, w.transpose(1, 2)) if bias else rows @ w.transpose(1, 2)
        return y.view(*x.shape[:-1], w.shape[1])

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Give dx, and take the step."""
        rows, shape = self._kept
        del self._kept
        w, *bias = (w[: len(rows)] for w in self.weights)
        dy = dy.reshape(len(rows), -1, w.shape[1])
        dx = None
        if not self.first:  # computed transposed, for images go backward batch-last
            dx = (w.transpose(1, 2) @ dy.transpose(1, 2)).transpose(1, 2)
            dx = dx if len(shape) == 3 else dx.reshape(shape)
        descent.decay(w)
        w.baddbmm_(dy.transpose(1, 2), rows, alpha=-descent.lr)
        for b in bias:
            descent(b, dy.sum(1))
        return dx


def layers_of(chain: Chain, clients: int, device: torch.device) -> list[Layer]:
    """Make the layers of a chain in plain torch."""
    modules = [module for _, module in chain]
    weighted = next(i for i, module in enumerate(modules) if list(module.parameters()))
    return [
        (Dense if isinstance(module, nn.Linear) else Layer)(module, clients, device, first=i <= weighted)
        for i, module in enumerate(modules)
    ]


def function_of(module: nn.Module) -> Callable[..., Tensor]:
    """Give a layer as a function of inputs [C, B, ...] and weights [C, ...]."""
    match module:
        case nn.Conv2d():
            return lambda x, w, b=None: _convolved(x, w, b, module)
        case nn.Linear():
            return lambda x, w, b=None: x @ w.transpose(1, 2) if b is None else x @ w.transpose(1, 2) + b
        case nn.GroupNorm() | nn.LayerNorm():
            return lambda x, *affine: _normed(x, affine, module)
        case nn.ReLU():
            return functional.relu  # not in place, whatever the module does: what came before is still needed
        case nn.Flatten(start_dim=start, end_dim=end):
            return lambda x: x.flatten(start + 1 if start > 0 else start, end + 1 if end > 0 else end)
        case _:
            return lambda x: module(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _convolved(x: Tensor, w: Tensor, b: Tensor | None, module: nn.Conv2d) -> Tensor:
    """Convolve as one grouped convolution: the clients are groups of channels."""
    clients, batch = x.shape[:2]
    together = x.transpose(0, 1).flatten(1, 2)  # [B, C * in, H, W]
    y = functional.conv2d(
        together, w.flatten(0, 1), None if b is None else b.flatten(),
        module.stride, module.padding, module.dilation, clients * module.groups,
    )  # fmt: skip
    return y.view(batch, clients, -1, *y.shape[2:]).transpose(0, 1)


def _normed(x: Tensor, affine: tuple[Tensor, ...], module: nn.GroupNorm | nn.LayerNorm) -> Tensor:
    examples = x.flatten(0, 1)
    if isinstance(module, nn.GroupNorm):
        y = functional.group_norm(examples, module.num_groups, eps=module.eps)
        shape = (len(x), 1, -1, *[1] * (x.dim() - 3))
    else:
        y = functional.layer_norm(examples, module.normalized_shape, eps=module.eps)
        shape = (len(x), *[1] * (x.dim() - 1 - len(module.normalized_shape)), *module.normalized_shape)
    y = y.view(x.shape)
    if affine:
        y = y * affine[0].view(shape)
    return y + affine[1].view(shape) if len(affine) > 1 else y
