"""A module with a client dimension: mapped by torch.func whatever it is, or layer by layer where it is a chain."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from feduhb.core.flat import split
from feduhb.core.types import Local
from feduhb.engines.stacking.layers import Descent, Layer
from feduhb.engines.stacking.losses import each, slope


class Network(Protocol):
    """Holds the weights of a stack of clients and trains them a step at a time."""

    def begin(self, params: Tensor) -> None:
        """Give every client the parameters [P]."""
        ...

    @property
    def batch_last(self) -> bool:
        """Whether inputs are best held with the images of a batch next to each other."""
        ...

    def step(self, x: Tensor, y: Tensor, share: Tensor, on: Tensor) -> None:
        """Let the first len(x) clients take a step on batches [C, B, ...] with shares [C, B], where on [C] is 1."""
        ...

    def end(self) -> Tensor:
        """The parameters of all clients [C, P]."""
        ...


class Mapped:
    """Any module that torch.func can map over."""

    batch_last = False

    def __init__(
        self, module: nn.Module, local: Local, clients: int, device: torch.device, idle: frozenset[str]
    ) -> None:
        self.module = module
        self.local = local
        self.idle = idle  # parameters that the module does not use: no step moves them
        self.weights = {
            name: torch.empty(clients, *p.shape, dtype=p.dtype, device=device)
            for name, p in module.named_parameters()
        }
        self._own = [(layer, name, p) for layer in module.modules() for name, p in layer._parameters.items()]

    def begin(self, params: Tensor) -> None:
        """Give every client the parameters [P]."""
        for w, part in zip(self.weights.values(), split(params, self.module), strict=True):
            w.copy_(part.expand_as(w))

    def step(self, x: Tensor, y: Tensor, share: Tensor, on: Tensor) -> None:
        """w <- w - lr (∇loss + l2 w), where a client is on."""
        own = {name: w[: len(x)] for name, w in self.weights.items()}
        gradients = torch.func.vmap(torch.func.grad(self._loss), randomness="error")(own, x, y, share)
        descent = Descent(self.local.lr, self.local.l2, on)
        for name, w in own.items():
            if name not in self.idle:
                descent(w, gradients[name])

    def end(self) -> Tensor:
        """The parameters of all clients [C, P]."""
        return torch.cat([w.flatten(1) for w in self.weights.values()], dim=1)

    def gradients(self, params: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """The gradients [C, P] of every client's loss at the same parameters [P]."""
        names = dict(zip(self.weights, split(params, self.module), strict=True))
        found = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0, 0))(names, x, y, share)
        return torch.cat([found[name].flatten(1) for name in self.weights], dim=1)

    def _loss(self, weights: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        outputs = torch.func.functional_call(self.module, weights, (x,))
        for (
            layer,
            name,
            own,
        ) in self._own:  # functional_call leaves its own in a layer that stands in two places
            layer._parameters[name] = own
        return (each(self.local.loss, outputs, y) * share).sum()


class Layered:
    """A chain of layers: forward through all, then backward, each layer taking its step on the way."""

    def __init__(self, module: nn.Module, layers: list[Layer], local: Local) -> None:
        self.module = module
        self.layers = layers
        self.local = local
        self.batch_last = layers[0].batch_last
        place = {id(p): i for i, p in enumerate(module.parameters())}
        self._places = [[place[id(p)] for p in layer.module.parameters()] for layer in layers]

    def begin(self, params: Tensor) -> None:
        """Give every client the parameters [P]."""
        parts = split(params, self.module)
        for layer, places in zip(self.layers, self._places, strict=True):
            layer.begin([parts[place] for place in places])

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, share: Tensor, on: Tensor) -> None:
        """w <- w - lr (∇loss + l2 w), where a client is on."""
        for layer in self.layers:
            x = layer.forward(x)
        gradient: Tensor | None = slope(self.local.loss, x.to(share.dtype), y, share)
        descent = Descent(self.local.lr, self.local.l2, on)
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient, descent) if gradient is not None else None

    def end(self) -> Tensor:
        """The parameters of all clients [C, P]."""
        found = {
            place: w.flatten(1)
            for layer, places in zip(self.layers, self._places, strict=True)
            for place, w in zip(places, layer.end(), strict=True)
        }
        return torch.cat([found[place] for place in sorted(found)], dim=1)
