"""Launches the kernels of `feduhb.engines.kernels.convolving`, which says how images and filters lie in memory.

Letters in shapes: C clients, B images a client, H, W, PH, PW height and width before and after, S parts of a sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from feduhb.engines.kernels import convolving
from feduhb.engines.kernels.language import tiles
from feduhb.engines.kernels.tiling import (
    Geometry,
    Tile,
    filters_splits,
    filters_tile,
    forward_tile,
    input_tile,
    power,
)  # fmt: skip


def forward(
    x: Tensor, w: Tensor, b: Tensor, g: Geometry,
    precision: str = "tf32", tile: Tile | None = None, *, batch_last: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Convolve images [C, B, H, W, in], in any order in memory, with filters [C, out, tap * in].

    Gives the pooled outputs [C, B, PH, PW, out], which place each came from [C, PH, PW, out, B], and, where asked
    for, the outputs once more, batch-last.
    """
    ph, pw = g.pooled
    tile = tile or forward_tile(g, precision)
    y = torch.empty(len(x), g.batch, ph, pw, g.cout, dtype=x.dtype, device=x.device)
    which = torch.empty(len(x), ph, pw, g.cout, g.batch, dtype=torch.int8, device=x.device)
    last = torch.empty(which.shape, dtype=x.dtype, device=x.device) if batch_last else None
    grid = len(x), tiles(g.batch * ph * pw, tile.rows), tiles(g.cout, tile.columns)
    convolving.forward[grid](
        x, w, b, y, last, which, g.batch, g.height, g.width, g.cin, g.cout, g.kh, g.kw, g.pad, ph, pw, g.pool, g.relu,
        precision, x.stride(1), x.stride(3), x.stride(4), tile.rows, tile.columns, tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y, which, last


def spread(dp: Tensor, which: Tensor, g: Geometry) -> Tensor:
    """Take gradients [C, PH, PW, out, B] of the pooled outputs back to [C, B, OH, OW, out]."""
    (oh, ow), (ph, pw) = g.out, g.pooled
    whole = (ph * g.pool, pw * g.pool) == g.out
    make = torch.empty if whole else torch.zeros
    dy = make(len(dp), g.batch, oh, ow, g.cout, dtype=dp.dtype, device=dp.device)
    rows, columns = power(g.cout, 64), power(g.batch, 64)
    grid = len(dp) * ph * pw, tiles(g.cout, rows), tiles(g.batch, columns)
    convolving.spread[grid](
        dp, which, dy, *_strides(dp), g.batch, oh, ow, ph, pw, g.cout, g.pool, rows, columns, num_warps=4
    )
    return dy


def to_input(
    dy: Tensor,
    w: Tensor,
    g: Geometry,
    precision: str = "tf32",
    tile: Tile | None = None,
    across: int | None = None,
) -> Tensor:
    """The gradient [C, H, W, in, B] of the images, from that of the unpooled outputs and filters [C, tap, in, out]."""
    tile = tile or input_tile(g, precision, dy.dtype)
    across = across or max(1, tile.rows // 64)
    dx = torch.empty(len(dy), g.height, g.width, g.cin, g.batch, dtype=dy.dtype, device=dy.device)
    grid = len(dy) * tiles(g.batch * across, tile.rows), g.height, tiles(g.width, across)
    convolving.to_input[grid](
        dy, w, dx, g.batch, g.height, g.width, g.cin, g.cout, g.kh, g.kw, g.pad, *g.out, precision,
        tile.rows, across, tile.columns, tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dx


def to_filters(
    x: Tensor, dp: Tensor, which: Tensor, g: Geometry,
    precision: str = "tf32", tile: Tile | None = None, splits: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of the filters [S, C, out, tap * in] and of the biases [S, C, out], in S parts to be summed; images batch-last."""
    ph, pw = g.pooled
    tile = tile or filters_tile(g, precision, x.dtype)
    splits = splits or filters_splits(g, tile, len(x))
    dw = torch.empty(splits, len(x), g.cout, g.depth, dtype=torch.float32, device=x.device)
    db = torch.empty(splits, len(x), g.cout, dtype=torch.float32, device=x.device)
    grid = len(x), tiles(g.depth, tile.columns) * tiles(g.cout, tile.rows), splits
    convolving.to_filters[grid](
        x, dp, which, dw, db, len(x), *_strides(dp),
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
    """Take a step of weights [C, out, k] or [C, out] along the sum of gradients [S, C, ...]; clients whose mask ``on`` [C] is 0 stay.

    The new weights also go into ``copy``, of another type, and ``turned`` [C, tap, in, out].
    """
    splits, clients, *shape = parts.shape
    out, depth = shape if len(shape) == 2 else (1, shape[0])
    rows, columns = (32, 32) if out > 1 else (1, 64)
    grid = clients, tiles(out, rows), tiles(depth, columns)
    convolving.descend[grid](
        w, parts, on, copy, turned, lr, lr * l2, clients, splits, out, depth, rows, columns, num_warps=4
    )


def _strides(dp: Tensor) -> tuple[int, int, int]:
    """How far clients, pixels and channels of [C, PH, PW, out, B] lie apart."""
    return dp.stride(0), dp.stride(2), dp.stride(3)
