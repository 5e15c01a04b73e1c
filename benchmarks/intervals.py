"""Simulate attacks to check an audit's intervals and verdicts: false alarms, and coverage if leavers differ.

    python benchmarks/intervals.py        # six minutes of one core

Scores are drawn from normal distributions. The audited model and Retrain remember nothing; the original does. Each attack is
judged by the function that judges the attacks of an audit: on both sides of 0.5, and against Retrain.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter

import torch
from torch import Tensor

from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, AucDifference, Roc
from feduhb.audit.statistics import Scores, compare_aucs, compute_roc
from feduhb.audit.verdict import judge_membership
from feduhb.core.seeds import generator

ALARMS, COVERED = 1000, 300  # simulated attacks
KNOWN = 1.0  # standard deviations between members and others for the original: an AUC of 0.76
CASES = ((1, 172, 57, 0.0), (1, 172, 57, 0.5), (2, 345, 115, 0.0))  # leavers, members, others, alike


def audit_models(
    number: int, leavers: int, members: int, others: int, alike: float
) -> tuple[dict[str, Roc], AucDifference]:
    """Attack three models whose scores of an example share a part ``alike`` of their variance; compare the first two."""
    draw = generator(number, "verdicts", leavers, str(alike))
    sizes = [(members, others)] * leavers
    common = [[torch.randn(n, generator=draw) for n in size] for size in sizes]

    def scores(known: float) -> list[Scores]:
        own = [[_mix(one, alike, draw) for one in both] for both in common]
        return [Scores(inside + known, outside) for inside, outside in own]

    knows = {UNLEARNED: 0.0, RETRAIN: 0.0, ORIGINAL: KNOWN}
    strata = {model: scores(known) for model, known in knows.items()}
    apart = compare_aucs(strata[UNLEARNED], strata[RETRAIN])
    return {model: compute_roc(found) for model, found in strata.items()}, apart


def _mix(common: Tensor, alike: float, draw: torch.Generator) -> Tensor:
    own = torch.randn(len(common), generator=draw)
    return math.sqrt(alike) * common + math.sqrt(1 - alike) * own


def attack_model(number: int, leavers: int, members: int, others: int, apart: float = 0.0) -> Roc:
    """Attack a model that remembers nothing; each leaver's members are shifted by a normal draw times ``apart``."""
    draw = generator(number, "intervals", leavers, str(apart))
    shifts = apart * torch.randn(leavers, generator=draw)
    strata = [
        Scores(torch.randn(members, generator=draw) + shift, torch.randn(others, generator=draw))
        for shift in shifts
    ]
    return compute_roc(strata)


def misses_half(found: Roc) -> bool:
    """Whether the 99 % interval does not contain 0.5."""
    return not found.interval.low <= 0.5 <= found.interval.high


def count_alarms(leavers: int, members: int, others: int, alike: float, attacks: int = ALARMS) -> str:
    """Return a line about the verdicts on a model that remembers nothing."""
    found = [audit_models(n, leavers, members, others, alike) for n in range(attacks)]
    missed = sum(misses_half(models[UNLEARNED]) for models, _ in found) / attacks
    words = Counter(judge_membership(*one).verdict for one in found)
    listed = ", ".join(f"{word} {count / attacks:.1%}" for word, count in words.most_common())
    return (
        f"{leavers} leaver(s), {members} against {others} each, models {alike:.0%} alike: caught {words['caught'] / attacks:.1%} of {attacks} "
        f"({listed}); the 99 % interval misses 0.5 in {missed:.1%}"
    )


def measure_coverage(apart: float, attacks: int = COVERED) -> str:
    """Return a line about the standard error and the coverage of the interval if leavers differ."""
    found = [attack_model(n, 2, 150, 80, apart) for n in range(attacks)]
    held = sum(not misses_half(r) for r in found) / attacks
    ratio = statistics.mean(r.se for r in found) / statistics.pstdev(r.auc for r in found)
    return f"2 leavers {apart} apart: error {ratio:.2f} times the true one, interval holds 0.5 {held:.0%} of {attacks}"


def main() -> None:
    """Print both tables."""
    for case in CASES:
        print(count_alarms(*case), flush=True)
    for apart in (0.0, 0.3, 0.6):
        print(measure_coverage(apart), flush=True)


if __name__ == "__main__":
    main()
