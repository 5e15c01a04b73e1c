"""Launch the convolution kernels: the shape of a convolution, and the tiles that were fastest on an H200.

`convolution_kernels` explains how images and filters lie in memory. Letters in shapes: C clients, B images of a client,
H, W and PH, PW height and width before and after pooling, S parts of a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.engines.triton import convolution_kernels, count_tiles

THIN = 8  # with this many channels or fewer, images are convolved batch-last: channels-last loads would be too short


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of one convolution and of the pooling after it."""

    batch: int  # images of a client
    height: int
    width: int
    cin: int
    cout: int
    kh: int
    kw: int
    pad: int = 0
    pool: int = 1  # 2 for 2 x 2 max pooling, 1 for none
    relu: bool = True

    @property
    def out(self) -> tuple[int, int]:
        """Height and width before pooling."""
        return self.height + 2 * self.pad - self.kh + 1, self.width + 2 * self.pad - self.kw + 1

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width after pooling."""
        return self.out[0] // self.pool, self.out[1] // self.pool

    @property
    def depth(self) -> int:
        """Numbers in one filter: taps times input channels."""
        return self.kh * self.kw * self.cin


@dataclass(frozen=True, slots=True)
class Tile:
    """The part that one program computes, and its numbers of warps and pipeline stages."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


def round_up(size: int, most: int) -> int:
    """Return the smallest power of two that covers a size, limited to 16 ... ``most``."""
    return max(16, min(most, 1 << (size - 1).bit_length()))


def choose_forward_tile(g: Geometry, precision: str) -> Tile:
    """Return the tile for `forward`."""
    rows, columns = 64 if g.pool == 2 else 128, round_up(g.cout, 64)
    if g.cin <= THIN:
        return Tile(rows, columns, round_up(g.depth, 32), warps=4, stages=1)
    return Tile(rows, columns, 32, warps=8 if precision == "tf32x3" else 4, stages=3)


def choose_input_tile(g: Geometry, precision: str, dtype: torch.dtype) -> Tile:
    """Return the tile for `input_gradient`."""
    columns = round_up(g.cin, 128)
    if precision == "tf32x3":
        return Tile(64, columns, round_up(g.cout, 64), warps=4, stages=3)
    return Tile(128, columns, round_up(g.cout, 64 if dtype == torch.bfloat16 else 32), warps=4, stages=3)


def choose_filters_tile(g: Geometry, precision: str, dtype: torch.dtype) -> Tile:
    """Return the tile for `filter_gradients`."""
    rows, most = round_up(g.cout, 64), round_up(g.batch, 32)
    if g.depth <= 32:
        warps, stages = (4, 2) if precision == "tf32x3" else (2, 1)
        return Tile(rows, round_up(g.depth, 32), most, warps, stages)
    if g.cout <= 32 or precision == "tf32x3":
        return Tile(rows, round_up(g.depth, 128), most, warps=4, stages=2)
    return Tile(
        rows,
        round_up(g.depth, 128),
        round_up(g.batch, 64),
        warps=4,
        stages=3 if dtype == torch.bfloat16 else 1,
    )


def count_splits(g: Geometry, tile: Tile, clients: int) -> int:
    """Return the number of parts of the sum over pixels: enough programs to fill some 130 processors several times."""
    programs = clients * count_tiles(g.depth, tile.columns) * count_tiles(g.cout, tile.rows)
    return max(1, min(640 // programs, g.pooled[0] * g.pooled[1] // 4, 36))


def forward(
    x: Tensor, w: Tensor, b: Tensor, g: Geometry, precision: str, *, batch_last: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Convolve images [C, B, H, W, in], in any order in memory, with filters [C, out, tap * in].

    Return the pooled outputs [C, B, PH, PW, out], the place that each came from [C, PH, PW, out, B], and with
    ``batch_last`` the outputs once more in that order.
    """
    ph, pw = g.pooled
    tile = choose_forward_tile(g, precision)
    y = torch.empty(len(x), g.batch, ph, pw, g.cout, dtype=x.dtype, device=x.device)
    which = torch.empty(len(x), ph, pw, g.cout, g.batch, dtype=torch.int8, device=x.device)
    last = torch.empty(which.shape, dtype=x.dtype, device=x.device) if batch_last else None
    grid = len(x), count_tiles(g.batch * ph * pw, tile.rows), count_tiles(g.cout, tile.columns)
    convolution_kernels.forward[grid](
        x, w, b, y, last, which, g.batch, g.height, g.width, g.cin, g.cout, g.kh, g.kw, g.pad, ph, pw, g.pool, g.relu,
        precision, x.stride(1), x.stride(3), x.stride(4), tile.rows, tile.columns, tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y, which, last


def unpool(dp: Tensor, which: Tensor, g: Geometry) -> Tensor:
    """Return the gradients [C, B, OH, OW, out] before pooling, from the gradients [C, PH, PW, out, B] after it."""
    (oh, ow), (ph, pw) = g.out, g.pooled
    whole = (ph * g.pool, pw * g.pool) == g.out
    make = torch.empty if whole else torch.zeros
    dy = make(len(dp), g.batch, oh, ow, g.cout, dtype=dp.dtype, device=dp.device)
    rows, columns = round_up(g.cout, 64), round_up(g.batch, 64)
    grid = len(dp) * ph * pw, count_tiles(g.cout, rows), count_tiles(g.batch, columns)
    convolution_kernels.unpool[grid](
        dp, which, dy, *_get_strides(dp), g.batch, oh, ow, ph, pw, g.cout, g.pool, rows, columns, num_warps=4
    )
    return dy


def input_gradient(dy: Tensor, w: Tensor, g: Geometry, precision: str) -> Tensor:
    """Return the gradient of the images [C, H, W, in, B], from `unpool` and filters [C, tap, in, out]."""
    tile = choose_input_tile(g, precision, dy.dtype)
    across = max(1, tile.rows // 64)
    dx = torch.empty(len(dy), g.height, g.width, g.cin, g.batch, dtype=dy.dtype, device=dy.device)
    grid = len(dy) * count_tiles(g.batch * across, tile.rows), g.height, count_tiles(g.width, across)
    convolution_kernels.input_gradient[grid](
        dy, w, dx, g.batch, g.height, g.width, g.cin, g.cout, g.kh, g.kw, g.pad, *g.out, precision,
        tile.rows, across, tile.columns, tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dx


def filter_gradients(
    x: Tensor, dp: Tensor, which: Tensor, g: Geometry, precision: str
) -> tuple[Tensor, Tensor]:
    """Return S parts of the gradients of filters [S, C, out, tap * in] and biases [S, C, out]; images are batch-last."""
    ph, pw = g.pooled
    tile = choose_filters_tile(g, precision, x.dtype)
    splits = count_splits(g, tile, len(x))
    dw = torch.empty(splits, len(x), g.cout, g.depth, dtype=torch.float32, device=x.device)
    db = torch.empty(splits, len(x), g.cout, dtype=torch.float32, device=x.device)
    grid = len(x), count_tiles(g.depth, tile.columns) * count_tiles(g.cout, tile.rows), splits
    convolution_kernels.filter_gradients[grid](
        x, dp, which, dw, db, len(x), *_get_strides(dp),
        g.batch, g.height, g.width, g.cin, g.cout, g.kh, g.kw, g.pad, ph, pw, g.pool,
        precision, splits, x.stride(2), x.stride(3), tile.rows, tile.columns, tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dw, db


def descend(
    w: Tensor,
    parts: Tensor,
    on: Tensor,
    lr: float,
    l2: float,
    copy: Tensor | None = None,
    turned: Tensor | None = None,
) -> None:
    """Take a step of weights [C, out, k] or [C, out] by gradients [S, C, ...], for clients whose ``on`` [C] is 1.

    Also write the new weights into ``copy``, of another type, and into ``turned`` [C, tap, in, out].
    """
    splits, clients, *shape = parts.shape
    out, depth = shape if len(shape) == 2 else (1, shape[0])
    rows, columns = (32, 32) if out > 1 else (1, 64)
    grid = clients, count_tiles(out, rows), count_tiles(depth, columns)
    convolution_kernels.descend[grid](
        w, parts, on, copy, turned, lr, lr * l2, clients, splits, out, depth, rows, columns, num_warps=4
    )


def _get_strides(dp: Tensor) -> tuple[int, int, int]:
    """Return the strides of clients, pixels and channels of [C, PH, PW, out, B]."""
    return dp.stride(0), dp.stride(2), dp.stride(3)
