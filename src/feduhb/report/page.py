"""Pages in one HTML file that needs nothing else: no server, no network, no fonts from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from feduhb.report import words
from feduhb.report.audit_charts import chart_attacks, chart_clients, chart_kept
from feduhb.report.audit_tables import list_audited, make_grids
from feduhb.report.charts import Chart, follow_scheme
from feduhb.report.curves import chart_backdoor, chart_movement, chart_score, chart_sweep, find_sweep
from feduhb.report.drawing import choose_strokes
from feduhb.report.grids import Grid
from feduhb.report.held_out import chart_held_out
from feduhb.report.runs import ORIGINAL, RunView, group_seeds, printable, retrain_of
from feduhb.report.stop_map import chart_map, chart_scales, list_mapped, replay_rules
from feduhb.report.tables import get_verdict, make_grids_of_each
from feduhb.report.tables import make_grids as make_run_grids
from feduhb.report.work import chart_work
from feduhb.runs.scores import name_score

if TYPE_CHECKING:
    from jinja2 import Environment

UNAUDITED = "not audited"
SIGNS = {
    "forgotten": "✓",
    "not caught": "○",
    "not forgotten": "✗",
    "useless": "✗",
    "inconclusive": "?",
    UNAUDITED: words.NOTHING,
}
SHOWN_FIRST = 3  # charts on the first screen
JUDGED_AT_MOST = 6  # runs with a verdict of their own at the top; more are listed by verdict


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: phrases, claims with their reasons, charts by a name unique on the page, a table, facts."""

    title: str
    phrases: Sequence[str] = ()
    points: Mapping[str, str] = field(default_factory=dict)
    charts: Mapping[str, Chart] = field(default_factory=dict)
    grid: Grid | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    folded: bool = False


class Number(NamedTuple):
    """A number on the first screen of a page, and the numbers to compare it with."""

    name: str
    value: str
    beside: str = ""


def render_page(
    title: str, headline: str, sections: Sequence[Section], numbers: Sequence[Number] = ()
) -> str:
    """Return a self-contained HTML document in the look of the report: a headline, numbers, then sections."""
    return _render("page.html", title=title, headline=headline, numbers=numbers, sections=sections)


def render_report(views: Sequence[RunView]) -> str:
    """Return the report on these runs as one self-contained HTML document."""
    looks = choose_strokes(views)
    drawn_views = words.choose_drawn(views)
    own = choose_strokes(drawn_views)
    scored = [(score, chart_score(drawn_views, own, score)) for score in words.list_charted(views)]
    scores = {_name_chart(score, place): chart for place, (score, chart) in enumerate(scored) if chart}
    work = chart_work(views, looks)
    is_many = len(drawn_views) > JUDGED_AT_MOST  # the bars of the backdoor would fill the first screen
    charts = dict([*scores.items()][:1]) | {
        **({"work": work} if is_many else {}),
        "movement": chart_movement(drawn_views, own),
        "backdoor": chart_backdoor(drawn_views, own),
        **scores,
        "work": work,
        "held-out": chart_held_out(drawn_views, own),
    }
    drawn = [(name, chart) for name, chart in charts.items() if chart is not None]
    maps, sweep = [replay_rules(view) for view in list_mapped(views)], find_sweep(views)
    return _render(
        "report.html",
        title="Unlearning report",
        headline=words.headline(views),
        settings=words.list_settings(views),
        verdicts=_list_verdicts(views),
        numbers=_choose_numbers(views),
        first=dict(drawn[:SHOWN_FIRST]),
        more=dict(drawn[SHOWN_FIRST:]),
        notes=words.list_notes(views),
        grids=make_run_grids(views),
        each=make_grids_of_each(views),
        summary=make_grids(views).get("verdicts"),
        audits=[
            _show_audit(view, views, place, looks[view.label].colour)
            for place, (view, _) in enumerate(list_audited(views))
        ],
        maps={f"stop-map-{place}": chart for place, found in enumerate(maps) if (chart := chart_map(found))},
        silent=[" ".join(found.describe()) for found in maps if not found.fires],
        scales=chart_scales(maps[0]) if maps else {},
        betas={} if sweep is None else chart_sweep(sweep),
        floor=words.describe_floor(views) if charts["backdoor"] else "",
        approximate=words.name_approximate(views),
        starts=words.explain_starts(views),
        views=views,
    )


def _list_verdicts(views: Sequence[RunView]) -> list[tuple[str, str, str]]:
    """Return (names, verdict, kind) for each unlearning run; many runs with the same verdict share an entry."""
    found = [
        (view.label, get_verdict(view) or UNAUDITED, "exact" if view.exact else "approximate")
        for view in views
        if view.unlearned
    ]
    if len(found) <= JUDGED_AT_MOST:
        return found
    alike: dict[str, list[str]] = {}
    for name, runs in group_seeds([view for view in views if view.unlearned]):
        counts = Counter(get_verdict(view) or UNAUDITED for view in runs)
        for verdict, count in counts.items():
            part = "" if count == len(runs) else f" ({count} of {len(runs)} seeds)"
            alike.setdefault(verdict, []).append(name + part)
    return [(", ".join(labels), verdict, "") for verdict, labels in alike.items()]


def _name_chart(score: str, place: int) -> str:
    name = words.name_part(score)
    return f"{name}-{place}" if name == "score" else name


def _show_audit(view: RunView, views: Sequence[RunView], place: int, colour: str) -> dict[str, Any]:
    """Return a run's audit for the template, each table with its chart."""
    audit = view.audit
    assert audit is not None  # noqa: S101 (only audited runs come here)
    charts = {
        "attacks": (f"auc-{place}", chart_attacks(audit, colour)),
        "kept": (f"kept-{place}", chart_kept(audit, colour)),
        "clients": (f"clients-{place}", chart_clients(audit, view.label)),
    }
    grids = [
        (grid.without_names(), charts.get(name, ("", None)))
        for name, grid in make_grids([view], views).items()
        if name not in {"verdicts", "exactness"}  # the reasons and the list of checks hold the same
    ]
    checked = {check.says for check in audit.exactness.checks} if audit.exactness else set[str]()
    reasons = [reason for reason in audit.verdict.reasons if reason not in checked]
    shown = {"view": view, "audit": audit, "verdict": get_verdict(view), "grids": grids, "reasons": reasons}
    return shown | {"warning": words.warn_of_other_weights(view)}


def _choose_numbers(views: Sequence[RunView]) -> list[Number]:
    """Return the four numbers of the main run, each beside Retrain's or a control's."""
    view = words.choose_main(views) or views[0]
    other = retrain_of(view, views)
    silent = "; its stop rule did not fire" if view.judged and view.fired is None else ""
    rounds = f"of {view.result['scheduled_rounds']} scheduled"
    score, seconds, scored = words.choose_score([view]), "", ""
    if other is not None and other is not view:
        rounds = f"{other.label}: {len(other.rounds)}"
        seconds = f"{other.label}: {words.format_number(other.seconds)}; {words.compare_seconds(view, other)}"
        scored = f"{other.label}: {words.format_final(other, score)}"
    numbers = [
        Number("rounds", f"{len(view.rounds)}", rounds + silent),
        Number("seconds", words.format_number(view.seconds), seconds),
        Number(printable(name_score(score)), words.format_final(view, score), scored),
        _choose_attack(view, other, views),
    ]
    return [number._replace(name=f"{view.label}: {number.name}") for number in numbers]


def _choose_attack(view: RunView, retrain: RunView | None, views: Sequence[RunView]) -> Number:
    """Return the backdoor success, else the AUC of the most powerful attack, each beside its controls; else the megabytes sent."""
    if view.final("backdoor") is not None:
        controls = [other for other in views if other is retrain or other.role == ORIGINAL]
        beside = [f"{v.label}: {words.format_share(v.final('backdoor'))}" for v in controls if v is not view]
        return Number("backdoor success", words.format_share(view.final("backdoor")), ", ".join(beside))
    attacks = view.audit.membership if view.audit is not None and view.audited else ()
    if attacks:
        attack = max(attacks, key=lambda attack: attack.power)
        unlearned, retrained, original = (attack.models[m].auc for m in ("unlearned", "retrain", "original"))
        beside = f"Retrain: {retrained:.3f}, original: {original:.3f}"
        return Number(f"AUC of the {attack.attack} attack", f"{unlearned:.3f}", beside)
    return Number("MB down + up", words.format_number(view.megabytes))


def _render(template: str, **context: object) -> str:
    return _get_templates().get_template(template).render(context)


@cache
def _get_templates() -> Environment:
    """Return the Jinja2 environment of the templates, which escapes every value that they insert."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = PackageLoader("feduhb.report")
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, script = (Markup(loader.get_source(made, name)[0]) for name in ("page.css", "page.js"))  # noqa: S704 (ours)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    def draw(chart: Chart, name: str) -> tuple[Markup, object]:
        svg, points = chart.render(name)
        return Markup(svg), points  # noqa: S704 (an XML library wrote and escaped it)

    made.globals |= {"style": style, "script": script, "digest": digest, "draw": draw, "signs": SIGNS}
    made.filters |= {
        "colour": follow_scheme,
        "number": words.format_number,
        "request": words.format_request,
        "carried": words.format_carried,
        "settings": words.join_settings,
    }
    return made
