"""The paper's figure on MISR and ASR, with the controls that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from feduhb.report.drawing import (
    GREY,
    INK,
    SMALL,
    SOFT,
    Heading,
    new_figure,
    style_axes,
    write_headings,
    write_text,
)
from feduhb.report.words import NOTHING, format_percent
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Cell
from feduhb_reproduction.federations import Federation, group_by_size, group_cells
from feduhb_reproduction.figures.parts import describe_seeds, name_data, write_over
from feduhb_reproduction.measures import TREES, Spread, measure_asr, measure_misr
from feduhb_reproduction.words import CORRECTED, METHODS, ROWS, STROKES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RUNS = (ORIGINAL, *METHODS)
WIDTH, NAMES_WIDTH = 1.9, 1.4  # inches of a panel, and of the names beside the first
ROOM = 1.4  # of the axis, so that a full bar's number still fits
FULL = 1.02  # of the axis, beyond which no number begins


def draw_forgetting(cells: Sequence[Cell]) -> Figure | None:
    """Draw MISR for each federation and ASR where a backdoor was planted, a row for each size of client."""
    rows = [row for row in _list_rows(cells) if row]
    if not rows:
        return None
    columns = max(map(len, rows))
    figure, every = new_figure(columns, len(rows), width=WIDTH, height=1.95)
    headings: list[Heading] = []
    for place, axes in enumerate(every):
        row, column = divmod(place, columns)
        headings.append(_draw_panel(axes, rows[row], column))
    write_headings(figure, every, headings, width=WIDTH, rows=len(rows))
    figure.set_figwidth(WIDTH * columns + NAMES_WIDTH)
    shown = [federation for row in rows for federation in row]
    broke = any(each.failed(run) and each.tracks(run) for each in shown for run in RUNS)
    partly = " In brackets: seeds that did not break off." if broke else ""
    phrases = [
        f"{name_data(cells)}; {describe_seeds(shown, 'whiskers')}.",
        f"MISR: forgotten data that the attacker ({TREES}) calls member; black mark: test data it calls so. Retrain's bar is what labels alone give.",
        f"ASR: stamped test images taken for the target; dashed: Retrain, which never saw the trigger.{partly}",
    ]
    write_over(figure, phrases)
    return figure


def _list_rows(cells: Sequence[Cell]) -> list[list[Federation]]:
    """Return for each size the federations with a MISR, then those with a backdoor."""
    known = [each for each in group_cells(cells) if measure_misr(each, ORIGINAL).called.n]
    planted = [each for each in group_cells(cells, backdoor=True) if measure_asr(each, ORIGINAL).n]
    plain, stamped = group_by_size(known), group_by_size(planted)
    return [[*plain.get(size, ()), *stamped.get(size, ())] for size in dict.fromkeys([*plain, *stamped])]


def _draw_panel(axes: Axes, row: Sequence[Federation], column: int) -> Heading:
    if column >= len(row):
        axes.set_visible(False)
        return Heading("")
    federation = row[column]
    for place, run in enumerate(RUNS):
        _draw_bar(axes, place, federation, run)
    if federation.backdoor and (floor := measure_asr(federation, RETRAIN).mean) is not None:
        axes.axvline(floor, color=GREY, linewidth=1, linestyle="dashed", zorder=1)
    _set_axes(axes, named=not column)
    what, size = "ASR" if federation.backdoor else "MISR", federation.per_client
    images = "all images" if size is None else f"{size} images"
    return Heading(federation.short, [(f"{what}, {images}", SOFT)])


def _draw_bar(axes: Axes, place: int, federation: Federation, run: str) -> None:
    """Draw one model's rate, its whisker, the rate on test data and the number, or that it broke off."""
    rate, on_test = (
        (measure_asr(federation, run), Spread()) if federation.backdoor else measure_misr(federation, run)
    )
    broke, many = len(federation.failed(run)), len(federation.every(run))
    if rate.mean is None:
        write_text(axes, "broke off" if broke else NOTHING, (0, place), (4, 0), SOFT)
        return
    low, high = rate.mean - (rate.sd or 0), rate.mean + (rate.sd or 0)
    hatch = "////" if run == CORRECTED else None
    look = {"facecolor": STROKES[run].colour, "edgecolor": "white", "linewidth": 0, "hatch": hatch}
    axes.barh([place], [rate.mean], height=0.62, zorder=2, **look)
    axes.plot([low, high], [place] * 2, color=INK, linewidth=1, zorder=3)
    if on_test.mean is not None:
        axes.plot([on_test.mean] * 2, [place - 0.4, place + 0.4], color=INK, linewidth=2.2, zorder=4)
    few = f" ({many - broke}/{many})" if broke else ""
    beside = min(FULL, max(high, on_test.mean or 0))
    write_text(axes, f"{format_percent(rate.mean)}{few}", (beside, place), (4, 0), INK)


def _set_axes(axes: Axes, *, named: bool) -> None:
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, ROOM)
    axes.set_ylim(len(RUNS) - 0.45, -0.55)
    axes.set_xticks([0, 0.5, 1], ["0%", "50%", "100%"])
    axes.set_yticks(range(len(RUNS)), [ROWS[run] if named else "" for run in RUNS], color=INK, size=SMALL)
