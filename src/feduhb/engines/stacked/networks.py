"""A module with a client dimension: mapped over clients by torch.func, or run layer by layer if it is a chain."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.core.flat import split
from feduhb.core.types import Local, Loss
from feduhb.engines.stacked.layers import Descent, Layer
from feduhb.engines.triton import HAS_TRITON
from feduhb.engines.triton.elementwise import cross_entropy_gradient


def compute_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each example [B] of one client, from a loss that is a mean over examples."""
    return torch.func.vmap(lambda output, target: loss(output.unsqueeze(0), target.unsqueeze(0)))(
        outputs, targets
    )


def compute_gradient(loss: Loss, outputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """Return the gradient of Σ share · loss for outputs [C, B, ...], targets [C, B, ...] and shares [C, B]."""
    if loss is functional.cross_entropy and outputs.dim() == 3 and not targets.is_floating_point():
        if HAS_TRITON and outputs.is_cuda and outputs.dtype == torch.float32:
            return cross_entropy_gradient(outputs, targets, share)
        found = torch.softmax(outputs, -1)
        found.scatter_add_(-1, targets.unsqueeze(-1), found.new_full((), -1.0).expand(*targets.shape, 1))
        return found.mul_(share.unsqueeze(-1))

    def total(outputs: Tensor) -> Tensor:
        return (torch.func.vmap(lambda o, t: compute_losses(loss, o, t))(outputs, targets) * share).sum()

    return torch.func.grad(total)(outputs).contiguous()  # kernels write into it


class MappedNetwork:
    """Any module that torch.func can map over clients."""

    batch_last = False

    def __init__(
        self, module: nn.Module, local: Local, clients: int, device: torch.device, idle: frozenset[str]
    ) -> None:
        self.module = module
        self.local = local
        self.idle = idle  # parameters that the module does not use; no step changes them
        self.weights = {
            name: torch.empty(clients, *p.shape, dtype=p.dtype, device=device)
            for name, p in module.named_parameters()
        }
        self._own = [(layer, name, p) for layer in module.modules() for name, p in layer._parameters.items()]

    def begin(self, params: Tensor) -> None:
        """Set every client to the parameters [P]."""
        for w, part in zip(self.weights.values(), split(params, self.module), strict=True):
            w.copy_(part.expand_as(w))

    def step(self, x: Tensor, y: Tensor, share: Tensor, on: Tensor) -> None:
        """w <- w - lr (∇loss + l2 w), for clients that are on."""
        own = {name: w[: len(x)] for name, w in self.weights.items()}
        gradients = torch.func.vmap(torch.func.grad(self._loss), randomness="error")(own, x, y, share)
        descent = Descent(self.local.lr, self.local.l2, on)
        for name, w in own.items():
            if name not in self.idle:
                descent(w, gradients[name])

    def end(self) -> Tensor:
        """Return the parameters of all clients [C, P]."""
        return torch.cat([w.flatten(1) for w in self.weights.values()], dim=1)

    def gradients(self, params: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """Return the gradients [C, P] of each client's loss at the same parameters [P]."""
        names = dict(zip(self.weights, split(params, self.module), strict=True))
        found = torch.func.vmap(torch.func.grad(self._loss), in_dims=(None, 0, 0, 0))(names, x, y, share)
        return torch.cat([found[name].flatten(1) for name in self.weights], dim=1)

    def _loss(self, weights: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        outputs = torch.func.functional_call(self.module, weights, (x,))
        # functional_call leaves its parameters in a layer that the module uses twice.
        for layer, name, parameter in self._own:
            layer._parameters[name] = parameter
        return (compute_losses(self.local.loss, outputs, y) * share).sum()


class LayeredNetwork:
    """A chain of layers: it goes forward through all of them, then backward, where each layer takes its step."""

    def __init__(self, module: nn.Module, layers: list[Layer], local: Local) -> None:
        self.module = module
        self.layers = layers
        self.local = local
        self.batch_last = layers[0].batch_last
        place = {id(p): i for i, p in enumerate(module.parameters())}
        self._places = [[place[id(p)] for p in layer.module.parameters()] for layer in layers]

    def begin(self, params: Tensor) -> None:
        """Set every client to the parameters [P]."""
        parts = split(params, self.module)
        for layer, places in zip(self.layers, self._places, strict=True):
            layer.begin([parts[place] for place in places])

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, share: Tensor, on: Tensor) -> None:
        """w <- w - lr (∇loss + l2 w), for clients that are on."""
        for layer in self.layers:
            x = layer.forward(x)
        gradient: Tensor | None = compute_gradient(self.local.loss, x.to(share.dtype), y, share)
        descent = Descent(self.local.lr, self.local.l2, on)
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient, descent) if gradient is not None else None

    def end(self) -> Tensor:
        """Return the parameters of all clients [C, P]."""
        found = {
            place: w.flatten(1)
            for layer, places in zip(self.layers, self._places, strict=True)
            for place, w in zip(places, layer.end(), strict=True)
        }
        return torch.cat([found[place] for place in sorted(found)], dim=1)


Network = MappedNetwork | LayeredNetwork
