"""The shape of a convolution, and how its work is cut into tiles: what was fastest on an H200."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from feduhb.engines.kernels.language import tiles

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


def power(size: int, most: int) -> int:
    """The power of two that covers a size, 16 to ``most``."""
    return max(16, min(most, 1 << (size - 1).bit_length()))


def forward_tile(g: Geometry, precision: str) -> Tile:
    """The tile of `forward` that was fastest on an H200 for filters of this shape."""
    rows, columns = 64 if g.pool == 2 else 128, power(g.cout, 64)
    if g.cin <= THIN:
        return Tile(rows, columns, power(g.depth, 32), warps=4, stages=1)
    return Tile(rows, columns, 32, warps=8 if precision == "tf32x3" else 4, stages=3)


def input_tile(g: Geometry, precision: str, dtype: torch.dtype) -> Tile:
    """The tile of `to_input` that was fastest on an H200."""
    columns = power(g.cin, 128)
    if precision == "tf32x3":
        return Tile(64, columns, power(g.cout, 64), warps=4, stages=3)
    return Tile(128, columns, power(g.cout, 64 if dtype == torch.bfloat16 else 32), warps=4, stages=3)


def filters_tile(g: Geometry, precision: str, dtype: torch.dtype) -> Tile:
    """The tile of `to_filters` that was fastest on an H200."""
    rows, most = power(g.cout, 64), power(g.batch, 32)
    if g.depth <= 32:
        warps, stages = (4, 2) if precision == "tf32x3" else (2, 1)
        return Tile(rows, power(g.depth, 32), most, warps, stages)
    if g.cout <= 32 or precision == "tf32x3":
        return Tile(rows, power(g.depth, 128), most, warps=4, stages=2)
    return Tile(
        rows, power(g.depth, 128), power(g.batch, 64), warps=4, stages=3 if dtype == torch.bfloat16 else 1
    )


def filters_splits(g: Geometry, tile: Tile, clients: int) -> int:
    """Parts of the sum over pixels: enough programs to fill a GPU of some 130 processors several times over."""
    programs = clients * tiles(g.depth, tile.columns) * tiles(g.cout, tile.rows)
    return max(1, min(640 // programs, g.pooled[0] * g.pooled[1] // 4, 36))
