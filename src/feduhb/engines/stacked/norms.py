"""Normalisation layers that gather statistics, for padded batches: examples that are padding do not count.

The layers read the batch that is being normalised from a context variable, and write its statistics there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from feduhb.core.modules import MEAN, VARIANCE, list_norms


@dataclass(slots=True)
class _Batch:
    """The batch of one client in one step."""

    weights: Tensor  # [B] of the examples in a mean; 0 for padding
    count: Tensor  # [] number of examples that are not padding
    statistics: dict[str, Tensor]  # by name, as they are now

    def match(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return weights [rows] and their number for inputs with several rows for each example, one after another."""
        each = rows // len(self.weights)
        if each * len(self.weights) != rows:
            raise RuntimeError(f"a normalisation layer gets {rows} rows for {len(self.weights)} examples")
        return (self.weights / each).repeat_interleave(each), self.count * each

    def update(self, layer: MaskedBatchNorm | MaskedInstanceNorm, mean: Tensor, variance: Tensor) -> None:
        """Move a layer's statistics towards those of a batch: r <- (1 - momentum) r + momentum s."""
        momentum = layer.momentum or 0.0  # `check_module` refuses None, except in frozen layers
        for key, value in ((MEAN, mean), (VARIANCE, variance)):
            name = f"{layer.layer}.{key}".removeprefix(".")
            self.statistics[name] = (1 - momentum) * self.statistics[name] + momentum * value


_now: ContextVar[_Batch] = ContextVar("batch")


@contextlib.contextmanager
def normalize_by(share: Tensor, statistics: dict[str, Tensor]) -> Generator[dict[str, Tensor]]:
    """Normalise batches inside the block by examples with a share [B] above 0; yield the statistics, which change.

    In the steps of a client that has finished no example has a share. All of them count there, so that nothing overflows.
    """
    real = (share > 0).to(share.dtype)
    count = real.sum()
    weights = torch.where(count > 0, real / count.clamp(min=1), 1 / len(share))
    batch = _Batch(weights, count, dict(statistics))
    token = _now.set(batch)
    try:
        yield batch.statistics
    finally:
        _now.reset(token)


class MaskedBatchNorm(_BatchNorm):
    """BatchNorm by the mean and variance over the examples that are not padding."""

    layer: str

    def forward(self, input: Tensor) -> Tensor:
        """Return (x - mean) / √(variance + eps), scaled and shifted."""
        if not self.training:
            return super().forward(input)
        batch = _now.get()
        weights, count = batch.match(len(input))
        ends = [1] * (input.dim() - 2)
        places = input.shape[2:].numel()
        axes = [0, *range(2, input.dim())]
        weights = (weights / places).view(-1, 1, *ends)
        mean = (input * weights).sum(axes)
        centred = input - mean.view(1, -1, *ends)
        variance = (centred.square() * weights).sum(axes)
        total = count * places
        batch.update(self, mean.detach(), variance.detach() * (total / (total - 1)))
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        found = centred * scale.view(1, -1, *ends)
        return found if self.bias is None else found + self.bias.view(1, -1, *ends)


class MaskedInstanceNorm(_InstanceNorm):
    """InstanceNorm whose statistics are the means over the examples that are not padding."""

    layer: str

    def forward(self, input: Tensor) -> Tensor:
        """Return each example normalised by its own mean and variance."""
        if not self.training:
            return super().forward(input)
        batch = _now.get()
        weights, _ = batch.match(len(input))
        variance, mean = torch.var_mean(input.detach(), list(range(2, input.dim())))
        batch.update(self, weights @ mean, weights @ variance)
        return functional.instance_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)


def mask_norms(module: nn.Module) -> nn.Module:
    """Change the layers of a module that gather statistics, in place, so that padding does not count."""
    for name, layer in list_norms(module):
        if type(layer).forward is _BatchNorm.forward:
            kind: Any = MaskedBatchNorm
        elif type(layer).forward is _InstanceNorm.forward:
            kind = MaskedInstanceNorm
        else:
            continue  # a layer of its own kind, which the trial judges
        layer.__class__ = kind
        layer.layer = name  # pyright: ignore[reportArgumentType]
    return module
