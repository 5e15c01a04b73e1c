"""Convolutions from fewer products: of the values that images and filters take at points.

Along one axis, m outputs of r taps over n = m + r - 1 inputs are y = E ((F w) ∘ (D x)): n products or a few more in place of
m r, as for polynomials, which multiply point by point (Winograd, Arithmetic Complexity of Computations, 1980). On images each axis is turned in that
way, and what was one product of numbers is one of matrices: examples x channels by channels x filters. The points are 0, ∞ and equally
spaced on the unit circle, where rounding errors hardly grow, though they spread over an image; of a pair of complex ones, three real products make the
complex one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

SLOWER = 3.5  # so many products of a direct convolution take as long as one here, where matrices are small; with a margin


class Axis(NamedTuple):
    """What turns one axis into values at points, and back."""

    inputs: Tensor  # [points, n] D
    taps: Tensor  # [points, r] F
    outputs: Tensor  # [m, points] E


class ByPoints(nn.Conv2d):
    """A convolution that goes by points where that takes fewer products."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        down, across = map(int, self.padding)
        if input.dim() != 4 or not pays(input.shape, weight.shape, (down, across)):
            return super()._conv_forward(input, weight, bias)
        images = nn.functional.pad(input, (across, across, down, down)) if down or across else input
        return convolved(images, weight, bias).contiguous(memory_format=torch.channels_last)


def by_points(model: nn.Module) -> nn.Module:
    """Let a module's plain convolutions go by points, in place: the same numbers to rounding."""
    for layer in model.modules():
        if type(layer) is nn.Conv2d and _plain(layer):
            layer.__class__ = ByPoints
    return model


def _plain(layer: nn.Conv2d) -> bool:
    """Whether a convolution takes every place of an image, each channel with each."""
    steps = {*layer.stride, *layer.dilation, layer.groups}
    real = layer.weight.dtype in {torch.float32, torch.float64}
    return steps == {1} and layer.padding_mode == "zeros" and not isinstance(layer.padding, str) and real


def pays(images: Sequence[int], filters: Sequence[int], padding: Sequence[int] = (0, 0)) -> bool:
    """Whether images [N, C, H, W] and filters [O, C, h, w] are sooner done by points, forward and back; by counting products."""
    count, channels, *sides = images
    kept, _, *taps = filters
    sides = [side + 2 * more for side, more in zip(sides, padding, strict=True)]
    outs = [side - tap + 1 for side, tap in zip(sides, taps, strict=True)]
    if min(outs) < 1 or min(sides) < 3:
        return False
    points = [_points(side) for side in sides]
    turned = count * (channels * _turning(points, sides) + kept * _turning(points, outs))
    turned += channels * kept * _turning(points, taps)
    each = 3 * count * channels * kept  # forward, and back to images and filters
    return SLOWER * (each * math.prod(points) + 2 * turned) < each * math.prod(outs) * math.prod(taps)


def _turning(points: list[int], sides: list[int]) -> int:
    """Products that turn one image's two axes, or turn them back."""
    return points[0] * sides[1] * (sides[0] + points[1])


def _points(side: int) -> int:
    """The real products that an axis of this many inputs takes."""
    return side + (side - 3) // 2


def convolved(images: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    """Filter images [N, C, H, W] with filters [O, C, h, w]: [N, O, H - h + 1, W - w + 1]."""
    down, across = (
        axis(side, tap, images.dtype) for side, tap in zip(images.shape[2:], filters.shape[2:], strict=True)
    )
    x = _turned(down.inputs, across.inputs, images.permute(2, 3, 0, 1))  # [points, points, N, C]
    w = _turned(down.taps, across.taps, filters.permute(2, 3, 1, 0))  # [points, points, C, O]
    products = torch.bmm(x.flatten(0, 1), w.flatten(0, 1)).view(*x.shape[:3], -1)
    y = _turned(down.outputs, across.outputs, products)
    return (y if bias is None else y + bias).permute(2, 3, 0, 1)


def _turned(down: Tensor, across: Tensor, x: Tensor) -> Tensor:
    """Multiply the first axis of x [H, W, a, b] by one matrix and the second by another, in the cheaper order."""
    high, wide, *rest = x.shape
    if len(down) > high:
        x = torch.mm(down, x.reshape(high, -1))
        x = torch.bmm(across.expand(len(down), -1, -1), x.view(len(down), wide, -1))
    else:
        x = torch.bmm(across.expand(high, -1, -1), x.reshape(high, wide, -1))
        x = torch.mm(down, x.view(high, -1))
    return x.view(len(down), len(across), *rest)


@functools.cache
def axis(n: int, r: int, dtype: torch.dtype) -> Axis:
    """Make the three matrices for n inputs, three or more, and r taps.

    With V_k the values of a polynomial of k coefficients, c = V_n⁻¹ ((V_m a) ∘ (V_r b)) multiplies two; a convolution is the transpose of that: D = V_n⁻ᵀ,
    F = V_r, E = V_mᵀ.
    """
    powers = torch.arange(n, dtype=torch.float64)
    around = n - 2 + n % 2
    angles = torch.arange(1, around // 2, dtype=torch.float64)[:, None] * (2 * math.pi / around)
    real, imaginary = torch.cos(angles * powers), torch.sin(angles * powers)
    plain = torch.stack([powers**0, (-1) ** powers] + [0**powers] * (n % 2 == 0))  # at 1, -1, and 0

    def values(size: int, *more: Tensor) -> Tensor:
        infinite = (powers[:size] == size - 1).double()[None]
        return torch.cat([infinite, *(rows[:, :size] for rows in (plain, real, imaginary, *more))])

    three = torch.tensor([[1, -1, 0], [-1, -1, 1]], dtype=torch.float64)  # a b, of Re Re, Im Im, (Re + Im)²
    joined = torch.block_diag(
        torch.eye(len(plain) + 1, dtype=torch.float64),
        torch.kron(three, torch.eye(len(angles), dtype=torch.float64)),
    )
    inputs = torch.linalg.solve(values(n), joined).T
    taps, outputs = (values(size, real + imaginary) for size in (r, n - r + 1))
    return Axis(*(matrix.to(dtype).contiguous() for matrix in (inputs, taps, outputs.T)))
