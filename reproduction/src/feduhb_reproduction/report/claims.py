"""Every claim of the paper, judged by what was measured: each verdict follows from numbers by a criterion that is stated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feduhb.report.grids import NOTHING, Grid, markdown_safe
from feduhb.report.words import listed
from feduhb_reproduction.report import (
    claims_accuracy,
    claims_convergence,
    claims_forgetting,
    claims_membership,
    claims_settings,
    claims_theory,
    claims_time,
)
from feduhb_reproduction.report.claims_parts import (
    BOTH,
    NEITHER,
    OFF,
    REPLAYED,
    UNDER,
    VERDICTS,
    Claim,
    Evidence,
    Judged,
    quantile,
    read_evidence,
)

CLAIMS: tuple[Claim, ...] = (
    *claims_convergence.CLAIMS,
    *claims_time.CLAIMS,
    *claims_accuracy.CLAIMS,
    *claims_forgetting.EXACTNESS,
    *claims_membership.CLAIMS,
    *claims_forgetting.BACKDOORS,
    *claims_settings.CLAIMS,
    *claims_theory.CLAIMS,
)
TARGETS: tuple[Claim, ...] = (*claims_convergence.TARGETS,)
CLEARLY = (
    "“Clearly” means: the mean over seeds of the difference, taken seed by seed, is more than Student's two-sided 95 % quantile "
    f"times its standard error ({quantile(5):.3f} times with five seeds); with one seed, more than nothing. Claims are many, and "
    "none of these quantiles is corrected for that."
)
RUNS = (
    f"Of FedUHB there are two runs: “{UNDER}” is the one that ends where the stop rule fires, “{OFF}” the same one gone on to the last round; "
    f"“{REPLAYED}” stands for where another rule would have ended the latter."
)


def judged(evidence: Evidence) -> list[Judged]:
    """Judge every claim, then our own targets."""
    return [claim.judge(evidence) for claim in (*CLAIMS, *TARGETS)]


def _numbered(found: Sequence[Judged]) -> Iterator[tuple[str, Claim, Judged]]:
    """Give the claims from 1 on, then our targets as T1 and so on."""
    marks = [*map(str, range(1, len(CLAIMS) + 1)), *(f"T{n}" for n in range(1, len(TARGETS) + 1))]
    return zip(marks, (*CLAIMS, *TARGETS), found, strict=True)


def table(found: Sequence[Judged]) -> str:
    """Set every claim beside what was measured and the verdict."""
    rows = [
        (
            mark,
            claim.words,
            claim.where,
            _briefly(claim, one),
            f"{one.verdict}: {one.why}" if one.why else one.verdict,
        )
        for mark, claim, one in _numbered(found)
    ]
    headers = ("", "the paper's claim; T: a target of ours", "where", "measured here", "verdict")
    return Grid("The claims", headers, rows, frozenset(range(len(headers)))).markdown()


def _briefly(claim: Claim, one: Judged) -> str:
    """Give a claim's numbers in short, and which run of FedUHB they are of."""
    if not one.brief:
        return NOTHING
    return one.brief if claim.run in {BOTH, NEITHER} else f"{one.brief} (FedUHB: {claim.run})"


def topics(found: Sequence[Judged]) -> dict[str, str]:
    """Tell by topic, of each claim, what it takes to hold, and what was measured in each federation."""
    told: dict[str, list[str]] = {}
    for mark, claim, one in _numbered(found):
        measured = " ".join(_sentence(part) for part in (one.measured or "Nothing.").split("\n\n"))
        run = "" if claim.run == NEITHER else f" FedUHB: {claim.run}."
        told.setdefault(claim.topic, []).append(
            f"**{mark}. {markdown_safe(claim.words)}** Holds if: {markdown_safe(claim.criterion)}{run}\n\n{measured}"
        )
    return {topic: "\n\n".join(these) for topic, these in told.items()}


def _sentence(text: str) -> str:
    """Give what numbers are, then those of every federation."""
    lead, *lines = _lines(text)
    return " ".join([lead, *([f"{'; '.join(lines)}."] if lines else [])])


def _lines(text: str) -> list[str]:
    """Set in bold which federation a line is of."""
    safe = [markdown_safe(line).partition(": ") for line in text.split("\n")]
    return [
        f"**{name}**: {rest}" if mark and place else f"{name}{mark}{rest}"
        for place, (name, mark, rest) in enumerate(safe)
    ]


def counted(found: Sequence[Judged]) -> str:
    """Say how many claims of the paper came to which verdict."""
    words = [one.verdict for one in found[: len(CLAIMS)]]
    told = [f"{words.count(word)} {_plural(word, words)}" for word in VERDICTS]
    return f"Of {len(words)} claims of the paper, {listed(told)}."


def _plural(word: str, words: Sequence[str]) -> str:
    if words.count(word) == 1:
        return word
    return word.replace("holds", "hold").replace("does not", "do not")


__all__ = [
    "CLAIMS", "CLEARLY", "RUNS", "TARGETS", "Claim", "Evidence", "Judged", "counted", "judged", "read_evidence", "table", "topics",
]  # fmt: skip
