"""Figures for paper and README, drawn with matplotlib's objects: no pyplot, no global state."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from feduhb.report.audit_figures import auc, clients
from feduhb.report.drawing import INK, SMALL, blank, write_headings
from feduhb.report.panels import ACCURACY, BACKDOOR, LOSS, MOVEMENT, Panel, direct
from feduhb.report.runs import RunView
from feduhb.report.stop_figures import heat_map, scales
from feduhb.report.style import Looks, strokes
from feduhb.report.sweep_figures import beta
from feduhb.report.words import scored

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(views: Sequence[RunView]) -> dict[str, Figure]:
    """Draw every figure these runs can fill, by name."""
    kinds: dict[str, Callable[[Sequence[RunView]], Figure | None]] = {
        "overview": overview,
        "curves": curves,
        "movement": movement,
        "backdoor": backdoor,
        "stop-map": heat_map,
        "lambda": scales,
        "beta": beta,
        "audit": auc,
        "clients": clients,
    }
    drawn = {name: kind(views) for name, kind in kinds.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def curves(views: Sequence[RunView]) -> Figure | None:
    """Draw test loss and test accuracy round by round."""
    return _figure(views, [LOSS, ACCURACY], width=4.9, height=3.2)


def movement(views: Sequence[RunView]) -> Figure | None:
    """Draw how far the weights moved each round, the stop rule's threshold, and where it fired."""
    return _figure(views, [MOVEMENT], width=6.4, height=3.4)


def backdoor(views: Sequence[RunView]) -> Figure | None:
    """Draw how often the planted trigger works on each run's final model."""
    return _figure(views, [BACKDOOR], width=6.4, height=1.1 + 0.4 * len(scored(views, "backdoor")))


def overview(views: Sequence[RunView]) -> Figure | None:
    """Draw accuracy, movement and backdoor side by side."""
    rows = len(scored(views, "backdoor"))
    return _figure(views, [ACCURACY, MOVEMENT, BACKDOOR], width=4.5, height=max(3.1, 1.1 + 0.32 * rows))


def png(figure: Figure) -> bytes:
    """Give a figure as PNG at 150 dpi."""
    return _saved(figure, format="png", dpi=150, metadata={"Software": None})


def pdf(figure: Figure) -> bytes:
    """Give a figure as PDF; the same runs give the same bytes."""
    return _saved(figure, format="pdf", metadata={"CreationDate": None})


def _figure(
    views: Sequence[RunView], panels: Sequence[Panel], *, width: float, height: float
) -> Figure | None:
    """Set the panels that have something to show side by side; the height is without lines under titles."""
    chosen = [(panel, shown) for panel in panels if (shown := panel.shows(views))]
    if not chosen:
        return None
    figure, every = blank(len(chosen), 1, width=width, height=height)
    looks = strokes(views)
    headings = [panel.draw(axes, shown, looks) for axes, (panel, shown) in zip(every, chosen, strict=True)]
    write_headings(figure, every, headings, width=width)
    if not direct(views) and any(panel in (LOSS, ACCURACY) for panel, _ in chosen):
        _legend(figure, views, looks)
    return figure


def _legend(figure: Figure, views: Sequence[RunView], looks: Looks) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=looks[v.label].colour, linestyle=looks[v.label].dash, linewidth=1.8)
        for v in views
    ]
    legend = figure.legend(
        lines, [view.label for view in views], loc="outside lower center", ncols=min(4, len(views)),
        frameon=False, fontsize=SMALL, labelcolor=INK,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _saved(figure: Figure, **how: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, **how)
    return buffer.getvalue()
