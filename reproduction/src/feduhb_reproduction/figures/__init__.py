"""Every figure of a grid, by the name of its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feduhb_reproduction.cells import Cell
from feduhb_reproduction.federations import group_by_size, group_cells
from feduhb_reproduction.figures.curves import draw_curves
from feduhb_reproduction.figures.forgetting import draw_forgetting
from feduhb_reproduction.figures.scales import draw_scales
from feduhb_reproduction.figures.sweeps import draw_ablation, draw_betas

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(cells: Sequence[Cell]) -> dict[str, Figure]:
    """Draw every figure these cells can fill."""
    sizes = group_by_size(group_cells(cells))
    drawn = {
        **{f"curves-{size}": draw_curves(found) for size, found in sizes.items()},
        "forgetting": draw_forgetting(cells),
        "beta": draw_betas(cells),
        **{f"lambda-{size}": draw_scales(found) for size, found in sizes.items()},
        "ablation": draw_ablation(cells),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}
