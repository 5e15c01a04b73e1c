"""Convolutions with fewer products, computed from the values that images and filters take at points.

Along one axis, m outputs of r taps over n = m + r - 1 inputs are y = E ((F w) ∘ (D x)). That takes n products or a few
more instead of m r, because polynomials multiply point by point (Winograd, Arithmetic Complexity of Computations,
1980). On images both axes are transformed in this way, and each product of numbers becomes a product of matrices:
examples x channels by channels x filters. The points are 0, ∞, and equally spaced ones on the unit circle, where
rounding errors hardly grow, though they spread over an image. A complex product takes three real products.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

# Products of a direct convolution that take as long as one product of small matrices, with a margin.
SLOWER = 3.5


class Axis(NamedTuple):
    """The matrices that transform one axis into values at points, and back."""

    inputs: Tensor  # [points, n] D
    taps: Tensor  # [points, r] F
    outputs: Tensor  # [m, points] E


class ByPoints(nn.Conv2d):
    """A convolution that is computed by points where that takes fewer products."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        down, across = map(int, self.padding)
        if input.dim() != 4 or not is_cheaper(input.shape, weight.shape, (down, across)):
            return super()._conv_forward(input, weight, bias)
        images = nn.functional.pad(input, (across, across, down, down)) if down or across else input
        return convolve(images, weight, bias).contiguous(memory_format=torch.channels_last)


def use_points(model: nn.Module) -> nn.Module:
    """Change a module's plain convolutions in place to `ByPoints`, which differ from them by rounding only."""
    for layer in model.modules():
        if type(layer) is nn.Conv2d and _is_plain(layer):
            layer.__class__ = ByPoints
    return model


def _is_plain(layer: nn.Conv2d) -> bool:
    """Return whether a convolution has stride 1, no dilation, no groups, zero padding and a real type."""
    steps = {*layer.stride, *layer.dilation, layer.groups}
    real = layer.weight.dtype in {torch.float32, torch.float64}
    return steps == {1} and layer.padding_mode == "zeros" and not isinstance(layer.padding, str) and real


def is_cheaper(images: Sequence[int], filters: Sequence[int], padding: Sequence[int] = (0, 0)) -> bool:
    """Return whether points take less time for images [N, C, H, W] and filters [O, C, h, w], by counting products."""
    count, channels, *sides = images
    kept, _, *taps = filters
    sides = [side + 2 * more for side, more in zip(sides, padding, strict=True)]
    outs = [side - tap + 1 for side, tap in zip(sides, taps, strict=True)]
    if min(outs) < 1 or min(sides) < 3:
        return False
    points = [_count_points(side) for side in sides]
    transforms = count * (channels * _count_products(points, sides) + kept * _count_products(points, outs))
    transforms += channels * kept * _count_products(points, taps)
    each = 3 * count * channels * kept  # forward, and backward to images and to filters
    return SLOWER * (each * math.prod(points) + 2 * transforms) < each * math.prod(outs) * math.prod(taps)


def _count_products(points: list[int], sides: list[int]) -> int:
    """Return the number of products that transform both axes of one image, or transform them back."""
    return points[0] * sides[1] * (sides[0] + points[1])


def _count_points(side: int) -> int:
    """Return the number of real products for an axis of this many inputs."""
    return side + (side - 3) // 2


def convolve(images: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    """Return images [N, C, H, W] convolved with filters [O, C, h, w], as [N, O, H - h + 1, W - w + 1]."""
    down, across = (
        make_axis(side, tap, images.dtype)
        for side, tap in zip(images.shape[2:], filters.shape[2:], strict=True)
    )
    x = _transform(down.inputs, across.inputs, images.permute(2, 3, 0, 1))  # [points, points, N, C]
    w = _transform(down.taps, across.taps, filters.permute(2, 3, 1, 0))  # [points, points, C, O]
    products = torch.bmm(x.flatten(0, 1), w.flatten(0, 1)).view(*x.shape[:3], -1)
    y = _transform(down.outputs, across.outputs, products)
    return (y if bias is None else y + bias).permute(2, 3, 0, 1)


def _transform(down: Tensor, across: Tensor, x: Tensor) -> Tensor:
    """Return x [H, W, a, b] with each of its first two axes multiplied by a matrix, in the cheaper order."""
    high, wide, *rest = x.shape
    if len(down) > high:
        x = torch.mm(down, x.reshape(high, -1))
        x = torch.bmm(across.expand(len(down), -1, -1), x.view(len(down), wide, -1))
    else:
        x = torch.bmm(across.expand(high, -1, -1), x.reshape(high, wide, -1))
        x = torch.mm(down, x.view(high, -1))
    return x.view(len(down), len(across), *rest)


@functools.cache
def make_axis(n: int, r: int, dtype: torch.dtype) -> Axis:
    """Return the three matrices for n inputs (at least 3) and r taps.

    Let V_k map k coefficients to the values of their polynomial. Then c = V_n⁻¹ ((V_m a) ∘ (V_r b)) multiplies two
    polynomials, and a convolution is the transpose of that: D = V_n⁻ᵀ, F = V_r, E = V_mᵀ.
    """
    powers = torch.arange(n, dtype=torch.float64)
    around = n - 2 + n % 2
    angles = torch.arange(1, around // 2, dtype=torch.float64)[:, None] * (2 * math.pi / around)
    real, imaginary = torch.cos(angles * powers), torch.sin(angles * powers)
    plain = torch.stack([powers**0, (-1) ** powers] + [0**powers] * (n % 2 == 0))  # at 1, -1, and 0

    def values(size: int, *more: Tensor) -> Tensor:
        infinite = (powers[:size] == size - 1).double()[None]
        return torch.cat([infinite, *(rows[:, :size] for rows in (plain, real, imaginary, *more))])

    three = torch.tensor([[1, -1, 0], [-1, -1, 1]], dtype=torch.float64)  # a b from Re Re, Im Im, (Re + Im)²
    joined = torch.block_diag(
        torch.eye(len(plain) + 1, dtype=torch.float64),
        torch.kron(three, torch.eye(len(angles), dtype=torch.float64)),
    )
    inputs = torch.linalg.solve(values(n), joined).T
    taps, outputs = (values(size, real + imaginary) for size in (r, n - r + 1))
    return Axis(*(matrix.to(dtype).contiguous() for matrix in (inputs, taps, outputs.T)))
