"""GroupNorm of images that lie channels last in memory, which torch would copy to another layout and back.

Letters in shapes: B images, P places, C channels, G groups of D channels.
"""

# pyright: reportInvalidTypeForm=false, reportMissingParameterType=false, reportIncompatibleMethodOverride=false
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.engines.triton import HAS_TRITON, compile_kernel, tl

TILE = 2048  # numbers that a program reads at once
WIDEST = 1024  # channels in a group


@compile_kernel
def _forward(
    x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, scale_ptr, eps,
    PLACES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """y = (x - mean) / √(variance + eps) w + b for one group of one image."""
    group = tl.program_id(0) % GROUPS
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside, channel = column < WIDTH, group * WIDTH + column
    first = (tl.program_id(0) // GROUPS).to(tl.int64) * PLACES * GROUPS * WIDTH
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, PLACES, ROWS):
        mine = (start + row < PLACES)[:, None] & inside[None, :]
        at = first + (start + row)[:, None] * GROUPS * WIDTH + channel[None, :]
        total += tl.load(x_ptr + at, mask=mine, other=0).to(tl.float32)
    mean = tl.sum(tl.sum(total, 1), 0) / (PLACES * WIDTH)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, PLACES, ROWS):
        mine = (start + row < PLACES)[:, None] & inside[None, :]
        at = first + (start + row)[:, None] * GROUPS * WIDTH + channel[None, :]
        centred = tl.where(mine, tl.load(x_ptr + at, mask=mine, other=0).to(tl.float32) - mean, 0.0)
        squares += centred * centred
    scale = 1 / tl.sqrt(tl.sum(tl.sum(squares, 1), 0) / (PLACES * WIDTH) + eps)
    w = tl.load(w_ptr + channel, mask=inside, other=0).to(tl.float32)
    b = tl.load(b_ptr + channel, mask=inside, other=0).to(tl.float32)
    for start in range(0, PLACES, ROWS):
        mine = (start + row < PLACES)[:, None] & inside[None, :]
        at = first + (start + row)[:, None] * GROUPS * WIDTH + channel[None, :]
        x = tl.load(x_ptr + at, mask=mine, other=0).to(tl.float32)
        tl.store(
            y_ptr + at, ((x - mean) * scale * w[None, :] + b[None, :]).to(y_ptr.dtype.element_ty), mask=mine
        )
    tl.store(mean_ptr + tl.program_id(0), mean)
    tl.store(scale_ptr + tl.program_id(0), scale)


@compile_kernel
def _backward(
    dy_ptr, x_ptr, w_ptr, mean_ptr, scale_ptr, dx_ptr, dw_ptr, db_ptr,
    PLACES: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """dw = Σ dy n and db = Σ dy over the places of one image, and dx = scale (dy w - mean(dy w) - n mean(dy w n)).

    n = (x - mean) scale is the normalised input.
    """
    group = tl.program_id(0) % GROUPS
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside, channel = column < WIDTH, group * WIDTH + column
    image = (tl.program_id(0) // GROUPS).to(tl.int64)
    first = image * PLACES * GROUPS * WIDTH
    mean, scale = tl.load(mean_ptr + tl.program_id(0)), tl.load(scale_ptr + tl.program_id(0))
    dw = tl.zeros((ROWS, COLUMNS), tl.float32)
    db = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, PLACES, ROWS):
        mine = (start + row < PLACES)[:, None] & inside[None, :]
        at = first + (start + row)[:, None] * GROUPS * WIDTH + channel[None, :]
        dy = tl.load(dy_ptr + at, mask=mine, other=0).to(tl.float32)
        dw += dy * (tl.load(x_ptr + at, mask=mine, other=0).to(tl.float32) - mean) * scale
        db += dy
    each_w, each_b = tl.sum(dw, 0), tl.sum(db, 0)
    tl.store(dw_ptr + image * GROUPS * WIDTH + channel, each_w, mask=inside)
    tl.store(db_ptr + image * GROUPS * WIDTH + channel, each_b, mask=inside)
    w = tl.load(w_ptr + channel, mask=inside, other=0).to(tl.float32)
    along, level = tl.sum(each_w * w, 0) / (PLACES * WIDTH), tl.sum(each_b * w, 0) / (PLACES * WIDTH)
    for start in range(0, PLACES, ROWS):
        mine = (start + row < PLACES)[:, None] & inside[None, :]
        at = first + (start + row)[:, None] * GROUPS * WIDTH + channel[None, :]
        dy = tl.load(dy_ptr + at, mask=mine, other=0).to(tl.float32)
        n = (tl.load(x_ptr + at, mask=mine, other=0).to(tl.float32) - mean) * scale
        dx = scale * (dy * w[None, :] - level - n * along)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mine)


class _GroupNorm(torch.autograd.Function):
    """The two kernels as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, groups: int, eps: float) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        y = torch.empty_like(x)
        mean = torch.empty(len(x) * groups, dtype=torch.float32, device=x.device)
        scale = torch.empty_like(mean)
        sizes = _size_tiles(x, groups)
        _forward[(len(mean),)](x, w, b, y, mean, scale, eps, *sizes, num_warps=8)
        ctx.save_for_backward(x, w, mean, scale)
        ctx.sizes = sizes
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, w, mean, scale = ctx.saved_tensors
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        each = torch.empty(2, len(x), len(w), dtype=torch.float32, device=x.device)  # [2, B, C]
        _backward[(len(mean),)](dy, x, w, mean, scale, dx, each[0], each[1], *ctx.sizes, num_warps=8)
        dw, db = each.sum(1).to(w.dtype)
        return dx, dw, db, None, None


def _size_tiles(x: Tensor, groups: int) -> tuple[int, int, int, int, int]:
    """Return PLACES, GROUPS, WIDTH, ROWS and COLUMNS for images [B, C, H, W]."""
    places, width = x.shape[2:].numel(), x.shape[1] // groups
    columns = 1 << (width - 1).bit_length()
    return places, groups, width, max(1, TILE // columns), columns


class ChannelsLastGroupNorm(nn.GroupNorm):
    """GroupNorm that leaves images channels last."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised images [B, C, H, W]."""
        width = self.num_channels // self.num_groups
        is_whole = (
            self.weight is not None and self.bias is not None
        )  # torch 2.13 can leave out the bias alone
        if not (HAS_TRITON and input.is_cuda and input.dim() == 4 and is_whole and width <= WIDEST):
            return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
        return _GroupNorm.apply(input, self.weight, self.bias, self.num_groups, self.eps)
