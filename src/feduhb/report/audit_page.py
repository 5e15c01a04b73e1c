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
from feduhb.report.tables import verdict
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


def badge(told: str) -> str:
    """Give a verdict's word with its sign and colour; the word alone would do."""
    word = told.partition(" (")[0]
    return f'<span class="badge {word.replace(" ", "-")}">{SIGNS.get(word, "")} {escape(told)}</span>'


def _painted(header: str, cell: str) -> str:
    return badge(cell) if header == "verdict" else "<br>".join(escape(part) for part in cell.split("; "))


def _card(view: RunView, place: int, drawn: Collection[str]) -> str:
    """Verdict, reasons and exactness at once; the evidence on a click, and open in the card in front."""
    audit: dict[str, Any] = view.audit or {}
    found = {name: grid.without_names() for name, grid in grids([view]).items() if name not in ABOVE}
    evidence = "".join(_part(name, grid, place, drawn, audit) for name, grid in found.items())
    asked = f'<p class="small">asked to forget {escape(forgotten(view))}</p>'
    word = badge(verdict(view) or "")
    head = f"<header><div><h3>{escape(view.label)}</h3>{asked}</div>{word}</header>\n"
    other = f'<p class="notes">{escape(stale(view))}</p>' if stale(view) else ""
    noted = sentences(audit.get("notes") or [], "small")
    body = f"{other}{_grounds(audit)}{noted}"
    opened = "" if place else " open"
    return (
        f'<article class="card">{head}{body}'
        f"<details{opened}><summary>The evidence</summary>\n{evidence}{_made(audit)}</details></article>\n"
    )


def _grounds(audit: Mapping[str, Any]) -> str:
    """What the verdict rests on: exactness in front where it holds, the other reasons where it does not."""
    parts = [_checks(audit["exactness"]), sentences(_reasons(audit))]
    exact = audit["exactness"] is not None and audit["exactness"]["exact"]
    return "\n".join(parts if exact else parts[::-1])


def _reasons(audit: Mapping[str, Any]) -> list[str]:
    """The verdict's reasons, less those that the list of checks tells with its signs."""
    checks = (audit["exactness"] or {"checks": ()})["checks"]
    told = {check["says"] for check in checks}
    return [reason for reason in audit["verdict"]["reasons"] if reason not in told]


def _checks(exactness: Mapping[str, Any] | None) -> str:
    if exactness is None:
        return '<p class="small">Whether the weights are exact was not checked.</p>\n'
    said = "".join(_check(check) for check in exactness["checks"])
    return f'<h4>Exactness, to the last bit</h4>\n<ul class="checks">{said}</ul>\n'


def _check(check: Mapping[str, Any]) -> str:
    kind, sign, word = ("yes", "✓", "identical") if check["identical"] else ("no", "✗", "different")
    mark = f'<span role="img" aria-label="{word}">{sign}</span>'
    return f'<li class="{kind}">{mark}<div>{escape(check["says"])}</div></li>'


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
