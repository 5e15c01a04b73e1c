"""Layers with a client dimension: every client has its own weights, and all clients run in one call.

`trace` finds out whether a module is a chain of layers that have such a form. Inputs are [C, B, ...]: C clients with
B examples each. A layer goes forward, then backward: that returns the gradient of its input and takes the step of its own
weights, so that the gradient of all parameters is never stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

Chain = list[tuple[str, nn.Module]]
KNOWN = (
    nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten, nn.GroupNorm, nn.LayerNorm, nn.Identity,
)  # fmt: skip


class NoStackedFormError(Exception):
    """The reason why a module has no stacked form, in words."""


def trace(module: nn.Module) -> Chain:
    """Return the names and layers of a module that is a chain; raise NoStackedFormError if it is not one."""
    if any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules()):
        raise NoStackedFormError("a layer has hooks")
    try:
        graph = fx.symbolic_trace(module).graph
    except Exception as error:
        why = " ".join(str(error).split())[:120]
        raise NoStackedFormError(f"its forward cannot be traced ({why})") from error
    nodes = list(graph.nodes)
    if [node.op for node in (nodes[0], nodes[-1])] != ["placeholder", "output"]:
        raise NoStackedFormError("it takes more than one input")
    chain = [_link(module, node, before) for before, node in itertools.pairwise(nodes[:-1])]
    if nodes[-1].args != (nodes[-2],):
        raise NoStackedFormError("it returns more than one output")
    return _check([(name, layer) for name, layer in chain if not isinstance(layer, nn.Identity)], module)


def _link(module: nn.Module, node: fx.Node, before: fx.Node) -> tuple[str, nn.Module]:
    if node.all_input_nodes != [before] or len(before.users) != 1 or node.args[:1] != (before,):
        raise NoStackedFormError(f"{node.name} is not fed by the layer before it alone")
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if type(layer) not in KNOWN:
            raise NoStackedFormError(f"{node.target} ({type(layer).__name__}) has no stacked form")
        return str(node.target), layer
    make = FUNCTIONS.get(node.target)
    if make is None:
        raise NoStackedFormError(f"{node.name} has no stacked form")
    try:
        return node.name, make(*node.args[1:], **node.kwargs)
    except TypeError as error:
        raise NoStackedFormError(f"{node.name} is called in a way that has no stacked form") from error


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: Any = False,
    return_indices: Any = False,
) -> nn.Module:
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((torch.relu, functional.relu, "relu"), nn.ReLU),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten),
    **dict.fromkeys((torch.max_pool2d, functional.max_pool2d), _max_pool),
    functional.avg_pool2d: nn.AvgPool2d,
}


def _check(chain: Chain, module: nn.Module) -> Chain:
    """Return the chain; raise NoStackedFormError for unknown settings and parameters used twice or never."""
    owned = [p for _, layer in chain for p in layer.parameters()]
    if len(owned) != len({id(p) for p in owned}):
        raise NoStackedFormError("a layer is used twice")
    if {id(p) for p in owned} != {id(p) for p in module.parameters()}:
        raise NoStackedFormError("a parameter is not used by any layer")
    for name, layer in chain:
        if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
            raise NoStackedFormError(f"{name} pads with {layer.padding_mode} {layer.padding}")
        if isinstance(layer, nn.MaxPool2d) and layer.return_indices:
            raise NoStackedFormError(f"{name} returns indices")
        if isinstance(layer, nn.Flatten) and layer.start_dim == 0:
            raise NoStackedFormError(f"{name} mixes the examples of a batch")
    return chain


@dataclass(frozen=True, slots=True)
class Descent:
    """One step of SGD: w <- w - lr (g + l2 w). A client that has finished does not move, because its gradient is 0."""

    lr: float
    l2: float
    on: Tensor  # [C] 1 for clients that take the step, 0 for clients that have finished

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

    batch_last = False  # whether it wants the images of a batch next to each other in memory

    def __init__(self, module: nn.Module, clients: int, device: torch.device, *, first: bool = False) -> None:
        self.module = module
        self.function = make_function(module)
        self.first = first  # the gradient of its input is not needed
        self.weights = [
            torch.empty(clients, *p.shape, dtype=p.dtype, device=device) for p in module.parameters()
        ]

    def begin(self, start: list[Tensor]) -> None:
        """Set every client to the same weights."""
        for w, part in zip(self.weights, start, strict=True):
            w.copy_(part.expand_as(w))

    def end(self) -> list[Tensor]:
        """Return the weights in the shapes of the module, each [C, ...]."""
        return self.weights

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer for the first len(x) clients, and keep what `backward` needs."""
        x = x.detach().to(self.weights[0].dtype) if self.weights else x.detach()
        x.requires_grad_(not self.first)
        own = [w[: len(x)].detach().requires_grad_() for w in self.weights]
        with torch.enable_grad():
            y = self.function(x, *own)
        self._kept = x, own, y
        return y.detach()

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Take the step; return the gradient of the input, or None if it is not needed."""
        x, own, y = self._kept
        del self._kept
        wanted = own if self.first else [x, *own]
        found = list(torch.autograd.grad(y, wanted, dy.to(y.dtype))) if wanted else []
        dx = None if self.first else found.pop(0)
        for w, gradient in zip(self.weights, found, strict=True):
            descent(w[: len(x)], gradient)
        return dx


class Dense(Layer):
    """nn.Linear as batched matrix products y = x w' + b; the last product includes the step."""

    def forward(self, x: Tensor) -> Tensor:
        """Return y for the first len(x) clients."""
        w, *bias = (w[: len(x)] for w in self.weights)
        rows = x.to(w.dtype).reshape(len(x), -1, w.shape[2])
        self._kept = rows, x.shape
        y = torch.baddbmm(bias[0].unsqueeze(1), rows, w.transpose(1, 2)) if bias else rows @ w.transpose(1, 2)
        return y.view(*x.shape[:-1], w.shape[1])

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Take the step; return dx."""
        rows, shape = self._kept
        del self._kept
        w, *bias = (w[: len(rows)] for w in self.weights)
        dy = dy.reshape(len(rows), -1, w.shape[1])
        dx = None
        if not self.first:  # computed transposed: gradients of images are batch-last
            dx = (w.transpose(1, 2) @ dy.transpose(1, 2)).transpose(1, 2)
            dx = dx if len(shape) == 3 else dx.reshape(shape)
        descent.decay(w)
        w.baddbmm_(dy.transpose(1, 2), rows, alpha=-descent.lr)
        for b in bias:
            descent(b, dy.sum(1))
        return dx


def make_layers(chain: Chain, clients: int, device: torch.device) -> list[Layer]:
    """Return the layers of a chain in plain torch."""
    modules = [module for _, module in chain]
    weighted = next(i for i, module in enumerate(modules) if list(module.parameters()))
    return [
        (Dense if isinstance(module, nn.Linear) else Layer)(module, clients, device, first=i <= weighted)
        for i, module in enumerate(modules)
    ]


def make_function(module: nn.Module) -> Callable[..., Tensor]:
    """Return a layer as a function of inputs [C, B, ...] and weights [C, ...]."""
    match module:
        case nn.Conv2d():
            return lambda x, w, b=None: _convolve(x, w, b, module)
        case nn.Linear():
            return lambda x, w, b=None: x @ w.transpose(1, 2) if b is None else x @ w.transpose(1, 2) + b
        case nn.GroupNorm() | nn.LayerNorm():
            return lambda x, *affine: _normalize(x, affine, module)
        case nn.ReLU():
            return functional.relu  # never in place: the input is still needed
        case nn.Flatten(start_dim=start, end_dim=end):
            return lambda x: x.flatten(start + 1 if start > 0 else start, end + 1 if end > 0 else end)
        case _:
            return lambda x: module(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _convolve(x: Tensor, w: Tensor, b: Tensor | None, module: nn.Conv2d) -> Tensor:
    """Convolve in one grouped convolution, with the clients as groups of channels."""
    clients, batch = x.shape[:2]
    together = x.transpose(0, 1).flatten(1, 2)  # [B, C * in, H, W]
    y = functional.conv2d(
        together, w.flatten(0, 1), None if b is None else b.flatten(),
        module.stride, module.padding, module.dilation, clients * module.groups,
    )  # fmt: skip
    return y.view(batch, clients, -1, *y.shape[2:]).transpose(0, 1)


def _normalize(x: Tensor, affine: tuple[Tensor, ...], module: nn.GroupNorm | nn.LayerNorm) -> Tensor:
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
