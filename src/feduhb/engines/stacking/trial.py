"""One batch of two, stacked and plain: does the module map, and is the loss a mean over examples?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feduhb.core.flat import flatten
from feduhb.core.types import Local
from feduhb.engines.stacking.networks import Mapped
from feduhb.errors import ConfigError

OTHERS = "use engine 'pool' or 'loop'"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial found out."""

    idle: frozenset[str]  # parameters that the module does not use
    outputs: int  # numbers that the layers give an example: what going backward keeps


def tried(module: nn.Module, local: Local, x: Tensor, y: Tensor) -> Trial:
    """Compare the gradients of a small batch [B, ...]; refuse, in words, what cannot be stacked."""
    counted: list[int] = []
    count = len(x)
    hooks = [
        layer.register_forward_hook(lambda _layer, _in, out: counted.append(_numbers(out)))
        for layer in module.modules()
        if not list(layer.children())
    ]
    names = [name for name, _ in module.named_parameters()]
    try:
        outputs = module(x)
        loss = local.loss(outputs, y)
        found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    idle = frozenset(name for name, gradient in zip(names, found, strict=True) if gradient is None)
    plain = torch.cat(
        [
            torch.zeros(p.numel(), dtype=p.dtype) if g is None else g.flatten()
            for p, g in zip(module.parameters(), found, strict=True)
        ]
    )
    mapped = Mapped(module, local, 0, torch.device("cpu"), idle)
    share = torch.full((1, len(x) + 1), 1 / len(x), dtype=plain.dtype)
    share[0, -1] = 0  # an example more, as padding
    x, y = torch.cat([x, x[:1]]).unsqueeze(0), torch.cat([y, y[:1]]).unsqueeze(0)
    try:
        stacked = mapped.gradients(flatten(module), x, y, share)[0]
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise ConfigError(f"torch.func cannot map this model or loss ({why}); {OTHERS}") from error
    if (stacked - plain).norm() > 1e-3 * plain.norm():
        raise ConfigError(
            f"the loss is not the mean over the examples of a batch, or the model mixes them; {OTHERS}"
        )
    return Trial(idle, sum(counted) // count)


def _numbers(output: object) -> int:
    return output.numel() if isinstance(output, Tensor) else 0
