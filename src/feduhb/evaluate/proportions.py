"""Two shares on the same images: how often a trigger works on a model, and on one that never saw it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from feduhb.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of two shares, and where it may lie."""

    value: float
    low: float
    high: float


def difference(hit: Tensor, floor: Tensor, *, level: float = 0.99) -> Difference:
    """Give share(hit) - share(floor) over the same images, [n] truth values each, with an adjusted paired interval.

        b = images hit alone + h,   c = floor alone + h,   N = n + 4 h,   h = max(1/2, z² / 8)
        (b - c) / N ± z sqrt(b + c - (b - c)² / N) / N,   clipped to [-1, 1]

    What is added keeps the interval from being a point where both always agree. Differs from the reference, which adds
    1/2 at 95 % (z² / 8 is 0.48 there): at 99 % that would hold the truth only 96 % of the time where hits are rare and
    the floor is 0. Reference: Agresti and Min 2005.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; give a share between 0 and 1, such as 0.99")
    if hit.dim() != 1 or hit.shape != floor.shape or not len(hit):
        raise DataError(
            f"{list(hit.shape)} and {list(floor.shape)} truth values are not of the same images; give one an image to both"
        )
    if hit.dtype != torch.bool or floor.dtype != torch.bool:
        raise DataError(
            f"{hit.dtype} and {floor.dtype} are no truth values; say which images were hit, yes or no"
        )
    alone, other = int((hit & ~floor).sum()), int((floor & ~hit).sum())
    value = (alone - other) / len(hit)
    z = NormalDist().inv_cdf((1 + level) / 2)
    more = max(0.5, z * z / 8)
    b, c, count = alone + more, other + more, len(hit) + 4 * more
    centre, half = (b - c) / count, z * math.sqrt(b + c - (b - c) ** 2 / count) / count
    return Difference(value, min(value, max(-1.0, centre - half)), max(value, min(1.0, centre + half)))
