"""The charts of audits: the attacks with their controls, and the remaining clients."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feduhb.audit.result import MODELS, ORIGINAL, RETRAIN, UNLEARNED, Attack, Audit, Roc
from feduhb.report import drawing as dr
from feduhb.report.audit_tables import (
    BESIDE,
    NAMES,
    describe_changes,
    describe_gain,
    list_audited,
    list_changes,
    name_attack,
)
from feduhb.report.charts import BAND, Chart, Key, Series
from feduhb.report.runs import RunView, printable
from feduhb.runs.scores import format_score, is_share, name_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

APART = 0.27  # between models, where rows are 1 apart
COLOURS = {ORIGINAL: dr.GREY, RETRAIN: dr.VERMILLION}
MARKS = {ORIGINAL: "s", RETRAIN: "D", UNLEARNED: "o"}
THIN = "Thin: 99% interval; thick: 90%."
INTERVALS = f"{THIN} “Not caught”: the thick part lies in the band, or the AUC is as near to Retrain's."
WORSE, BETTER = dr.VERMILLION, dr.BLUE
# Clients that a chart can name, and those whose names need no turning.
NAMED_AN_INCH, LEVEL_AN_INCH = 5.2, 2.8


class AttackRow(NamedTuple):
    """The AUC of three models, and the label and colour that stand for them."""

    label: str
    models: Mapping[str, Roc]
    colour: str
    verdict: str = ""
    margin: float = 0.0  # of the band around 0.5; 0: no band


def chart_attacks(audit: Audit, colour: str) -> Chart | None:
    """Describe the AUC of every attack of one audit."""
    rows = [_make_row(name_attack(attack), attack, colour) for attack in audit.membership]
    return _chart_auc("AUC by attack and model", rows) if rows else None


def chart_kept(audit: Audit, colour: str) -> Chart | None:
    """Describe what the original reveals if it is kept beside each model, by every attack that compares two models."""
    kept = [(name_attack(attack), attack.kept.models) for attack in audit.membership if attack.kept]
    rows = [AttackRow(name, models, colour) for name, models in kept]
    return _chart_auc("AUC of the original, kept beside each model", rows, names=BESIDE) if rows else None


def chart_attacks_by_kind(views: Sequence[RunView], looks: dr.Looks) -> list[Chart]:
    """Describe the AUC of every run, a chart for each kind of attack, all on one scale, the canaries last."""
    kinds: dict[tuple[bool, bool, str], list[AttackRow]] = {}
    titles: dict[tuple[bool, bool, str], str] = {}
    for view, audit in list_audited(views):
        for attack in audit.membership:
            kind = attack.canaries, attack.rehearsal, attack.attack
            kinds.setdefault(kind, []).append(_make_row(view.label, attack, looks[view.label].colour))
            titles[kind] = printable(f"{attack.attack[:1].upper()}{attack.attack[1:]}, {attack.on}")
    every = [row for rows in kinds.values() for row in rows]
    ordered = sorted(kinds, key=lambda kind: kind[:2])
    return [
        _chart_auc(titles[kind], kinds[kind], every, noted=not place) for place, kind in enumerate(ordered)
    ]


def _make_row(label: str, attack: Attack, colour: str) -> AttackRow:
    return AttackRow(label, attack.models, colour, attack.verdict, attack.margin)


def _chart_auc(
    title: str,
    rows: Sequence[AttackRow],
    every: Sequence[AttackRow] = (),
    *,
    noted: bool = True,
    names: Mapping[str, str] = NAMES,
) -> Chart:
    """Describe AUC with its intervals and the band that "not caught" needs, on a scale that holds every row."""
    intervals = [row.models[model].interval for row in every or rows for model in MODELS]
    low = min(0.44, *(each.low for each in intervals)) - 0.02
    high = max(0.56, *(each.high for each in intervals)) + 0.02
    heights = {model: offset for offset, model in zip((-APART, 0.0, APART), MODELS, strict=True)}

    def draw(axes: Axes) -> None:
        edge = {"markeredgecolor": dr.GROUND, "markeredgewidth": 0.9}
        for place, row in enumerate(rows):
            if row.margin:
                edges = 0.5 - row.margin, 0.5 + row.margin
                axes.fill_betweenx([place - 0.46, place + 0.46], *edges, color=BAND, linewidth=0, zorder=0)
            for model, roc in ((model, row.models[model]) for model in MODELS):
                colour, height = COLOURS.get(model, row.colour), place + heights[model]
                for bounds, width in ((roc.interval, 1.1), (roc.equivalence, 3.2)):
                    ends = [bounds.low, bounds.high]
                    axes.plot(ends, [height] * 2, color=colour, linewidth=width, zorder=2)
                axes.plot(
                    [roc.auc], [height], marker=MARKS[model], markersize=7, color=colour, zorder=3, **edge
                )
            dr.write_text(axes, row.verdict, (1, place), (5, 0), dr.INK, within=("axes fraction", "data"))
        axes.axvline(0.5, color=dr.SOFT, linewidth=0.9, zorder=1)
        dr.style_axes(axes)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(low, high)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        names = [textwrap.fill(row.label, 16) for row in rows]
        axes.set_yticks(range(len(rows)), names, color=dr.INK, parse_math=False)
        axes.set_xlabel("AUC: 0.5 is chance, 1 is certainty", color=dr.SOFT, size=dr.SMALL)

    series = [
        Series(f"{row.label}: {names[model]}", COLOURS.get(model, row.colour), [roc.auc], [place + heights[model]],
               [f"AUC {roc.auc:.3f} [{roc.interval.low:.3f}, {roc.interval.high:.3f}]"])
        for place, row in enumerate(rows)
        for model, roc in ((model, row.models[model]) for model in MODELS)
    ]  # fmt: skip
    own = {row.colour for row in every or rows}
    unlearned = own.pop() if len(own) == 1 else dr.INK
    keys = [Key(names[model], dr.Stroke(COLOURS.get(model, unlearned)), MARKS[model]) for model in MODELS]
    notes = [(INTERVALS if rows[0].margin else THIN, dr.SOFT)] if noted else []
    return Chart(title, draw, series, notes, keys, height=0.8 + 0.66 * len(rows))


def chart_clients(audit: Audit, label: str) -> Chart | None:
    """Describe each remaining client's main score before and after, the largest loss first."""
    changed, score = list_changes(audit), audit.main_score
    if not changed:
        return None
    places, size = range(len(changed)), max(2.2, min(6.0, 220 / len(changed)))
    before, after = [row.before for row in changed], [row.after for row in changed]
    colours = [dr.GREY if not row.gain else WORSE if row.gain < 0 else BETTER for row in changed]

    def draw(axes: Axes) -> None:
        axes.vlines(places, before, after, colors=colours, linewidth=max(0.9, size / 3), alpha=0.6, zorder=2)
        axes.scatter(places, before, s=size**2, color=dr.GREY, zorder=3)
        axes.scatter(places, after, s=size**2, color=colours, zorder=4)
        dr.style_axes(axes)
        axes.grid(visible=False, axis="x")
        axes.set_xlim(-0.8, len(changed) - 0.2)
        if is_share(score):
            dr.show_percent(axes)
        figure = axes.get_figure(root=True)
        width = figure.get_figwidth() if figure else 0.0
        if len(changed) <= NAMED_AN_INCH * width:
            names = [textwrap.shorten(row.client, 12, placeholder="…") for row in changed]
            turned = 90 if len(changed) > LEVEL_AN_INCH * width else 0
            axes.set_xticks(places, names, rotation=turned, parse_math=False)
        else:
            axes.set_xticks([])
            label = f"{len(changed)} clients, from the largest loss to the largest gain"
            axes.set_xlabel(label, color=dr.SOFT, size=dr.SMALL)

    texts = [
        f"{row.client}: {format_score(score, row.before)} → {format_score(score, row.after)} ({describe_gain(audit, row.gain)}"
        + ("" if row.retrain is None else f"; Retrain {format_score(score, row.retrain)}") + ")"
        for row in changed
    ]  # fmt: skip
    series = [Series("", dr.GREY, places, after, texts)]
    worse, better = ("worse", "better") if audit.is_low_best else ("lower", "higher")
    named = (("before, or unchanged", dr.GREY), (f"after: {worse}", WORSE), (f"after: {better}", BETTER))
    keys = [Key(name, dr.Stroke(colour), "o") for name, colour in named]
    measured = "" if score == "accuracy" else f", {printable(name_score(score))}"
    notes = [(describe_changes(audit), dr.SOFT)]
    return Chart(f"Remaining clients{measured}: {label}", draw, series, notes, keys)
