"""The page's answer to "Did it forget?": a card for each audited run, its controls beside every number."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from feduhb.audit.result import Audit, Check, Exactness, Word
from feduhb.report.audit_tables import grids, membership_lines
from feduhb.report.audit_words import INTRODUCTION, Audited, audited, fared
from feduhb.report.grids import Grid
from feduhb.report.markup import chart, section, sentences
from feduhb.report.runs import RunView
from feduhb.report.tables import verdict
from feduhb.report.words import forgotten, number, stale

SIGNS: dict[Word, str] = {
    "forgotten": "✓",
    "not caught": "○",
    "not forgotten": "✗",
    "useless": "✗",
    "inconclusive": "?",
}
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
    summary = _summary(views, chosen) if len(chosen) > 1 else ""
    cards = "".join(_card(view, audit, place, drawn) for place, (view, audit) in enumerate(chosen))
    return section("Did it forget?", f"<p>{escape(INTRODUCTION)}</p>\n{summary}\n{cards}")


def badge(word: Word, text: str) -> str:
    """Return a verdict as HTML, with the sign and the colour of its word; the text alone would do."""
    return f'<span class="badge {word.replace(" ", "-")}">{SIGNS[word]} {escape(text)}</span>'


def _summary(views: Sequence[RunView], chosen: Sequence[Audited]) -> str:
    """Return the table of verdicts, each with its badge, and each attack on a line of its own."""
    spelled = {
        ("verdict", verdict(view) or ""): badge(audit.verdict.word, verdict(view) or "")
        for view, audit in chosen
    }
    spelled |= {
        ("membership attacks", "; ".join(lines)): "<br>".join(map(escape, lines))
        for lines in (membership_lines(audit) for _, audit in chosen)
    }
    return grids(views)["verdicts"].html(lambda header, cell: spelled.get((header, cell), escape(cell)))


def _card(view: RunView, audit: Audit, place: int, drawn: Collection[str]) -> str:
    """Verdict, reasons and exactness at once; the evidence on a click, and open in the card in front."""
    found = {name: grid.without_names() for name, grid in grids([view]).items() if name not in ABOVE}
    evidence = "".join(_part(name, grid, place, drawn, audit) for name, grid in found.items())
    asked = f'<p class="small">asked to forget {escape(forgotten(view))}</p>'
    word = badge(audit.verdict.word, verdict(view) or "")
    head = f"<header><div><h3>{escape(view.label)}</h3>{asked}</div>{word}</header>\n"
    other = f'<p class="notes">{escape(stale(view))}</p>' if stale(view) else ""
    noted = sentences(audit.notes, "small")
    body = f"{other}{_grounds(audit)}{noted}"
    opened = "" if place else " open"
    return (
        f'<article class="card">{head}{body}'
        f"<details{opened}><summary>The evidence</summary>\n{evidence}{_made(audit)}</details></article>\n"
    )


def _grounds(audit: Audit) -> str:
    """What the verdict rests on: exactness in front where it holds, the other reasons where it does not."""
    parts = [_checks(audit.exactness), sentences(_reasons(audit))]
    exact = audit.exactness is not None and audit.exactness.exact
    return "\n".join(parts if exact else parts[::-1])


def _reasons(audit: Audit) -> list[str]:
    """The verdict's reasons, less those that the list of checks tells with its signs."""
    told = {check.says for check in audit.exactness.checks} if audit.exactness else set[str]()
    return [reason for reason in audit.verdict.reasons if reason not in told]


def _checks(exactness: Exactness | None) -> str:
    if exactness is None:
        return '<p class="small">Whether the weights are exact was not checked.</p>\n'
    said = "".join(_check(check) for check in exactness.checks)
    return f'<h4>Exactness, to the last bit</h4>\n<ul class="checks">{said}</ul>\n'


def _check(check: Check) -> str:
    kind, sign, word = ("yes", "✓", "identical") if check.identical else ("no", "✗", "different")
    mark = f'<span role="img" aria-label="{word}">{sign}</span>'
    return f'<li class="{kind}">{mark}<div>{escape(check.says)}</div></li>'


def _part(name: str, grid: Grid, place: int, drawn: Collection[str], audit: Audit) -> str:
    """One question: how to read the answer, its chart, its table, and the audit's own sentences."""
    kind, caption = CHARTS.get(name, ("", ""))
    picture = chart(f"{kind}-{place}", caption) if f"{kind}-{place}" in drawn else ""
    told = [fared(audit)] if name == "clients" else grid.sentences
    return (
        f'<h4>{escape(grid.title)}</h4>\n<p class="small">{escape(grid.note)}</p>\n{sentences(told)}\n'
        f"{picture}\n{grid.html()}\n"
    )


def _made(audit: Audit) -> str:
    facts = {
        "audited": f"{audit.finished}, in {number(audit.seconds)} s, seed {audit.seed}",
        "settings": ", ".join(f"{key} {value}" for key, value in audit.settings.items()),
        "versions": ", ".join(f"{key} {value}" for key, value in audit.versions.items()),
        "SHA-256 of the weights": audit.weights_sha256,
    }
    listed = "".join(f"<dt>{key}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    return f"<h4>How this audit was made</h4>\n<dl>{listed}</dl>\n"
