"""Convolution of many clients at once: implicit matrix products, fused with bias, ReLU and 2 x 2 max pooling.

Every client has its own filters, matrices [client, out, tap * in]: a tap is a place (ky, kx) in the window, and no
patch is ever written to memory. Tensor cores read float32 operands only along the sum, so images come in two orders:
channels-last [client, batch, height, width, channels] where channels are summed over, and batch-last
[client, height, width, channels, batch] where images are. Pooling keeps, beside each maximum, which of the four
places it came from; place ``pool²`` stands for "none", where ReLU let nothing through. Nothing is summed by
atomics, so the same inputs give the same bits.
"""

# pyright: reportInvalidTypeForm=false, reportOptionalMemberAccess=false
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.engines.kernels.language import kernel, tiles, tl

THIN = 8  # channels up to which images are convolved batch-last: their runs of channels are too short to load


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of one convolution, with the pooling that follows it."""

    batch: int  # images a client
    height: int
    width: int
    cin: int
    cout: int
    kh: int
    kw: int
    pad: int = 0
    pool: int = 1  # 2: followed by 2 x 2 max pooling
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
        """The length of a filter as a vector: taps times input channels."""
        return self.kh * self.kw * self.cin


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes, and with how many warps and loads ahead."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


@kernel
def _forward(
    x_ptr, w_ptr, b_ptr, y_ptr, last_ptr, which_ptr,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    POOL: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
    IMAGE: tl.constexpr, PIXEL: tl.constexpr, CHANNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """y = pool(relu(w * x + b)): rows are pooled pixels of images, each computed at its POOL² places."""
    client, tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    PLACES: tl.constexpr = POOL * POOL
    K: tl.constexpr = KH * KW * CIN
    every = tl.arange(0, PLACES * ROWS)
    place, row = every // ROWS, tile * ROWS + every % ROWS
    live = row < BATCH * PH * PW
    pixel, image = row // BATCH, row % BATCH
    top, left = pixel // PW * POOL + place // POOL - PAD, pixel % PW * POOL + place % POOL - PAD
    images = x_ptr + client.to(tl.int64) * (BATCH * H * W * CIN) + image * IMAGE
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    filters = w_ptr + (client * COUT + column).to(tl.int64) * K
    total = tl.zeros((PLACES * ROWS, COLUMNS), tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        tap = k // CIN
        down, across = top[:, None] + (tap // KW)[None, :], left[:, None] + (tap % KW)[None, :]
        seen = live[:, None] & (k < K)[None, :]
        if PAD > 0:
            seen = seen & (down >= 0) & (down < H) & (across >= 0) & (across < W)
        patch = tl.load(
            images[:, None] + (down * W + across) * PIXEL + (k % CIN)[None, :] * CHANNEL, mask=seen, other=0
        )
        w = tl.load(filters[None, :] + k[:, None], mask=(column < COUT)[None, :] & (k < K)[:, None], other=0)
        total = tl.dot(patch, w, total, input_precision=PRECISION)
    if POOL == 1:
        best, which = total, tl.zeros((ROWS, COLUMNS), tl.int32)
    else:
        best, which = tl.max(tl.reshape(total, (PLACES, ROWS, COLUMNS)), 0, return_indices=True)
    best += tl.load(b_ptr + client * COUT + column, mask=column < COUT, other=0)[None, :]
    if RELU:
        which = tl.where(best > 0, which, PLACES)
        best = tl.maximum(best, 0)
    row = tile * ROWS + tl.arange(0, ROWS)
    pixel, image = row // BATCH, client * BATCH + row % BATCH
    mine = (pixel < PH * PW)[:, None] & (column < COUT)[None, :]
    tl.store(y_ptr + (image.to(tl.int64) * (PH * PW) + pixel)[:, None] * COUT + column[None, :], best, mask=mine)
    pixels = (client * PH * PW + pixel).to(tl.int64)
    at = (pixels * COUT)[:, None] * BATCH + column[None, :] * BATCH + (row % BATCH)[:, None]
    tl.store(which_ptr + at, which.to(tl.int8), mask=mine)
    if last_ptr is not None:
        tl.store(last_ptr + at, best, mask=mine)


@kernel
def _spread(
    dp_ptr, which_ptr, dy_ptr, dp_client, dp_pixel, dp_channel,
    BATCH: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    COUT: tl.constexpr, POOL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Undo pooling and ReLU: each gradient goes back to the place its maximum came from, zeros to the others."""
    client, pixel = tl.program_id(0) // (PH * PW), tl.program_id(0) % (PH * PW)
    channel = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    image = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    mine = (channel < COUT)[:, None] & (image < BATCH)[None, :]
    pixels = (tl.program_id(0) * COUT).to(tl.int64) * BATCH
    which = tl.load(which_ptr + pixels + channel[:, None] * BATCH + image[None, :], mask=mine, other=-1)
    source = client.to(tl.int64) * dp_client + pixel * dp_pixel + channel[:, None] * dp_channel + image[None, :]
    gradient = tl.load(dp_ptr + source, mask=mine, other=0)
    images = (client * BATCH + image).to(tl.int64) * (OH * OW)
    for place in tl.static_range(POOL * POOL):
        y, x = pixel // PW * POOL + place // POOL, pixel % PW * POOL + place % POOL
        at = (images + y * OW + x)[:, None] * COUT + channel[None, :]
        tl.store(dy_ptr + at, tl.trans(tl.where(which == place, gradient, 0)), mask=tl.trans(mine))


@kernel
def _to_input(
    dy_ptr, w_ptr, dx_ptr,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, ACROSS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """dx, batch-last, of dy, channels-last, and filters [client, tap, in, out]: ACROSS neighbours on one line, in several images.

    All pixels of a program lie on one line, so that only taps that meet the output are visited.
    """
    line, first = tl.program_id(1), tl.program_id(2) * ACROSS
    BLOCKS: tl.constexpr = (BATCH * ACROSS + ROWS - 1) // ROWS
    client, tile = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    row = tile * ROWS + tl.arange(0, ROWS)
    x = first + row // BATCH
    live = (row < BATCH * ACROSS) & (x < W)
    image = (client * BATCH + row % BATCH).to(tl.int64)
    channel = tl.arange(0, COLUMNS)
    top, bottom = tl.maximum(0, line + PAD - OH + 1), tl.minimum(KH - 1, line + PAD)
    left, right = tl.maximum(0, first + PAD - OW + 1), tl.minimum(KW - 1, first + ACROSS - 1 + PAD)
    wide = right - left + 1
    STEPS: tl.constexpr = (COUT + DEPTH - 1) // DEPTH
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, (bottom - top + 1) * wide * STEPS):
        ky, kx = top + step // STEPS // wide, left + step // STEPS % wide
        out = step % STEPS * DEPTH + tl.arange(0, DEPTH)
        down, across = line + PAD - ky, x + PAD - kx
        met = live & (across >= 0) & (across < OW)
        dy = tl.load(
            dy_ptr + ((image * OH + down) * OW + across)[:, None] * COUT + out[None, :],
            mask=met[:, None] & (out < COUT)[None, :], other=0,
        )  # fmt: skip
        filters = w_ptr + (((client * KH + ky) * KW + kx) * CIN + channel) * COUT
        w = tl.load(
            filters[None, :] + out[:, None], mask=(channel < CIN)[None, :] & (out < COUT)[:, None], other=0
        )
        total = tl.dot(dy, w, total, input_precision=PRECISION)
    pixel = ((client * H + line) * W + x).to(tl.int64)
    at = (pixel * CIN)[:, None] * BATCH + channel[None, :] * BATCH + (row % BATCH)[:, None]
    tl.store(dx_ptr + at, total, mask=live[:, None] & (channel < CIN)[None, :])


@kernel
def _to_filters(
    x_ptr, dp_ptr, which_ptr, dw_ptr, db_ptr, clients, dp_client, dp_pixel, dp_channel,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    POOL: tl.constexpr, PRECISION: tl.constexpr, SPLITS: tl.constexpr, PIXEL: tl.constexpr, CHANNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """dw[out, tap * in] = Σ over pixels and images of dy[pixel, out] x[pixel + tap, in], and db, over one of SPLITS parts of the pixels."""
    client, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    K: tl.constexpr = KH * KW * CIN
    TILES: tl.constexpr = (K + COLUMNS - 1) // COLUMNS
    PARTS: tl.constexpr = (BATCH + DEPTH - 1) // DEPTH
    SHARE: tl.constexpr = (PH * PW * PARTS + SPLITS - 1) // SPLITS
    out = tile // TILES * ROWS + tl.arange(0, ROWS)
    k = tile % TILES * COLUMNS + tl.arange(0, COLUMNS)
    tap = k // CIN
    images = x_ptr + client.to(tl.int64) * (H * W * CIN * BATCH)
    gradients = dp_ptr + client.to(tl.int64) * dp_client
    chosen = which_ptr + client.to(tl.int64) * (PH * PW * COUT * BATCH)
    total, shift = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS,), tl.float32)
    for step in range(split * SHARE, tl.minimum(split * SHARE + SHARE, PH * PW * PARTS)):
        pixel, image = step // PARTS, step % PARTS * DEPTH + tl.arange(0, DEPTH)
        mine = (out < COUT)[:, None] & (image < BATCH)[None, :]
        gradient = tl.load(
            gradients + pixel * dp_pixel + out[:, None] * dp_channel + image[None, :], mask=mine, other=0
        )
        which = tl.load(
            chosen + (pixel * COUT + out)[:, None] * BATCH + image[None, :], mask=mine, other=-1
        )
        for place in tl.static_range(POOL * POOL):
            down = pixel // PW * POOL + place // POOL - PAD + tap // KW
            across = pixel % PW * POOL + place % POOL - PAD + tap % KW
            seen = k < K
            if PAD > 0:
                seen = seen & (down >= 0) & (down < H) & (across >= 0) & (across < W)
            patch = tl.load(
                images + ((down * W + across) * PIXEL + k % CIN * CHANNEL)[:, None] + image[None, :],
                mask=seen[:, None] & (image < BATCH)[None, :], other=0,
            )  # fmt: skip
            dy = tl.where(which == place, gradient, 0)
            shift += tl.sum(dy.to(tl.float32), 1)
            total = tl.dot(dy, tl.trans(patch), total, input_precision=PRECISION)
    filters = (split * clients + client) * COUT + out
    tl.store(
        dw_ptr + filters.to(tl.int64)[:, None] * K + k[None, :], total, mask=(out < COUT)[:, None] & (k < K)[None, :]
    )
    if tile % TILES == 0:
        tl.store(db_ptr + filters, shift, mask=out < COUT)


@kernel
def _descend(
    w_ptr, parts_ptr, on_ptr, copy_ptr, turned_ptr, lr, decay, length,
    SPLITS: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, CIN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """w <- w - lr Σ parts - decay w, where a client is on; and w once more in the orders that kernels read."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = at < length
    gradient = tl.zeros((ROWS,), tl.float32)
    for split in tl.static_range(SPLITS):
        gradient += tl.load(parts_ptr + split * length.to(tl.int64) + at, mask=mine, other=0)
    client, filter = at // (COUT * TAPS * CIN), at // (TAPS * CIN) % COUT
    on = tl.load(on_ptr + client, mask=mine, other=0)
    w = tl.load(w_ptr + at, mask=mine, other=0)
    w = w * (1 - decay * on) - lr * gradient
    tl.store(w_ptr + at, w, mask=mine)
    if copy_ptr is not None:
        tl.store(copy_ptr + at, w, mask=mine)
    if turned_ptr is not None:
        tl.store(turned_ptr + (client * (TAPS * CIN) + at % (TAPS * CIN)) * COUT + filter, w, mask=mine)


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
    _forward[grid](
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
    rows, columns = _power(g.cout, 64), _power(g.batch, 64)
    grid = len(dp) * ph * pw, tiles(g.cout, rows), tiles(g.batch, columns)
    _spread[grid](
        dp, which, dy, *_strides(dp), g.batch, oh, ow, ph, pw, g.cout, g.pool, rows, columns, num_warps=4
    )
    return dy


def to_input(
    dy: Tensor, w: Tensor, g: Geometry, precision: str = "tf32", tile: Tile | None = None, across: int | None = None
) -> Tensor:
    """The gradient [C, H, W, in, B] of the images, from that of the unpooled outputs and filters [C, tap, in, out]."""
    tile = tile or input_tile(g, precision, dy.dtype)
    across = across or max(1, tile.rows // 64)
    dx = torch.empty(len(dy), g.height, g.width, g.cin, g.batch, dtype=dy.dtype, device=dy.device)
    grid = len(dy) * tiles(g.batch * across, tile.rows), g.height, tiles(g.width, across)
    _to_input[grid](
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
    _to_filters[grid](
        x, dp, which, dw, db, len(x), *_strides(dp),
        g.batch, g.height, g.width, g.cin, g.cout, g.kh, g.kw, g.pad, ph, pw, g.pool,
        precision, splits, x.stride(2), x.stride(3), tile.rows, tile.columns, tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dw, db


def descend(
    w: Tensor, parts: Tensor, on: Tensor, lr: float, l2: float, copy: Tensor | None = None, turned: Tensor | None = None
) -> None:
    """Take a step of weights [C, out, ...] along the sum of gradients [S, C, out, ...]; clients whose mask ``on`` [C] is 0 stay.

    The new weights also go into ``copy``, of another type, and ``turned`` [C, tap, in, out].
    """
    splits, _, out = parts.shape[:3]
    taps, into = turned.shape[1:3] if turned is not None else (1, parts[0, 0, 0].numel())
    length = parts[0].numel()
    _descend[(tiles(length, 256),)](
        w, parts, on, copy, turned, lr, lr * l2, length, splits, out, taps, into, 256, num_warps=2
    )


def _strides(dp: Tensor) -> tuple[int, int, int]:
    """How far clients, pixels and channels of [C, PH, PW, out, B] lie apart."""
    return dp.stride(0), dp.stride(2), dp.stride(3)


def _power(size: int, most: int) -> int:
    """The power of two that covers a size, 16 to ``most``."""
    return max(16, min(most, 1 << (size - 1).bit_length()))


def forward_tile(g: Geometry, precision: str) -> Tile:
    """The tile of `forward` that was fastest on an H200 for filters of this shape."""
    rows, columns = 64 if g.pool == 2 else 128, _power(g.cout, 64)
    if g.cin <= THIN:
        return Tile(rows, columns, _power(g.depth, 32), warps=4, stages=1)
    return Tile(rows, columns, 32, warps=8 if precision == "tf32x3" else 4, stages=3)


def input_tile(g: Geometry, precision: str, dtype: torch.dtype) -> Tile:
    """The tile of `to_input` that was fastest on an H200."""
    columns = _power(g.cin, 128)
    if precision == "tf32x3":
        return Tile(64, columns, _power(g.cout, 64), warps=4, stages=3)
    return Tile(128, columns, _power(g.cout, 64 if dtype == torch.bfloat16 else 32), warps=4, stages=3)


def filters_tile(g: Geometry, precision: str, dtype: torch.dtype) -> Tile:
    """The tile of `to_filters` that was fastest on an H200."""
    rows, most = _power(g.cout, 64), _power(g.batch, 32)
    if g.depth <= 32:
        warps, stages = (4, 2) if precision == "tf32x3" else (2, 1)
        return Tile(rows, _power(g.depth, 32), most, warps, stages)
    if g.cout <= 32 or precision == "tf32x3":
        return Tile(rows, _power(g.depth, 128), most, warps=4, stages=2)
    return Tile(
        rows, _power(g.depth, 128), _power(g.batch, 64), warps=4, stages=3 if dtype == torch.bfloat16 else 1
    )


def filters_splits(g: Geometry, tile: Tile, clients: int) -> int:
    """Parts of the sum over pixels: enough programs to fill a GPU of some 130 processors several times over."""
    programs = clients * tiles(g.depth, tile.columns) * tiles(g.cout, tile.rows)
    return max(1, min(640 // programs, g.pooled[0] * g.pooled[1] // 4, 36))
