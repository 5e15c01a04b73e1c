"""What the audits found, in matplotlib: the attacks with their controls, and those who stayed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from feduhb.audit.result import MODELS, ORIGINAL, RETRAIN, UNLEARNED, Attack, Roc
from feduhb.report.audit_words import NAMED_AT_MOST, NAMES, Change, audited, changes, fared, title
from feduhb.report.drawing import INK, SMALL, SOFT, Heading, blank, quiet, say, write_headings
from feduhb.report.runs import RunView
from feduhb.report.style import BAND, BLUE, GREY, VERMILLION, Looks, strokes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ATTACK_WIDTH, CLIENTS_WIDTH = 4.6, 8.6  # inches
ROW = 0.27  # between models, where runs are 1 apart
COLOURS = {ORIGINAL: GREY, RETRAIN: VERMILLION}
MARKS = {ORIGINAL: "s", RETRAIN: "D", UNLEARNED: "o"}
KEY = "Thin: 99% interval; thick: 90%. “Not caught” needs the thick part to lie in the band."
WORSE, BETTER = VERMILLION, BLUE
Found = tuple[RunView, Attack]


def auc(views: Sequence[RunView]) -> Figure | None:
    """Draw every attack's AUC on the three models, its intervals, and the band that "not caught" needs."""
    found = [(view, attack) for view, audit in audited(views) for attack in audit.membership]
    if not found:
        return None
    kinds = dict.fromkeys(_kind(attack) for _, attack in found)
    panels = [[pair for pair in found if _kind(pair[1]) == kind] for kind in kinds]
    figure, every = blank(len(panels), 1, width=ATTACK_WIDTH, height=1.2 + 0.72 * max(map(len, panels)))
    looks = strokes(views)
    for axes, panel in zip(every, panels, strict=True):
        _attack(axes, panel, looks, _ends(found))
    headings = [Heading(title(panel[0][1]), [(KEY, SOFT)] if not i else ()) for i, panel in enumerate(panels)]
    own = {looks[view.label].colour for view, _ in found}
    unlearned = own.pop() if len(own) == 1 else INK
    _legend(figure, [(NAMES[model], MARKS[model], COLOURS.get(model, unlearned)) for model in MODELS])
    write_headings(figure, every, headings, width=ATTACK_WIDTH)
    return figure


def _kind(attack: Attack) -> tuple[str, bool, bool]:
    """Return what attacks of one panel have in common."""
    return attack.attack, attack.canaries, attack.rehearsal


def _ends(found: Sequence[Found]) -> tuple[float, float]:
    """Give all panels one scale, as wide as the widest interval."""
    seen = [attack.models[model].interval for _, attack in found for model in MODELS]
    return min(0.44, *(i.low for i in seen)) - 0.02, max(0.56, *(i.high for i in seen)) + 0.02


def _attack(axes: Axes, panel: Sequence[Found], looks: Looks, ends: tuple[float, float]) -> None:
    for place, (view, attack) in enumerate(panel):
        edges = 0.5 - attack.margin, 0.5 + attack.margin
        axes.fill_betweenx([place - 0.46, place + 0.46], *edges, color=BAND, linewidth=0, zorder=0)
        for offset, model in zip((-ROW, 0.0, ROW), MODELS, strict=True):
            colour = COLOURS.get(model, looks[view.label].colour)
            _dot(axes, attack.models[model], place + offset, colour, MARKS[model])
        say(axes, attack.verdict, (1, place + ROW), (5, 0), INK, within=("axes fraction", "data"))
    axes.axvline(0.5, color=SOFT, linewidth=0.9, zorder=1)
    quiet(axes)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(*ends)
    axes.set_ylim(len(panel) - 0.45, -0.55)
    names = [textwrap.fill(view.label, 16) for view, _ in panel]
    axes.set_yticks(range(len(panel)), names, color=INK, parse_math=False)
    axes.set_xlabel("AUC: 0.5 is a coin, 1 is certainty", color=SOFT, size=SMALL)


def _dot(axes: Axes, roc: Roc, height: float, colour: str, mark: str) -> None:
    for bounds, width in ((roc.interval, 1.1), (roc.equivalence, 3.2)):
        axes.plot([bounds.low, bounds.high], [height] * 2, color=colour, linewidth=width, zorder=2)
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.9}
    axes.plot([roc.auc], [height], marker=mark, markersize=7, color=colour, zorder=3, **edge)


def _legend(figure: Figure, names: Sequence[tuple[str, str, str]]) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], linestyle="none", marker=mark, color=colour) for _, mark, colour in names]
    how = {"loc": "outside lower center", "frameon": False, "fontsize": SMALL, "labelcolor": INK}
    figure.legend(marks, [name for name, _, _ in names], ncols=len(names), **how)


def clients(views: Sequence[RunView]) -> Figure | None:
    """Draw each remaining client's accuracy before and after, the losers in front."""
    chosen = [(view, audit) for view, audit in audited(views) if changes(audit)]
    if not chosen:
        return None
    figure, every = blank(1, len(chosen), width=CLIENTS_WIDTH, height=2.6)
    for axes, (_, audit) in zip(every, chosen, strict=True):
        _stayed(axes, changes(audit))
    headings = [Heading(f"Those who stayed: {v.label}", [(fared(audit), SOFT)]) for v, audit in chosen]
    _legend(
        figure,
        [("before, or unchanged", "o", GREY), ("after: lower", "o", WORSE), ("after: higher", "o", BETTER)],
    )
    write_headings(figure, every, headings, width=CLIENTS_WIDTH, rows=len(chosen))
    return figure


def _stayed(axes: Axes, changed: Sequence[Change]) -> None:
    places, size = range(len(changed)), max(2.2, min(6.0, 220 / len(changed)))
    before, after = [row.before for row in changed], [row.after for row in changed]
    colours = [GREY if not row.gain else WORSE if row.gain < 0 else BETTER for row in changed]
    axes.vlines(places, before, after, colors=colours, linewidth=max(0.9, size / 3), alpha=0.6, zorder=2)
    axes.scatter(places, before, s=size**2, color=GREY, zorder=3)
    axes.scatter(places, after, s=size**2, color=colours, zorder=4)
    quiet(axes)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.8, len(changed) - 0.2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    if len(changed) <= NAMED_AT_MOST:
        names = [textwrap.shorten(row.client, 12, placeholder="…") for row in changed]
        axes.set_xticks(places, names, rotation=90 if len(changed) > 24 else 0, parse_math=False)
    else:
        axes.set_xticks([])
        axes.set_xlabel(
            f"{len(changed)} clients, from the largest loss to the largest gain", color=SOFT, size=SMALL
        )
