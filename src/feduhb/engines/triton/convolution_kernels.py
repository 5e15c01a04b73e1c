"""Convolution of many clients at once: implicit matrix products, fused with bias, ReLU and 2 x 2 max pooling.

Every client has its own filters, matrices [client, out, tap * in]. A tap is a place (ky, kx) in the window; patches
are never written to memory. Tensor cores read float32 operands only along the sum, so images come in two orders:
channels-last [client, batch, height, width, channels] for sums over channels, and batch-last
[client, height, width, channels, batch] for sums over images. Pooling stores, beside each maximum, which of the four
places it came from; place ``pool²`` means none, because ReLU returned 0. No sum uses atomics, so the same inputs give
the same bits.
"""

# pyright: reportInvalidTypeForm=false, reportMissingParameterType=false
from __future__ import annotations

from feduhb.engines.triton import compile_kernel, tl


@compile_kernel
def forward(
    x_ptr, w_ptr, b_ptr, y_ptr, last_ptr, which_ptr,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    POOL: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr,
    IMAGE: tl.constexpr, PIXEL: tl.constexpr, CHANNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
) -> None:  # fmt: skip
    """y = pool(relu(w * x + b)). Rows are pooled pixels of images, each computed at its POOL² places."""
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
    tl.store(
        y_ptr + (image.to(tl.int64) * (PH * PW) + pixel)[:, None] * COUT + column[None, :], best, mask=mine
    )
    pixels = (client * PH * PW + pixel).to(tl.int64)
    at = (pixels * COUT)[:, None] * BATCH + column[None, :] * BATCH + (row % BATCH)[:, None]
    tl.store(which_ptr + at, which.to(tl.int8), mask=mine)
    if last_ptr is not None:
        tl.store(last_ptr + at, best, mask=mine)


@compile_kernel
def unpool(
    dp_ptr, which_ptr, dy_ptr, dp_client, dp_pixel, dp_channel,
    BATCH: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    COUT: tl.constexpr, POOL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Undo pooling and ReLU: write each gradient to the place that its maximum came from, and 0 to the others."""
    client, pixel = tl.program_id(0) // (PH * PW), tl.program_id(0) % (PH * PW)
    channel = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    image = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    mine = (channel < COUT)[:, None] & (image < BATCH)[None, :]
    pixels = (tl.program_id(0) * COUT).to(tl.int64) * BATCH
    which = tl.load(which_ptr + pixels + channel[:, None] * BATCH + image[None, :], mask=mine, other=-1)
    source = (
        client.to(tl.int64) * dp_client + pixel * dp_pixel + channel[:, None] * dp_channel + image[None, :]
    )
    gradient = tl.load(dp_ptr + source, mask=mine, other=0)
    images = (client * BATCH + image).to(tl.int64) * (OH * OW)
    for place in tl.static_range(POOL * POOL):
        y, x = pixel // PW * POOL + place // POOL, pixel % PW * POOL + place % POOL
        at = (images + y * OW + x)[:, None] * COUT + channel[None, :]
        tl.store(dy_ptr + at, tl.trans(tl.where(which == place, gradient, 0)), mask=tl.trans(mine))


@compile_kernel
def input_gradient(
    dy_ptr, w_ptr, dx_ptr,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, ACROSS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
) -> None:  # fmt: skip
    """Compute dx, batch-last, from dy, channels-last, and filters [client, tap, in, out].

    A program computes ACROSS neighbouring pixels on one line, in several images. Since they lie on one line, it visits only
    the taps that meet the output.
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
    for step in range((bottom - top + 1) * wide * STEPS):
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


@compile_kernel
def filter_gradients(
    x_ptr, dp_ptr, which_ptr, dw_ptr, db_ptr, clients, dp_client, dp_pixel, dp_channel,
    BATCH: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    POOL: tl.constexpr, PRECISION: tl.constexpr, SPLITS: tl.constexpr, PIXEL: tl.constexpr, CHANNEL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
) -> None:  # fmt: skip
    """dw[out, tap * in] = Σ dy[pixel, out] x[pixel + tap, in] over images and one of SPLITS parts of the pixels; also db."""
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
        which = tl.load(chosen + (pixel * COUT + out)[:, None] * BATCH + image[None, :], mask=mine, other=-1)
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
        dw_ptr + filters.to(tl.int64)[:, None] * K + k[None, :],
        total,
        mask=(out < COUT)[:, None] & (k < K)[None, :],
    )
    if tile % TILES == 0:
        tl.store(db_ptr + filters, shift, mask=out < COUT)


@compile_kernel
def descend(
    w_ptr, parts_ptr, on_ptr, copy_ptr, turned_ptr, lr, decay, clients,
    SPLITS: tl.constexpr, OUT: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """w <- w - lr Σ parts - decay w for clients that are on; also write w in the orders that kernels read."""
    client = tl.program_id(0)
    out, k = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    mine = (out < OUT)[:, None] & (k < K)[None, :]
    first = client.to(tl.int64) * (OUT * K)
    inside = out[:, None] * K + k[None, :]
    gradient = tl.zeros((ROWS, COLUMNS), tl.float32)
    for split in tl.static_range(SPLITS):
        part = (split * clients + client).to(tl.int64) * (OUT * K)
        gradient += tl.load(parts_ptr + part + inside, mask=mine, other=0)
    at = first + inside
    w = tl.load(w_ptr + at, mask=mine, other=0)
    w = w * (1 - decay * tl.load(on_ptr + client)) - lr * gradient
    tl.store(w_ptr + at, w, mask=mine)
    if copy_ptr is not None:
        tl.store(copy_ptr + at, w, mask=mine)
    if turned_ptr is not None:
        tl.store(turned_ptr + first + k[:, None] * OUT + out[None, :], tl.trans(w), mask=tl.trans(mine))
