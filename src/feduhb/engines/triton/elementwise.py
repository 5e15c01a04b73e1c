"""The kernels besides the convolutions: batches, bias and ReLU, and the gradient of the cross-entropy."""

# pyright: reportInvalidTypeForm=false, reportMissingParameterType=false
from __future__ import annotations

import torch
from torch import Tensor

from feduhb.engines.triton import compile_kernel, count_tiles, tl


@compile_kernel
def _add_bias(
    y_ptr, b_ptr, length, EACH: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr
) -> None:
    """y <- relu(y + b), or y + b."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = at < length
    y = tl.load(y_ptr + at, mask=mine) + tl.load(b_ptr + at // EACH * OUT + at % OUT, mask=mine)
    tl.store(y_ptr + at, tl.maximum(y, 0) if RELU else y, mask=mine)


@compile_kernel
def _backward_bias(
    dy_ptr, y_ptr, b_ptr, on_ptr, lr, decay, dy_client, dy_row, dy_column,
    BATCH: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """dy <- dy where y > 0; b <- b - lr Σ dy - decay b for clients that are on."""
    client, column = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, BATCH, ROWS):
        row = start + tl.arange(0, ROWS)
        mine = (row < BATCH)[:, None] & (column < OUT)[None, :]
        at = client.to(tl.int64) * dy_client + row[:, None] * dy_row + column[None, :] * dy_column
        dy = tl.load(dy_ptr + at, mask=mine, other=0)
        if RELU:
            y = tl.load(
                y_ptr + (client * BATCH + row).to(tl.int64)[:, None] * OUT + column[None, :], mask=mine
            )
            dy = tl.where(mine & (y > 0), dy, 0)
            tl.store(dy_ptr + at, dy, mask=mine)
        total += tl.sum(dy, 0)
    if b_ptr is not None:
        at = client * OUT + column
        b = tl.load(b_ptr + at, mask=column < OUT)
        tl.store(b_ptr + at, b * (1 - decay * tl.load(on_ptr + client)) - lr * total, mask=column < OUT)


def add_bias(y: Tensor, b: Tensor, *, relu: bool) -> None:
    """Add biases [C, out] to products [C, B, out] in place, then apply ReLU if ``relu`` is set."""
    _, batch, out = y.shape
    _add_bias[(count_tiles(y.numel(), 1024),)](y, b, y.numel(), batch * out, out, relu, 1024, num_warps=4)


def backward_bias(
    dy: Tensor, y: Tensor, b: Tensor | None, on: Tensor, lr: float, l2: float, *, relu: bool
) -> None:
    """Take gradients [C, B, out] back through ReLU in place, and take the step of biases [C, out]."""
    clients, batch, out = y.shape
    columns = min(32, max(16, 1 << (out - 1).bit_length()))
    _backward_bias[clients, count_tiles(out, columns)](
        dy, y, b, on, lr, lr * l2, *dy.stride(), batch, out, relu, 64, columns, num_warps=4
    )


@compile_kernel
def _cross_entropy_gradient(
    z_ptr, y_ptr, share_ptr, dz_ptr, length, CLASSES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    """dz = share (softmax(z) - [class is y])."""
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    live = row < length
    mine = live[:, None] & (column < CLASSES)[None, :]
    at = row.to(tl.int64)[:, None] * CLASSES + column[None, :]
    z = tl.load(z_ptr + at, mask=mine, other=float("-inf"))
    z = tl.where(live[:, None], z, 0.0)
    grown = tl.exp(z - tl.max(z, 1)[:, None])
    y, share = tl.load(y_ptr + row, mask=live, other=0), tl.load(share_ptr + row, mask=live, other=0)
    right = (column[None, :] == y[:, None]).to(tl.float32)
    tl.store(dz_ptr + at, (grown / tl.sum(grown, 1)[:, None] - right) * share[:, None], mask=mine)


def cross_entropy_gradient(outputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """Return the gradient of Σ share · cross-entropy for outputs [C, B, classes], targets [C, B] and shares [C, B]."""
    z = outputs.contiguous()
    found = torch.empty_like(z)
    classes = z.shape[2]
    columns = max(2, 1 << (classes - 1).bit_length())
    rows = max(1, 512 // columns)
    tensors = z, targets.contiguous(), share.contiguous(), found
    _cross_entropy_gradient[(count_tiles(targets.numel(), rows),)](
        *tensors, targets.numel(), classes, rows, columns, num_warps=4
    )
    return found


@compile_kernel
def _gather_batches(
    now_ptr, order_ptr, shares_ptr, x_ptr, y_ptr, xs_ptr, ys_ptr, share_ptr, on_ptr, steps,
    BATCH: tl.constexpr, SIZE: tl.constexpr, BATCH_LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Gather a tile of the inputs that ``order`` lists for step ``now``; part 0 also writes targets and shares."""
    client, part = tl.program_id(0), tl.program_id(1)
    row, column = tl.arange(0, ROWS), part * COLUMNS + tl.arange(0, COLUMNS)
    live = row < BATCH
    at = (client * steps + tl.load(now_ptr)) * BATCH + row
    example = tl.load(order_ptr + at, mask=live, other=0)
    mine = live[:, None] & (column < SIZE)[None, :]
    x = tl.load(x_ptr + example[:, None] * SIZE + column[None, :], mask=mine, other=0)
    first = client.to(tl.int64) * BATCH * SIZE
    if BATCH_LAST:
        to = first + column[:, None] * BATCH + row[None, :]
        tl.store(xs_ptr + to, tl.trans(x), mask=tl.trans(mine))
    else:
        tl.store(xs_ptr + first + row[:, None] * SIZE + column[None, :], x, mask=mine)
    if part == 0:
        share = tl.load(shares_ptr + at, mask=live, other=0)
        tl.store(share_ptr + client * BATCH + row, share, mask=live)
        tl.store(ys_ptr + client * BATCH + row, tl.load(y_ptr + example, mask=live, other=0), mask=live)
        tl.store(on_ptr + client, tl.where(tl.max(share, 0) > 0, 1.0, 0.0))


def gather_batches(
    now: Tensor, order: Tensor, shares: Tensor, x: Tensor, y: Tensor, clients: int, *, batch_last: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs [C, B, ...], targets [C, B], shares [C, B] and which clients are on [C], at step ``now``.

    With ``batch_last``, images [C, B, ch, H, W] are a view of [C, ch, H, W, B].
    """
    _, steps, batch = order.shape
    size = x[0].numel()
    shape = (clients, *x.shape[1:], batch) if batch_last else (clients, batch, *x.shape[1:])
    xs = torch.empty(shape, dtype=x.dtype, device=x.device)
    ys = torch.empty(clients, batch, dtype=y.dtype, device=x.device)
    share = torch.empty(clients, batch, dtype=shares.dtype, device=x.device)
    on = torch.empty(clients, dtype=shares.dtype, device=x.device)
    rows = max(16, 1 << (batch - 1).bit_length())
    columns = 64 if rows <= 64 else 16
    tensors = now, order, shares, x, y, xs, ys, share, on
    _gather_batches[clients, count_tiles(size, columns)](
        *tensors, steps, batch, size, batch_last, rows, columns, num_warps=4
    )
    return (xs.movedim(-1, 1) if batch_last else xs), ys, share, on
