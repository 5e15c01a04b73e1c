"""How honest the audit's intervals are, by simulation: false alarms, and coverage where leavers differ.

    python benchmarks/intervals.py

Scores are drawn from normal distributions, so the true AUC is 0.5 on average; every attack is judged as an audit judges it.
"""

from __future__ import annotations

import statistics

import torch

from feduhb.core.seeds import generator
from feduhb.evaluate.roc import Roc, Scores, roc

ALARMS, COVERED = 400, 300  # simulated attacks
DRAWS = 400  # of each one's bootstrap


def attacked(number: int, leavers: int, members: int, others: int, apart: float = 0.0) -> Roc:
    """Attack a model that remembers nothing; leavers' members are shifted by normal draws of ``apart`` standard deviations."""
    draw = generator(number, "intervals", leavers, str(apart))
    shifts = apart * torch.randn(leavers, generator=draw)
    strata = [
        Scores(torch.randn(members, generator=draw) + shift, torch.randn(others, generator=draw))
        for shift in shifts
    ]
    return roc(strata, seed=number, draws=DRAWS)


def main() -> None:
    """Print both tables."""
    for leavers, members, others in ((1, 172, 57), (2, 345, 115)):
        found = [attacked(n, leavers, members, others) for n in range(ALARMS)]
        share = sum(r.interval.low > 0.5 for r in found) / ALARMS
        print(f"{leavers} leaver(s), {members} against {others} each: false alarms {share:.2%} of {ALARMS}")
    for apart in (0.0, 0.3, 0.6):
        found = [attacked(n, 2, 150, 80, apart) for n in range(COVERED)]
        held = sum(r.interval.low <= 0.5 <= r.interval.high for r in found) / COVERED
        spread = statistics.pstdev(r.auc for r in found)
        ratio = statistics.mean(r.se for r in found) / spread
        print(
            f"2 leavers {apart} apart: error {ratio:.2f} times the true one, interval holds 0.5 {held:.0%} of {COVERED}"
        )


if __name__ == "__main__":
    main()
