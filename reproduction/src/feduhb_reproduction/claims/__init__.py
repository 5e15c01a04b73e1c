"""Every claim of the paper, judged by measurements. Each verdict is computed from numbers by a stated criterion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feduhb.report.words import join_names
from feduhb_reproduction.claims import (
    accuracy,
    convergence,
    costs,
    forgetting,
    membership,
    settings,
    theory,
    time,
)
from feduhb_reproduction.claims.parts import (
    OFF,
    REPLAYED,
    UNDER,
    VERDICTS,
    Claim,
    Evidence,
    Judged,
    find_quantile,
    read_evidence,
)

CLAIMS: tuple[Claim, ...] = (
    *convergence.CLAIMS,
    *time.CLAIMS,
    *accuracy.CLAIMS,
    *forgetting.EXACTNESS,
    *membership.CLAIMS,
    *forgetting.BACKDOORS,
    *settings.CLAIMS,
    *theory.CLAIMS,
    *costs.CLAIMS,
)
TARGETS: tuple[Claim, ...] = (*convergence.TARGETS,)
CLEARLY = (
    "“Clearly” refers to differences that are computed seed by seed. Their mean must exceed its standard error times Student's two-sided "
    f"95 % quantile, which is {find_quantile(5):.3f} for five seeds. With one seed, the difference must exceed 0. The quantile is not "
    "corrected for the number of claims."
)
RUNS = (
    f"There are two runs of FedUHB for each seed. The one “{UNDER}” ends when the stop rule fires. The one with “{OFF}” is the same run, "
    f"continued to the last round. “{REPLAYED}” means that other rules were applied to the recorded movements of the second run."
)


def judge_claims(evidence: Evidence) -> list[Judged]:
    """Judge every claim, then our own targets."""
    return [claim.judge(evidence) for claim in (*CLAIMS, *TARGETS)]


def number_claims(found: Sequence[Judged]) -> Iterator[tuple[str, Claim, Judged]]:
    """Yield (number, claim, judgement): the claims as 1, 2, ..., then our targets as T1 and T2."""
    marks = [*map(str, range(1, len(CLAIMS) + 1)), *(f"T{n}" for n in range(1, len(TARGETS) + 1))]
    return zip(marks, (*CLAIMS, *TARGETS), found, strict=True)


def count_verdicts(found: Sequence[Judged]) -> str:
    """Return a sentence that counts the claims by verdict."""
    verdicts = [one.verdict for one in found[: len(CLAIMS)]]
    counts = [f"{verdicts.count(word)} {_agree(word, verdicts.count(word))}" for word in VERDICTS]
    return f"Of {len(verdicts)} claims of the paper, {join_names(counts)}."


def _agree(verdict: str, count: int) -> str:
    """Return a verdict with its verb in the plural, unless the count is 1."""
    return verdict if count == 1 else verdict.replace("holds", "hold").replace("does not", "do not")


__all__ = [
    "CLAIMS", "CLEARLY", "RUNS", "TARGETS", "Claim", "Evidence", "Judged", "count_verdicts", "judge_claims", "number_claims", "read_evidence",
]  # fmt: skip
