"""Combine audits of several seeds: independent ones, and ones that share their examples. Without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from feduhb.audit.result import RETRAIN, Attack, AucDifference, Audit, Interval, Roc
from feduhb.errors import DataError

LEVEL = 0.99  # of intervals, unless they are for tests of equivalence


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """The paired test of one attack, over several seeds of one method that were audited together."""

    method: str
    attack: str
    on: str  # which examples, in words
    seeds: tuple[int, ...]
    members: int
    others: int
    against_retrain: AucDifference  # the mean over the seeds

    @property
    def says(self) -> str:
        """The result in one line."""
        apart = self.against_retrain
        return (
            f"{self.method}, {self.attack} on {self.on}, over {len(self.seeds)} seeds: AUC(audited) - AUC(Retrain) "
            f"{apart.value:+.3f} [{apart.interval.low:+.3f}, {apart.interval.high:+.3f}]"
        )


def pool(found: Sequence[Roc], *, independent: bool = True) -> Roc:
    """Combine audits of one kind: independent ones, such as of several seeds with data of their own, or others.

        AUC = Σ s_i AUC_i,   se = sqrt(Σ s_i² se_i²),   s_i ∝ m_i n_i / (m_i + n_i)

    Its interval reaches sqrt(Σ s_i² (AUC_i - low_i)²) below, and likewise with high_i above (Zou and Donner 2008). So does that
    of true positives, whose s_i is the share of all members. The weights are counts, not 1 / se_i², because an AUC near 1
    has a small error, which would favour audits that were high by luck. Intervals are about the mean of these audits; the
    population's is about other audits, from the spread of the AUC_i as in `compute_roc`.

    Audits that share examples are not ``independent``. Their errors are added, not their squares: se = Σ s_i se_i, and the
    interval goes from Σ s_i low_i to Σ s_i high_i. That is enough however the audits depend on each other, because the
    standard deviation of a sum is at most the sum of the standard deviations. Each has the same members and others, so
    these are not summed. Their spread says nothing about other examples, so there is no population's interval.
    """
    _check_audits(found)
    members, others = [one.members for one in found], [one.others for one in found]
    weights = _normalise([m * n / (m + n) for m, n in zip(members, others, strict=True)])
    shares, areas = _normalise(members), [one.auc for one in found]
    area, wide = _combine(weights, areas, [one.interval for one in found], independent)
    _, equal = _combine(weights, areas, [one.equivalence for one in found], independent)
    se = _add([w * one.se for w, one in zip(weights, found, strict=True)], independent)
    tpr_1, wide_1 = _combine(
        shares, [one.tpr_1 for one in found], [one.tpr_1_interval for one in found], independent
    )
    tpr_01, wide_01 = _combine(
        shares, [one.tpr_01 for one in found], [one.tpr_01_interval for one in found], independent
    )
    population = extend_to_population(areas, wide, Interval(0.0, 1.0)) if independent else None
    count = sum if independent else max
    return Roc(
        area, se, wide, equal, tpr_1, wide_1, tpr_01, wide_01, count(members), count(others), population
    )


def pool_differences(found: Sequence[AucDifference], *, independent: bool = True) -> AucDifference:
    """Combine the paired tests of audits, as `pool` combines their AUCs, but with the same weight for each: s_i = 1 / N.

    So the interval is about the plain mean of these N audits. With weights of 1 / se_i² it would not be: an AUC near 1 has a
    small error, so audits that are high, by luck or in truth, would count more.
    """
    _check_audits(found)
    weights = _normalise([1.0] * len(found))
    values = [one.value for one in found]
    value, wide = _combine(weights, values, [one.interval for one in found], independent, least=-1.0)
    _, equal = _combine(weights, values, [one.equivalence for one in found], independent, least=-1.0)
    se = _add([w * one.se for w, one in zip(weights, found, strict=True)], independent)
    population = extend_to_population(values, wide, Interval(-1.0, 1.0)) if independent else None
    return AucDifference(value, se, wide, equal, population)


def pool_seeds(audits: Sequence[Audit]) -> list[OverSeeds]:
    """Return the mean paired test of each attack over the seeds of each method, for audits that were made together.

    Audits belong together if they are of one method with the same settings, served one request, and have the same
    Retrain, attacked with the same result. So they share their examples, and `pool_differences` takes them as not independent.
    Of several audits of one seed the first counts. A method with a single seed has no result.
    """
    groups: dict[tuple[str, str, str, str, Roc], dict[int, tuple[Audit, Attack]]] = {}
    for audit in audits:
        for attack in audit.membership if audit.procedure else ():
            key = (audit.procedure, audit.forgot, attack.attack, attack.on, attack.models[RETRAIN])
            groups.setdefault(key, {}).setdefault(audit.seed, (audit, attack))
    made: list[OverSeeds] = []
    for (*_, retrain), seeds in groups.items():
        audit, attack = next(iter(seeds.values()))
        apart = [one.against_retrain for _, one in seeds.values() if one.against_retrain]
        if len(apart) > 1:
            together = pool_differences(apart, independent=False)
            counts = retrain.members, retrain.others
            made.append(OverSeeds(audit.method, attack.attack, attack.on, tuple(seeds), *counts, together))
    return made


def student(freedom: float, level: float) -> float:
    """Return the quantile t of Student's distribution for which ± t has this chance."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(freedom, (1 + level) / 2))


def extend_to_population(found: Sequence[float], these: Interval, bounds: Interval) -> Interval | None:
    """Return the interval of the mean from the spread of its parts, extended to cover ``these``; None for one part."""
    if len(found) < 2:
        return None
    centre, half = mean(found), student(len(found) - 1, LEVEL) * stdev(found) / math.sqrt(len(found))
    return Interval(
        max(bounds.low, min(these.low, centre - half)), min(bounds.high, max(these.high, centre + half))
    )


def _check_audits(found: Sequence[object]) -> None:
    if not found:
        raise DataError("there are no audits to pool; give at least one")


def _normalise(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def _add(errors: Sequence[float], independent: bool) -> float:
    """Return the error of a sum: the root of the sum of squares, or the sum if the parts may depend on each other."""
    return math.hypot(*errors) if independent else sum(errors)


def _combine(
    shares: Sequence[float],
    values: Sequence[float],
    wide: Sequence[Interval],
    independent: bool,
    least: float = 0.0,
) -> tuple[float, Interval]:
    """Return a weighted mean and its interval, each side by `_add`, within ``least`` and 1."""
    mean = sum(s * value for s, value in zip(shares, values, strict=True))
    below, above = (
        _add([s * abs(value - end) for s, value, end in zip(shares, values, ends, strict=True)], independent)
        for ends in ([one.low for one in wide], [one.high for one in wide])
    )
    return mean, Interval(max(least, mean - below), min(1.0, mean + above))
