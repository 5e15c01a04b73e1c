"""The stop rule's map and the paper's figure on lambda, in matplotlib; both replayed from one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from feduhb.report.drawing import (
    GRID,
    INK,
    SMALL,
    SOFT,
    Heading,
    blank,
    label_ends,
    quiet,
    say,
    write_headings,
)
from feduhb.report.runs import RunView
from feduhb.report.stop_map import (
    BESIDE,
    LOOKED_BACK,
    SCALES,
    WINDOWS,
    Ending,
    StopMap,
    about,
    about_windows,
    mapped,
    spelled,
    stop_map,
)
from feduhb.report.style import BLUE, DARK_FROM, HEAT, OTHERS, VERMILLION
from feduhb.report.words import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MAP_WIDTH, PANEL_WIDTH = 6.6, 4.9  # inches
MIDDLE = 0.7  # λ: words stand to the right of a mark up to there
SILENT = {
    "facecolor": "#F5F5F5",
    "hatch": "////",
    "edgecolor": "#E2E2E2",
}  # a rule that would not have spoken


def heat_map(views: Sequence[RunView]) -> Figure | None:
    """Draw where every rule would have ended the run that stands in front, and its accuracy there."""
    from matplotlib.colors import LinearSegmentedColormap

    chosen = mapped(views)[:1]
    if not chosen:
        return None
    figure, (axes,) = blank(1, 1, width=MAP_WIDTH, height=5.0)
    found, heat = stop_map(chosen[0]), LinearSegmentedColormap.from_list("rounds", HEAT)
    for ending in found.endings.values():
        _cell(axes, ending, found, heat)
    _edges(axes, found)
    key = "round after which the rule would have ended the run, and test accuracy there"
    heading = Heading(
        f"The stop rule's map: {chosen[0].label}", [(text, SOFT) for text in [key, *about(chosen[0])]]
    )
    write_headings(figure, [axes], [heading], width=MAP_WIDTH)
    return figure


def _cell(axes: Axes, ending: Ending, found: StopMap, heat: Colormap) -> None:
    from matplotlib.patches import Rectangle

    x, y = WINDOWS.index(ending.window), SCALES.index(ending.scale)
    share = None if ending.round is None else ending.round / found.rounds
    look: dict[str, Any] = SILENT if share is None else {"facecolor": heat(share), "edgecolor": "white"}
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, linewidth=0.8, zorder=1, **look))
    if (ending.scale, ending.window) == found.own:
        own = Rectangle(
            (x - 0.45, y - 0.43), 0.9, 0.86, fill=False, edgecolor=VERMILLION, linewidth=2.2, zorder=3
        )
        axes.add_patch(own)
    colour = SOFT if share is None else "white" if share > DARK_FROM else INK
    axes.text(x, y, found.told(ending), ha="center", va="center", size=SMALL, color=colour, zorder=4)


def _edges(axes: Axes, found: StopMap) -> None:
    quiet(axes)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlim(-0.5, len(WINDOWS) - 0.5)
    axes.set_ylim(-0.5, len(SCALES) - 0.5)
    axes.set_xticks(range(len(WINDOWS)), [spelled(window) for window in WINDOWS])
    axes.set_yticks(range(len(SCALES)), [f"{scale:g}" for scale in SCALES])
    own = "      outlined: the run's own rule" if found.own else ""
    axes.set_xlabel(f"window: rounds the rule looks back on{own}", color=SOFT, size=SMALL)
    axes.set_ylabel("λ: larger stops earlier", color=SOFT, size=SMALL)


def scales(views: Sequence[RunView]) -> Figure | None:
    """Draw what lambda does: the round at which the rule ends the run, and the accuracy there."""
    chosen = mapped(views)[:1]
    if not chosen:
        return None
    found = stop_map(chosen[0])
    if len(found.unknown) == len(SCALES):
        return None
    scored = found.last is not None
    figure, every = blank(2 if scored else 1, 1, width=PANEL_WIDTH, height=3.3)
    headings = [_rounds(every[0], found, chosen[0])]
    if scored:
        headings.append(_accuracy(every[1], found))
    write_headings(figure, every, headings, width=PANEL_WIDTH)
    return figure


def _rounds(axes: Axes, found: StopMap, view: RunView) -> Heading:
    top = found.rounds * 1.1
    axes.set_ylim(0, top * 1.08)
    heights = {e.scale: float(e.round or top) for e in found.line(None) if e.scale not in found.unknown}
    _lines(axes, found, heights, "round")
    if silent := found.silent:
        right = silent[-1] < MIDDLE
        side, offset = ("left", 8) if right else ("right", 0)
        height = top if right else top * 0.92
        say(axes, f"did not fire in {found.rounds}", (silent[-1], height), (offset, 0), SOFT, ha=side)
    axes.set_ylabel("rounds run", color=SOFT, size=SMALL)
    return Heading(f"Rounds by λ: {view.label}", [(text, SOFT) for text in about_windows(view)])


def _accuracy(axes: Axes, found: StopMap) -> Heading:
    last = _known(found.last)
    known = [ending for ending in found.line(None) if ending.scale not in found.unknown]
    _lines(axes, found, {e.scale: last if e.round is None else _known(e.accuracy) for e in known}, "accuracy")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
    note = f"open: did not fire; {percent(last)} after the last round"
    return Heading("Test accuracy there", [(note, SOFT)] if found.silent else ())


def _lines(axes: Axes, found: StopMap, heights: dict[float, float], what: str) -> None:
    """Draw "all so far" in bold, open where it did not fire, and the other windows thin where they fire."""
    from matplotlib.ticker import FixedLocator

    ends: list[tuple[float, str, str]] = []
    for window, colour in zip(LOOKED_BACK, OTHERS, strict=False):
        fires = [ending for ending in found.line(window) if ending.round is not None]
        values = [_known(getattr(ending, what)) for ending in fires]
        if fires:
            axes.plot([e.scale for e in fires], values, color=colour, linewidth=1, marker=".", markersize=4)
            ends.append((values[-1], f"window {window}", colour))
    fired = [ending.scale for ending in found.line(None) if ending.round is not None]
    axes.plot(fired, [heights[scale] for scale in fired], color=BLUE, linewidth=1.8, zorder=3)
    for scale, height in heights.items():
        face = BLUE if scale in fired else "white"
        axes.plot([scale], [height], color=BLUE, marker="o", markersize=6.5, markerfacecolor=face, zorder=4)
    quiet(axes)
    axes.xaxis.set_major_locator(FixedLocator(SCALES))
    axes.set_xlim(SCALES[0] - BESIDE, SCALES[-1] + BESIDE)
    if found.unknown:
        axes.axvspan(SCALES[0] - BESIDE, found.unknown[-1] + BESIDE, color=GRID, alpha=0.6, zorder=1)
        middle = (SCALES[0] + found.unknown[-1]) / 2
        say(axes, "not known", (middle, 0.5), (0, 0), SOFT, within=("data", "axes fraction"), ha="center")
    axes.set_xlabel("λ", color=SOFT, size=SMALL)
    if ends:
        label_ends(axes, [e for e in [*ends, (heights[SCALES[-1]], "all so far", BLUE)] if e[0] == e[0]])


def _known(value: float | None) -> float:
    return math.nan if value is None else value
