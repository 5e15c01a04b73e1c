"""A module with a client dimension: mapped over clients by torch.func, or run layer by layer if it is a chain."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.core.draws import augment_batch, draw_at
from feduhb.core.flat import list_parts, split
from feduhb.core.inputs import Inputs, call_with, list_tensors
from feduhb.core.loss import WeightedEntropy
from feduhb.core.modules import list_trained
from feduhb.core.types import Local, Loss
from feduhb.engines.stacked.layers import Descent, Layer
from feduhb.engines.stacked.norms import normalize_by
from feduhb.engines.stacked.optimizers import Optimizer
from feduhb.engines.triton import HAS_TRITON
from feduhb.engines.triton.elementwise import cross_entropy_gradient


@contextmanager
def ignore_slow_maps() -> Generator[None]:
    """Ignore torch's warnings of operations that it maps over clients one by one, such as attention on a CPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        yield


def weigh_shares(loss: Loss, targets: Tensor, share: Tensor) -> Tensor:
    """Return the factor of each example's loss [C, B] in the loss of its batch, for shares [C, B].

    That is the share itself, or share / Σ share w if the loss weighs targets by w: there `compute_losses` returns w loss.
    """
    entropy = WeightedEntropy.of(loss, targets)
    if entropy is None:
        return share
    weights = entropy.weigh(targets).to(share.dtype).reshape(*share.shape, -1).sum(-1)
    counts = ((targets != entropy.ignored).reshape(*share.shape, -1).any(-1) & (share > 0)).any(1)
    total = torch.where(counts, (share * weights).sum(1), 1)  # 1 for a client that has finished
    return share / total.unsqueeze(1)


def compute_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each example [B] of one client, times its weight if the loss weighs targets."""
    entropy = WeightedEntropy.of(loss, targets)
    each = loss if entropy is None else entropy.sum
    return torch.func.vmap(lambda output, target: each(output.unsqueeze(0), target.unsqueeze(0)))(
        outputs, targets
    )


def compute_gradient(loss: Loss, outputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """Return the gradient of the losses of batches for outputs [C, B, ...], targets [C, B, ...] and shares [C, B]."""
    if loss is functional.cross_entropy and outputs.dim() == 3 and not targets.is_floating_point():
        if HAS_TRITON and outputs.is_cuda and outputs.dtype == torch.float32:
            return cross_entropy_gradient(outputs, targets, share)
        found = torch.softmax(outputs, -1)
        found.scatter_add_(-1, targets.unsqueeze(-1), found.new_full((), -1.0).expand(*targets.shape, 1))
        return found.mul_(share.unsqueeze(-1))
    factor = weigh_shares(loss, targets, share)

    def total(outputs: Tensor) -> Tensor:
        return (torch.func.vmap(lambda o, t: compute_losses(loss, o, t))(outputs, targets) * factor).sum()

    return torch.func.grad(total)(outputs).contiguous()  # kernels write into it


class MappedNetwork:
    """Any module that torch.func can map over clients. Its norms are those of `mask_norms`.

    Every client has its own weights and statistics. What is frozen stays the module's own.
    """

    batch_last = False

    def __init__(
        self, module: nn.Module, local: Local, clients: int, device: torch.device, idle: frozenset[str]
    ) -> None:
        self.module = module
        self.local = local
        self.idle = idle  # parameters that the module does not use; no step changes them
        stacked = {
            name: torch.empty(clients, *part.shape, dtype=part.dtype, device=device)
            for name, part in list_parts(module)
        }
        self.weights = {name: stacked.pop(name) for name, _ in list_trained(module)}
        self.statistics = stacked
        used = {name: w for name, w in self.weights.items() if name not in idle}
        self.optimizer = None if local.is_plain else Optimizer(local, used)

    def begin(self, params: Tensor) -> None:
        """Set every client to the parameters [P]."""
        weights, statistics = self._split(params)
        for name, part in (weights | statistics).items():
            own = self.weights[name] if name in weights else self.statistics[name]
            own.copy_(part.expand_as(own))
        if self.optimizer is not None:
            self.optimizer.begin(weights)

    def step(
        self,
        x: Inputs,
        y: Tensor,
        share: Tensor,
        on: Tensor,
        keys: Tensor | None = None,
        rates: Tensor | None = None,
    ) -> None:
        """Take a step of the clients that are on, and gather their statistics.

        Args:
            keys: [C] int64 of the step's random draws; None if it draws nothing.
            rates: [C, RATES] for `Optimizer`; None for plain SGD.
        """
        own = {name: w[: len(share)] for name, w in self.weights.items()}
        statistics = {name: value[: len(share)] for name, value in self.statistics.items()}
        factor = weigh_shares(self.local.loss, y, share)
        gradients, found = self._differentiate(0, own, statistics, x, y, share, factor, keys)
        used = {name: w for name, w in own.items() if name not in self.idle}
        if self.optimizer is None:
            descent = Descent(self.local.lr, self.local.decay, on)
            for name, w in used.items():
                descent(w, gradients[name])
        else:
            self.optimizer.step(used, gradients, on, rates)  # pyright: ignore[reportArgumentType]
        for name, value in statistics.items():
            value.copy_(torch.where(on.unsqueeze(1) > 0, found[name], value))

    def end(self) -> Tensor:
        """Return the parameters of all clients [C, P]."""
        stacked = (*self.weights.values(), *self.statistics.values())
        return _join(stacked)

    def gradients(
        self, params: Tensor, x: Inputs, y: Tensor, share: Tensor, factor: Tensor, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of each client's Σ factor · loss at the same parameters [P], and its new statistics.

        Both are flat, one row for each client.
        """
        weights, statistics = self._split(params)
        found = self._differentiate(None, weights, statistics, x, y, share, factor, keys)
        gradients, gathered = (_join((share[:, :0], *parts.values())) for parts in found)
        return gradients, gathered

    def _differentiate(
        self,
        axis: int | None,
        weights: dict[str, Tensor],
        statistics: dict[str, Tensor],
        x: Inputs,
        y: Tensor,
        share: Tensor,
        factor: Tensor,
        keys: Tensor | None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the gradients of each client's loss and its new statistics, by name.

        Args:
            axis: 0 if each client has its own weights and statistics, None if all share them.
        """
        in_dims = (axis, axis, 0, 0, 0, 0, None if keys is None else 0)
        gradient = torch.func.grad(self._loss, has_aux=True)
        mapped = torch.func.vmap(gradient, in_dims=in_dims, randomness="error")
        return mapped(weights, statistics, x, y, share, factor, keys)

    def _split(self, params: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return views of the parameters [P] by name: the weights, and the statistics."""
        parts = dict(zip((*self.weights, *self.statistics), split(params, self.module), strict=True))
        return {name: parts.pop(name) for name in self.weights}, parts

    def _loss(
        self,
        weights: dict[str, Tensor],
        statistics: dict[str, Tensor],
        x: Inputs,
        y: Tensor,
        share: Tensor,
        factor: Tensor,
        key: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of one client, and its new statistics."""
        norms = normalize_by(share, statistics) if statistics else nullcontext(statistics)
        with norms as found, nullcontext() if key is None else draw_at(key):
            outputs = call_with(self.module, weights, augment_batch(self.local.augment, x))
        return (compute_losses(self.local.loss, outputs, y) * factor).sum(), found


def _join(parts: Iterable[Tensor]) -> Tensor:
    """Return tensors [C, ...] as [C, P], with the numbers of all of them in a row; a part may be one number [C]."""
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)


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
    def step(
        self,
        x: Inputs,
        y: Tensor,
        share: Tensor,
        on: Tensor,
        keys: Tensor | None = None,  # noqa: ARG002 (layers draw nothing)
        rates: Tensor | None = None,  # noqa: ARG002 (the optimiser is plain SGD)
    ) -> None:
        """w <- w - lr (∇loss + l2 w), for clients that are on."""
        (outputs,) = list_tensors(x)
        for layer in self.layers:
            outputs = layer.forward(outputs)
        gradient: Tensor | None = compute_gradient(self.local.loss, outputs.to(share.dtype), y, share)
        descent = Descent(self.local.lr, self.local.decay, on)
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
