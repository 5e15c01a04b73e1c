"""The page's answer to "Did it forget?": a card for each audited run, its controls beside every number."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from feduhb.report.audit_tables import grids
from feduhb.report.audit_words import INTRODUCTION, audited, fared
from feduhb.report.grids import Grid
from feduhb.report.markup import chart, section, sentences
from feduhb.report.runs import RunView
from feduhb.report.words import forgotten, number, stale

SIGNS = {"forgotten": "✓", "not caught": "○", "not forgotten": "✗", "useless": "✗", "inconclusive": "?"}
CHARTS = {
    "attacks": (
        "auc",
        "AUC by attack and model: thin bars 99%, thick bars 90%; the band is where “not caught” needs the thick bar",
    ),
    "clients": ("clients", "Accuracy of each, before and after"),
}
ABOVE = ("verdicts", "exactness")  # told in a card's head, in other words


def audits(views: Sequence[RunView], drawn: Collection[str]) -> str:
    """Render every audit; nothing where no run was audited."""
    chosen = audited(views)
    if not chosen:
        return ""
    summary = grids(chosen)["verdicts"].html(_painted) if len(chosen) > 1 else ""
    cards = "".join(_card(view, place, drawn) for place, view in enumerate(chosen))
    return section("Did it forget?", f"<p>{escape(INTRODUCTION)}</p>\n{summary}\n{cards}")


def badge(verdict: str) -> str:
    """Give a verdict's word with its sign and colour; the word alone would do."""
    word = verdict.partition(" (")[0]
    return f'<span class="badge {word.replace(" ", "-")}">{SIGNS.get(word, "")} {escape(verdict)}</span>'


def _painted(header: str, cell: str) -> str:
    return badge(cell) if header == "verdict" else escape(cell).replace("; ", "<br>")


def _card(view: RunView, place: int, drawn: Collection[str]) -> str:
    """Verdict, reasons and exactness at once; the evidence on a click, and open in the card in front."""
    audit: dict[str, Any] = view.audit or {}
    found = {name: grid.without_names() for name, grid in grids([view]).items() if name not in ABOVE}
    evidence = "".join(_part(name, grid, place, drawn, audit) for name, grid in found.items())
    asked = f'<p class="small">asked to forget {escape(forgotten(view))}</p>'
    head = (
        f"<header><div><h3>{escape(view.label)}</h3>{asked}</div>{badge(audit['verdict']['word'])}</header>\n"
    )
    other = f'<p class="notes">{escape(stale(view))}</p>' if stale(view) else ""
    body = f"{other}{sentences(audit['verdict']['reasons'])}\n{_checks(audit['exactness'])}"
    opened = "" if place else " open"
    return (
        f'<article class="card">{head}{body}'
        f"<details{opened}><summary>The evidence</summary>\n{evidence}{_made(audit)}</details></article>\n"
    )


def _checks(exactness: Mapping[str, Any] | None) -> str:
    if exactness is None:
        return '<p class="small">Whether the weights are exact was not checked.</p>\n'
    said = "".join(_check(check) for check in exactness["checks"])
    return f'<h4>Exactness, to the last bit</h4>\n<ul class="checks">{said}</ul>\n'


def _check(check: Mapping[str, Any]) -> str:
    kind, sign, word = ("yes", "✓", "identical") if check["identical"] else ("no", "✗", "different")
    size = check["largest_difference"]
    far = "" if check["identical"] or size is None else f", by up to {size:.3g} in one weight"
    return f'<li class="{kind}"><span aria-hidden="true">{sign}</span><div>{escape(check["says"])} <em>({word}{far})</em></div></li>'


def _part(name: str, grid: Grid, place: int, drawn: Collection[str], audit: Mapping[str, Any]) -> str:
    """One question: how to read the answer, its chart, its table, and the audit's own sentences."""
    kind, caption = CHARTS.get(name, ("", ""))
    picture = chart(f"{kind}-{place}", caption) if f"{kind}-{place}" in drawn else ""
    told = [fared(audit)] if name == "clients" else grid.sentences
    return (
        f'<h4>{escape(grid.title)}</h4>\n<p class="small">{escape(grid.note)}</p>\n{sentences(told)}\n'
        f"{picture}\n{grid.html()}\n"
    )


def _made(audit: Mapping[str, Any]) -> str:
    facts = {
        "audited": f"{audit['finished']}, in {number(audit['seconds'])} s, seed {audit.get('seed')}",
        "settings": ", ".join(f"{key} {value}" for key, value in audit["settings"].items()),
        "versions": ", ".join(f"{key} {value}" for key, value in audit["versions"].items()),
        "SHA-256 of the weights": audit["weights_sha256"],
    }
    listed = "".join(f"<dt>{key}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    return f"<h4>How this audit was made</h4>\n<dl>{listed}</dl>\n"
