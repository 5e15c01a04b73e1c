"""One step's batches of many clients, straight from the shelf into the order in which the first layer reads them."""

# pyright: reportInvalidTypeForm=false, reportMissingParameterType=false
from __future__ import annotations

import torch
from torch import Tensor

from feduhb.engines.kernels.language import kernel, tiles, tl


@kernel
def _fetch(
    now_ptr, order_ptr, shares_ptr, x_ptr, y_ptr, xs_ptr, ys_ptr, share_ptr, on_ptr, steps,
    BATCH: tl.constexpr, SIZE: tl.constexpr, BATCH_LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Gather the examples that ``order`` names for step ``now``: a tile of their numbers, and once their targets."""
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


def fetch(
    now: Tensor, order: Tensor, shares: Tensor, x: Tensor, y: Tensor, clients: int, *, batch_last: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give inputs [C, B, ...], targets [C, B], shares [C, B] and who is on [C], of the first clients, at step ``now``.

    With batch_last, images [C, B, ch, H, W] are a view of [C, ch, H, W, B].
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
    _fetch[clients, tiles(size, columns)](
        now,
        order,
        shares,
        x,
        y,
        xs,
        ys,
        share,
        on,
        steps,
        batch,
        size,
        batch_last,
        rows,
        columns,
        num_warps=4,
    )
    return (xs.movedim(-1, 1) if batch_last else xs), ys, share, on
