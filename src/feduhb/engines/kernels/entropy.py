"""The gradient of the cross-entropy of many clients at once."""

# pyright: reportInvalidTypeForm=false, reportMissingParameterType=false
from __future__ import annotations

import torch
from torch import Tensor

from feduhb.engines.kernels.language import kernel, tiles, tl


@kernel
def _slope(
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


def slope(outputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
    """The gradient of Σ share · cross-entropy, for outputs [C, B, classes], targets [C, B] and shares [C, B]."""
    z = outputs.contiguous()
    found = torch.empty_like(z)
    classes = z.shape[2]
    columns = max(2, 1 << (classes - 1).bit_length())
    rows = max(1, 512 // columns)
    _slope[(tiles(targets.numel(), rows),)](
        z,
        targets.contiguous(),
        share.contiguous(),
        found,
        targets.numel(),
        classes,
        rows,
        columns,
        num_warps=4,
    )
    return found
