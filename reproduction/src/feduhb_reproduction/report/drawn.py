"""Every figure of a grid, by the name of its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feduhb_reproduction.cells import Cell
from feduhb_reproduction.report.ablation import ablation
from feduhb_reproduction.report.curves import curves
from feduhb_reproduction.report.federations import by_size, federations
from feduhb_reproduction.report.forgetting import forgetting
from feduhb_reproduction.report.momentum import beta
from feduhb_reproduction.report.scales import scales

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(cells: Sequence[Cell]) -> dict[str, Figure]:
    """Draw every figure these cells can fill."""
    sizes = by_size(federations(cells))
    drawn = {
        **{f"curves-{size}": curves(found) for size, found in sizes.items()},
        "forgetting": forgetting(cells),
        "beta": beta(cells),
        **{f"lambda-{size}": scales(found) for size, found in sizes.items()},
        "ablation": ablation(cells),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}
