"""What surrounds the matrix products of a linear layer: bias and ReLU, forward and back."""

# pyright: reportInvalidTypeForm=false, reportMissingParameterType=false
from __future__ import annotations

from torch import Tensor

from feduhb.engines.kernels.language import kernel, tiles, tl


@kernel
def _lift(
    y_ptr, b_ptr, length, EACH: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr
) -> None:
    """y <- relu(y + b), or y + b."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = at < length
    y = tl.load(y_ptr + at, mask=mine) + tl.load(b_ptr + at // EACH * OUT + at % OUT, mask=mine)
    tl.store(y_ptr + at, tl.maximum(y, 0) if RELU else y, mask=mine)


@kernel
def _fall(
    dy_ptr, y_ptr, b_ptr, on_ptr, lr, decay, dy_client, dy_row, dy_column,
    BATCH: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """dy <- dy where y > 0; b <- b - lr Σ dy - decay b, where a client is on."""
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


def lift(y: Tensor, b: Tensor, *, relu: bool) -> None:
    """Add biases [C, out] to products [C, B, out] in place, and cut off below 0 where asked."""
    _, batch, out = y.shape
    _lift[(tiles(y.numel(), 1024),)](y, b, y.numel(), batch * out, out, relu, 1024, num_warps=4)


def fall(dy: Tensor, y: Tensor, b: Tensor | None, on: Tensor, lr: float, l2: float, *, relu: bool) -> None:
    """Take gradients [C, B, out] back through ReLU in place, and let biases [C, out] take their step."""
    clients, batch, out = y.shape
    columns = min(32, max(16, 1 << (out - 1).bit_length()))
    _fall[clients, tiles(out, columns)](
        dy, y, b, on, lr, lr * l2, *dy.stride(), batch, out, relu, 64, columns, num_warps=4
    )
