"""The loss of a stack: every client's mean over its own batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from feduhb.core.types import Loss
from feduhb.engines.kernels import entropy, language


def each(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of every example [B] of one client, from a loss that is a mean over examples."""
    return torch.func.vmap(lambda output, target: loss(output.unsqueeze(0), target.unsqueeze(0)))(
        outputs, targets
    )


def slope(loss: Loss, outputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """The gradient of Σ share · loss for outputs [C, B, ...], targets [C, B, ...] and shares [C, B]."""
    if loss is functional.cross_entropy and outputs.dim() == 3 and not targets.is_floating_point():
        if language.triton and outputs.is_cuda and outputs.dtype == torch.float32:
            return entropy.slope(outputs, targets, share)
        found = torch.softmax(outputs, -1)
        found.scatter_add_(-1, targets.unsqueeze(-1), found.new_full((), -1.0).expand(*targets.shape, 1))
        return found.mul_(share.unsqueeze(-1))

    def total(outputs: Tensor) -> Tensor:
        return (torch.func.vmap(lambda o, t: each(loss, o, t))(outputs, targets) * share).sum()

    return torch.func.grad(total)(outputs).contiguous()  # kernels write into it
