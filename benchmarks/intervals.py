"""Simulate attacks to check an audit's intervals, its verdicts and its forecast.

    python benchmarks/intervals.py        # seven minutes of one core

Scores are drawn from normal distributions, so that the true AUC of every client is known. The functions under test are those
of an audit. Four tables:

- coverage: how often the 99 % interval contains the truth. For these clients the truth is the mean of their own AUCs; for
  other clients it is the mean over all clients that could have been drawn.
- the same for the paired difference between two models, and for five audits that are pooled. The pooled AUC is compared with
  the mean of the audits' true AUCs by numbers of examples, the pooled difference with the plain mean of theirs.
- verdicts on a model that remembers nothing (AUC 0.50), on one that remembers a little (0.57), and on one at the margin (0.55),
  which must not often be "not caught"; beside them the share that would be caught by a rule without the paired test: the 99 %
  interval lies above 0.5 and above Retrain's AUC, or below both.
- the forecast power, and how often a model that remembers nothing really passes the test of equivalence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch

from feduhb.audit.forecast import forecast_power
from feduhb.audit.pooling import pool, pool_differences
from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED, AucDifference, Interval, Roc
from feduhb.audit.statistics import Scores, compare_aucs, compute_roc, is_equivalent
from feduhb.audit.verdict import MARGIN, judge_membership
from feduhb.core.seeds import generator

ATTACKS = 2000  # simulated, for each line; of pools as many
SEEDS = 5  # audits that are pooled
KNOWN, LITTLE = 1.0, 0.25  # standard deviations between members and others: AUCs of 0.76 and 0.57
EDGE = math.sqrt(2) * NormalDist().inv_cdf(0.5 + MARGIN)  # an AUC that lies at the margin
PHI = NormalDist()


class Case(NamedTuple):
    """A simulated request."""

    sizes: tuple[tuple[int, int], ...]  # members and others of each leaver
    known: float = 0.0  # standard deviations between members and others, on average over leavers
    apart: float = 0.0  # standard deviation of that between leavers
    alike: float = 0.0  # share of the variance of scores that two models have in common
    wide: float = 1.0  # standard deviation of the members' scores, if the others' is 1

    def __str__(self) -> str:
        counts = Counter(self.sizes)
        said = " + ".join(f"{f'{count} x ' * (count > 1)}{m}:{n}" for (m, n), count in counts.items())
        more = {
            "AUC": PHI.cdf(self.known / math.hypot(1, self.wide)), "apart": self.apart, "alike": self.alike, "wide": self.wide - 1,
        }  # fmt: skip
        return ", ".join([said, *(f"{name} {value:.2f}" for name, value in more.items() if value)])


COVERED = tuple(
    Case(sizes, known, wide=wide)
    for sizes in (((172, 57),), ((10, 10),), ((43, 14),) * 2, ((150, 80),) * 2, ((40, 30),) * 5, ((100, 5), (30, 30)))
    for known, wide in ((0.0, 1.0), (0.5, 2.0), (1.5, 1.0), (3.0, 1.0))
)  # fmt: skip
DIFFERENT = tuple(
    Case(sizes, apart=apart)
    for sizes in (((150, 80),) * 2, ((150, 80),) * 5, ((150, 80), (40, 20), (20, 10)))
    for apart in (0.0, 0.3, 0.6)
)
PAIRED = tuple(
    Case(sizes, known, 0.3 * (len(sizes) > 1), alike)
    for sizes in (((172, 57),), ((43, 14),) * 2, ((40, 30),) * 5)
    for known in (0.0, 1.5)
    for alike in (0.0, 0.5, 0.9)
)
JUDGED = tuple(
    Case(sizes, known, alike=alike)
    for sizes in (((172, 57),), ((345, 115),) * 2)
    for known in (0.0, LITTLE, EDGE)
    for alike in (0.0, 0.5, 0.9)
)
POOLED = tuple(
    (Case(sizes, known, apart, 0.5),) * SEEDS
    for sizes in (((172, 57),), ((43, 14),) * 2)
    for known in (0.0, 1.0)
    for apart in (0.0, 0.3, 1.0)
) + tuple(
    tuple(Case(((members, others),), known, 0.6, 0.5) for members, others in ((345, 115), (172, 57), (86, 29), (60, 20), (43, 14)))
    for known in (0.0, 1.0)
)  # audits of one size, alike or not, and of several sizes  # fmt: skip
FORECAST = (
    ((345, 115),) * 2,
    ((571, 571),),
    ((570, 190),) * 2,
    ((200, 100),) * 3,
    ((100, 100),) * 5,
    ((900, 300), (300, 100)),
)


def attack_models(case: Case, number: int, known: Sequence[float]) -> tuple[list[list[Scores]], list[float]]:
    """Return the scores by models that know ``known`` more than nothing, and the true AUC of each leaver for the first.

    The first model's knowledge differs between leavers by normal draws times ``case.apart``.
    """
    draw = generator(number, "intervals", str(case))
    models: list[list[Scores]] = [[] for _ in known]
    truth: list[float] = []
    for sizes in case.sizes:
        shift = case.apart * float(torch.randn(1, generator=draw))
        common = [math.sqrt(case.alike) * torch.randn(size, generator=draw) for size in sizes]
        truth.append(PHI.cdf((known[0] + shift) / math.hypot(1, case.wide)))
        for place, (model, more) in enumerate(zip(models, known, strict=True)):
            members, others = (
                one + math.sqrt(1 - case.alike) * torch.randn(len(one), generator=draw) for one in common
            )
            model.append(Scores(case.wide * members + more + (0 if place else shift), others))
    return models, truth


def average_truth(case: Case, truth: Sequence[float]) -> float:
    """Return the mean AUC of the leavers, with the weights of `compute_roc`."""
    weights = [m * n / (m + n) for m, n in case.sizes]
    return sum(w * t for w, t in zip(weights, truth, strict=True)) / sum(weights)


def holds(interval: Interval | None, truth: float) -> bool:
    """Whether an interval contains the truth; without one, nothing is promised."""
    return interval is None or interval.low <= truth <= interval.high


def measure_coverage(case: Case, attacks: int = ATTACKS) -> str:
    """Return a line about the intervals of an AUC."""
    these = other = equal = 0
    widths: list[float] = []
    for number in range(attacks):
        (scores,), truth = attack_models(case, number, [case.known])
        found, mean = compute_roc(scores), average_truth(case, truth)
        these += holds(found.interval, mean)
        equal += holds(found.equivalence, mean)
        # members' scores are shifted by a normal draw: the mean of Φ((known + apart z) / sd) over z
        middle = PHI.cdf(case.known / math.sqrt(1 + case.wide**2 + case.apart**2))
        other += holds(found.population, middle)
        widths.append(found.interval.high - found.interval.low)
    said = f"99 % interval {these / attacks:.1%}, 90 % {equal / attacks:.1%}"
    if len(case.sizes) > 1:
        said += f", for other leavers {other / attacks:.1%}"
    return f"AUC, {case}: {said}; mean width {sum(widths) / attacks:.3f}"


def measure_difference(case: Case, attacks: int = ATTACKS) -> str:
    """Return a line about the interval of the paired difference between two models, of which the second knows nothing."""
    held = equal = 0
    ratio: list[float] = []
    for number in range(attacks):
        (first, second), truth = attack_models(case, number, [case.known, 0.0])
        found, mean = compare_aucs(first, second), average_truth(case, truth) - 0.5
        held += holds(found.interval, mean)
        equal += holds(found.equivalence, mean)
        ratio.append(found.se / compute_roc(first).se)
    return (
        f"difference, {case}: 99 % interval {held / attacks:.1%}, 90 % {equal / attacks:.1%}; "
        f"error {sum(ratio) / attacks:.2f} times that of the first AUC"
    )


def measure_pool(cases: tuple[Case, ...], pools: int = ATTACKS) -> str:
    """Return a line about the pooled AUCs and differences of audits, each with leavers and examples of its own.

    Audits differ in their leavers' sizes at most, so the mean AUC over other audits is the same for each.
    """
    held = apart = other = 0
    (first, *_), count = cases, len(cases)
    middle = PHI.cdf(first.known / math.sqrt(1 + first.wide**2 + first.apart**2))
    weights = [
        m * n / (m + n) for m, n in ([sum(side) for side in zip(*case.sizes, strict=True)] for case in cases)
    ]
    for number in range(pools):
        rocs: list[Roc] = []
        differences: list[AucDifference] = []
        truth: list[float] = []
        for place, case in enumerate(cases):
            (audited, retrain), own = attack_models(case, count * number + place, [case.known, 0.0])
            rocs.append(compute_roc(audited))
            differences.append(compare_aucs(audited, retrain))
            truth.append(average_truth(case, own))
        together, both = pool(rocs), pool_differences(differences)
        held += holds(
            together.interval, sum(w * t for w, t in zip(weights, truth, strict=True)) / sum(weights)
        )
        other += holds(together.population, middle)
        apart += holds(both.interval, sum(truth) / count - 0.5)
    sizes = dict.fromkeys(str(case).partition(", ")[0] for case in cases)
    said = f"{' and '.join(sizes)}, {str(first).partition(', ')[2]}"
    return (
        f"pooled over {count} audits, {said}: 99 % interval of the AUC {held / pools:.1%}, for other audits {other / pools:.1%}, "
        f"of the difference {apart / pools:.1%}"
    )


def audit_models(case: Case, number: int) -> tuple[dict[str, Roc], AucDifference]:
    """Attack the audited model, Retrain and the original, and compare the first two."""
    strata, _ = attack_models(case, number, [case.known, 0.0, KNOWN])
    names: tuple[str, ...] = (UNLEARNED, RETRAIN, ORIGINAL)
    return dict(zip(names, map(compute_roc, strata), strict=True)), compare_aucs(strata[0], strata[1])


def is_caught_unpaired(models: dict[str, Roc]) -> bool:
    """Return whether the rule without the paired test catches the model."""
    found, retrain = models[UNLEARNED], models[RETRAIN]
    above, below = found.interval.low > max(0.5, retrain.auc), found.interval.high < min(0.5, retrain.auc)
    return retrain.interval.low <= 0.5 and (above or below)


def count_verdicts(case: Case, attacks: int = ATTACKS) -> str:
    """Return a line about the verdicts on a model."""
    found = [audit_models(case, number) for number in range(attacks)]
    words = Counter(judge_membership(*one).verdict for one in found)
    unpaired = sum(is_caught_unpaired(models) for models, _ in found) / attacks
    listed = ", ".join(f"{word} {count / attacks:.1%}" for word, count in words.most_common())
    return f"verdicts, {case}: caught {words['caught'] / attacks:.1%} (without the paired test {unpaired:.1%}); {listed}"


def check_forecast(sizes: tuple[tuple[int, int], ...], attacks: int = ATTACKS) -> str:
    """Return a line about the forecast power and the share of models without memory that pass the test of equivalence."""
    case, said = Case(sizes), forecast_power(sizes)
    passed = sum(is_equivalent(compute_roc(attack_models(case, n, [0.0])[0][0])) for n in range(attacks))
    return f"forecast, {case}: power {said.power:.1%}, simulated {passed / attacks:.1%}"


def main() -> None:
    """Print all tables."""
    for case in (*COVERED, *DIFFERENT):
        print(measure_coverage(case), flush=True)
    for case in PAIRED:
        print(measure_difference(case), flush=True)
    for cases in POOLED:
        print(measure_pool(cases), flush=True)
    for case in JUDGED:
        print(count_verdicts(case), flush=True)
    for sizes in FORECAST:
        print(check_forecast(sizes), flush=True)


if __name__ == "__main__":
    main()
