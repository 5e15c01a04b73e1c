"""Which layers of a chain go into one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from feduhb.engines.stacking.convolution import Convolution
from feduhb.engines.stacking.layers import Layer, layers_of
from feduhb.engines.stacking.linear import Flat, Linear
from feduhb.engines.stacking.tracing import Chain


def fused_layers(
    chain: Chain, clients: int, device: torch.device, precision: str, example: Tensor
) -> list[Layer]:
    """Make the layers of a chain on the GPU kernels where they fit, in plain torch where not; example is a batch of inputs."""
    modules = [module for _, module in chain]
    inputs = _inputs(modules, example)
    plain = layers_of(chain, clients, device)
    layers: list[Layer] = []
    place = 0
    while place < len(modules):
        module, first = modules[place], plain[place].first
        before = layers[-1] if layers else None
        if fits(module):
            after = _after(modules[place + 1 :])
            made = Convolution(module, after, clients, device, precision, first=first)
            if isinstance(before, Convolution):
                made.source, before.feeds = before, True
            layers.append(made)
            place += 1 + len(after)
        elif isinstance(before, Convolution) and _flattens(modules[place:]):
            layers.append(Flat(module, clients, device))
            place += 1
        elif (
            isinstance(module, nn.Linear) and len(inputs[place]) == 2 and module.weight.dtype == torch.float32
        ):
            relu = place + 1 < len(modules) and isinstance(modules[place + 1], nn.ReLU)
            image = inputs[place - 1][1:] if isinstance(before, Flat) else None
            layers.append(Linear(module, clients, device, relu=relu, image=image, first=first))
            place += 1 + relu
        else:
            layers.append(plain[place])
            place += 1
    return layers


def fits(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether the kernels know this convolution."""
    return (
        isinstance(module, nn.Conv2d)
        and module.stride == module.dilation == (1, 1)
        and module.groups == 1
        and module.padding[0] == module.padding[1]
        and module.in_channels <= 128
        and module.weight.dtype == torch.float32
    )


def _inputs(modules: Sequence[nn.Module], x: Tensor) -> list[torch.Size]:
    """The shape of a batch as each layer gets it."""
    found = []
    with torch.no_grad():
        for module in modules:
            found.append(x.shape)
            x = module(x)
    return found


def _after(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Those of the layers after a convolution that go into the same kernel."""
    match modules:
        case [nn.ReLU() as relu, nn.MaxPool2d() as pool, *_] if _halves(pool):
            return [relu, pool]
        case [nn.ReLU() | nn.MaxPool2d() as one, *_] if isinstance(one, nn.ReLU) or _halves(one):
            return [one]
        case _:
            return []


def _halves(pool: nn.MaxPool2d) -> bool:
    def two(size: object) -> bool:
        return size in (2, (2, 2))

    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)) and not pool.ceil_mode
    return two(pool.kernel_size) and two(pool.stride) and plain


def _flattens(modules: Sequence[nn.Module]) -> bool:
    """Whether images are flattened whole for a linear layer."""
    match modules:
        case [nn.Flatten(start_dim=1, end_dim=-1), nn.Linear(), *_]:
            return True
        case _:
            return False
