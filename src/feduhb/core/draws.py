"""Random draws inside a training step, such as dropout: each has an address and is the same on every engine and device.

The address is (seed, client, round, epoch, step, layer, row, place in the row). Numbers are hashed from it by integer
arithmetic, so they depend on no generator's history, on no device and on no other client.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from feduhb.core.inputs import Inputs, list_tensors
from feduhb.core.local import NUMBERS, Augment
from feduhb.core.seeds import seed_for
from feduhb.core.types import ClientId
from feduhb.errors import ModelError

# Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014: the mixing function of SplitMix64.
FIRST, SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


@dataclass(slots=True)
class _Step:
    """The step that is being taken: the hash of its address, and how often each layer drew in it."""

    key: Tensor  # [] int64
    calls: Counter[str] = field(default_factory=Counter)


_now: ContextVar[_Step | None] = ContextVar("step", default=None)


def make_key(seed: int, client: ClientId, round: int, epoch: int, step: int) -> int:
    """Return the hash of a step's address, from which all draws in that step follow."""
    return seed_for(seed, "draws", client, round, epoch, step)


@contextlib.contextmanager
def draw_at(key: Tensor | int) -> Generator[None]:
    """Let the layers draw at a step's key inside the block."""
    token = _now.set(_Step(torch.as_tensor(key)))
    try:
        yield
    finally:
        _now.reset(token)


def draw_uniform(layer: str, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return numbers in [0, 1) as float32, for a layer's next draw in this step.

    The number at a place depends on the place's indices, not on the shape, so a padded batch has the same numbers in
    its rows.
    """
    step = _now.get()
    if step is None:
        raise ModelError(
            f"{layer} draws outside of the forward pass of a step, as gradient checkpointing does when it computes a layer again; "
            "checkpoint a part of the model without dropout"
        )
    call, step.calls[layer] = step.calls[layer], step.calls[layer] + 1
    z = _mix(step.key.to(device) ^ seed_for(call, layer))
    for axis, size in enumerate(shape):
        z = z.unsqueeze(-1) + torch.arange(size, device=device) * _get_factor(axis)
    return ((_mix(z) >> 40) & 0xFFFFFF) * 2.0**-24


def _mix(z: Tensor) -> Tensor:
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * FIRST
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * SECOND
    return z ^ ((z >> 31) & ((1 << 33) - 1))


@functools.cache
def _get_factor(axis: int) -> int:
    """Return the odd number of 63 bits by which the indices of an axis are multiplied."""
    return seed_for(axis, "axis") | 1


def augment_batch(augment: Augment | None, x: Inputs) -> Inputs:
    """Return a batch after an augmentation, with the numbers of this step; the batch itself if there is none."""
    if augment is None:
        return x
    first = list_tensors(x)[0]
    return augment(x, draw_uniform("augment", (len(first), NUMBERS), first.device))


class KeyedDropout(nn.Dropout):
    """Dropout of single numbers, drawn at the step's address."""

    layer: str

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with a share p of its numbers set to 0, the others divided by 1 - p."""
        return _drop(self, input, input.dim())


class KeyedChannelDropout(nn.modules.dropout._DropoutNd):
    """Dropout of whole channels [B, C, ...], drawn at the step's address."""

    layer: str

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with a share p of its channels set to 0, the others divided by 1 - p."""
        return _drop(self, input, 2)


def _drop(layer: KeyedDropout | KeyedChannelDropout, x: Tensor, axes: int) -> Tensor:
    if not layer.training or layer.p == 0:
        return x
    multiply = x.mul_ if layer.inplace else x.mul
    if layer.p == 1:
        return multiply(0)
    keep = draw_uniform(layer.layer, x.shape[:axes], x.device) >= layer.p
    return multiply((keep.to(x.dtype) / (1 - layer.p)).view(*x.shape[:axes], *[1] * (x.dim() - axes)))


KEYED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Dropout: KeyedDropout,
    **dict.fromkeys((nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), KeyedChannelDropout),
}


def key_dropout(module: nn.Module) -> nn.Module:
    """Change the dropout layers of a module in place, so that they draw at the step's address."""
    for name, layer in module.named_modules():
        if (keyed := KEYED.get(type(layer))) is not None:
            layer.__class__ = keyed
            layer.layer = name  # pyright: ignore[reportArgumentType]
    return module
