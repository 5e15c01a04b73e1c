"""Every figure of a grid, by the name of its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feduhb.paper.cells import Cell
from feduhb.report.paper.ablation import ablation
from feduhb.report.paper.curves import curves
from feduhb.report.paper.federations import by_size, federations
from feduhb.report.paper.forgetting import forgetting
from feduhb.report.paper.momentum import beta
from feduhb.report.paper.scales import scales

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
