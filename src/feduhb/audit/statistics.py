"""The statistics of an audit: the ROC of an attack, the difference of two AUCs, equivalence, and power.

Members are compared with held-out examples of the *same* client, so that an attack does not profit from label skew.
Intervals hold for these clients (or these audits, if several are pooled): for other draws of their examples. Fields called
``population`` hold for other clients (or other audits) than these. Nothing here is random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from feduhb.audit.pooling import LEVEL, extend_to_population, student
from feduhb.audit.result import AucDifference, Difference, Interval, Roc
from feduhb.errors import DataError

TOST = 0.90  # level of the interval for tests of equivalence
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Scores:
    """One client's scores under one attack on one model; members should have higher scores."""

    members: Tensor  # [m]
    others: Tensor  # [n]

    def __post_init__(self) -> None:
        for what, scores in (("members", self.members), ("others", self.others)):
            if odd := int((~scores.isfinite()).sum()):
                raise DataError(
                    f"{odd} of the {len(scores)} scores of {what} are not finite: the attacked model has diverged, "
                    "or its loss overflows; look at its test loss"
                )


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where one client's examples stand among each other: their mean is the client's AUC, on either side."""

    members: Tensor  # [m] the share of the others that each member beats; a tie counts half
    others: Tensor  # [n] the share of the members that beat each of the others

    @property
    def weight(self) -> float:
        m, n = len(self.members), len(self.others)
        return m * n / (m + n)


@dataclass(frozen=True, slots=True)
class _Mean:
    """A weighted mean over clients, with DeLong's standard error and Satterthwaite's degrees of freedom."""

    value: float
    se: float
    freedom: float
    clients: list[float]  # the value of each

    def reach(self, least: float, level: float) -> float:
        """Return half the width of an interval: t se, and at least z ``least``."""
        return max(student(self.freedom, level) * self.se, NORMAL.inv_cdf((1 + level) / 2) * least)


def compute_roc(strata: Sequence[Scores]) -> Roc:
    """Return AUC and true positives, with intervals for these clients and for other clients.

        AUC = Σ w_c AUC_c / Σ w_c,   w_c = m n / (m + n),   AUC_c = P(member > other) + P(member = other) / 2

    The weights are inverse variances if the attack is blind. Clients without members or others do not count. The standard
    error of the AUC is DeLong's, client by client:

        v_c = var(V_i) / m + var(U_j) / n,   se = sqrt(Σ w_c² v_c) / Σ w_c,   and at least that of `_bound_error`

    V_i is the share of the client's others that member i beats, U_j the share of the members that beat other j. With
    h = t se, Student's t by Satterthwaite's degrees of freedom, the interval covers both AUC ± h and logit A ± h / (A (1 - A)),
    A as in `_bound_error`: the first alone is too short on one side if the AUC is near 1.

    The population's interval covers that interval and mean_c(AUC_c) ± t s / sqrt(C), with the standard deviation s of the C
    clients' own AUCs and C - 1 degrees of freedom. It holds although clients differ in size (Ibragimov and Müller 2010). With
    two clients it is nearly always 0 to 1; one client has none.

    True positives: see `_share_found`. References: DeLong et al. 1988; Satterthwaite 1946.
    """
    clients = _place(strata)
    found = _average(clients, 0.25)
    a = _shrink_auc(clients, found.value)
    least = _bound_error(clients, a)
    wide, equal = (_extend_auc(found.value, a, found.reach(least, level)) for level in (LEVEL, TOST))
    counted = [s for s in strata if len(s.members) and len(s.others)]
    members = torch.cat([s.members for s in counted]).double().cpu()
    others = torch.cat([s.others for s in counted]).double().cpu()
    (tpr_1, wide_1), (tpr_01, wide_01) = (_share_found(members, others, one_in) for one_in in (100, 1000))
    return Roc(
        found.value, max(found.se, least), wide, equal, tpr_1, wide_1, tpr_01, wide_01, len(members), len(others),
        extend_to_population(found.clients, wide, Interval(0.0, 1.0)),
    )  # fmt: skip


def compare_aucs(first: Sequence[Scores], second: Sequence[Scores]) -> AucDifference:
    """Return AUC(first) - AUC(second), a paired test: both are scores of the same examples, in the same order.

    The standard error is DeLong's of the difference: as in `compute_roc`, with V_i(first) - V_i(second) for V_i. So an example
    that is hard for both models adds nothing. It is at least 1 / (k + 2), k as in `_shrink_auc`: models that rank
    all examples alike do not make the interval a point. With h = t se, the interval covers both D ± h and
    atanh d ± h / (1 - d²), where D is the difference and d = D k / (k + 2).
    """
    sizes = [[(len(s.members), len(s.others)) for s in strata] for strata in (first, second)]
    if sizes[0] != sizes[1]:
        raise DataError(
            f"a paired test needs scores of the same examples, but the counts are {sizes[0]} and {sizes[1]}"
        )
    pairs = zip(_place(first), _place(second), strict=True)
    clients = [_Placed(one.members - two.members, one.others - two.others) for one, two in pairs]
    found, pairs = _average(clients, 1.0), _count_pairs(clients)
    least, shrunk = 1 / (pairs + 2), found.value * pairs / (pairs + 2)
    wide, equal = (_extend_skewed(found.value, shrunk, found.reach(least, level)) for level in (LEVEL, TOST))
    return AucDifference(
        found.value, max(found.se, least), wide, equal, extend_to_population(found.clients, wide, Interval(-1.0, 1.0))
    )  # fmt: skip


def is_equivalent(found: Roc, margin: float = 0.05) -> bool:
    """Return whether the 90 % interval is within 0.5 ± margin: two one-sided tests at 5 %. Reference: Schuirmann 1987."""
    return 0.5 - margin <= found.equivalence.low and found.equivalence.high <= 0.5 + margin


def compute_power(se: float, margin: float = 0.05) -> float:
    """Return the chance that `is_equivalent` is true if the AUC is 0.5: max(0, 2 Φ(margin / se - z) - 1), z = 1.645."""
    return max(0.0, 2 * NORMAL.cdf(margin / se - NORMAL.inv_cdf((1 + TOST) / 2)) - 1)


def compute_difference(hit: Tensor, floor: Tensor, *, level: float = 0.99) -> Difference:
    """Return share(hit) - share(floor) over the same images, [n] booleans each, with an adjusted paired interval.

        b = images hit alone + h,   c = floor alone + h,   N = n + 4 h,   h = max(1/2, z² / 8)
        (b - c) / N ± z sqrt(b + c - (b - c)² / N) / N,   clipped to [-1, 1]

    The added h keeps the interval from being a point if both always agree. Differs from the reference, which adds 1/2 at
    95 % (z² / 8 is 0.48 there): at 99 % that would cover the truth only 96 % of the time if hits are rare and the floor
    is 0. Reference: Agresti and Min 2005.
    """
    if not len(hit):
        raise DataError("all test images belong to the backdoor's target class; add images of other classes")
    alone, other = int((hit & ~floor).sum()), int((floor & ~hit).sum())
    value = (alone - other) / len(hit)
    z = NORMAL.inv_cdf((1 + level) / 2)
    more = max(0.5, z * z / 8)
    b, c, count = alone + more, other + more, len(hit) + 4 * more
    centre, half = (b - c) / count, z * math.sqrt(b + c - (b - c) ** 2 / count) / count
    return Difference(value, min(value, max(-1.0, centre - half)), max(value, min(1.0, centre + half)))


def _place(strata: Sequence[Scores]) -> list[_Placed]:
    """Place the examples of the clients that have both members and others."""
    clients = []
    for members, others in ((s.members.double().cpu(), s.others.double().cpu()) for s in strata):
        if len(members) and len(others):
            clients.append(_Placed(_count_below(members, others), 1 - _count_below(others, members)))
    if not clients:
        raise DataError(
            "no client has both members and held-out examples to compare; hold out a share of every client's data"
        )
    return clients


def _count_below(scores: Tensor, among: Tensor) -> Tensor:
    """Return the share of ``among`` that lies below each score; a tie counts half."""
    line = among.sort().values
    below, upto = (torch.searchsorted(line, scores, right=right) for right in (False, True))
    return (below + upto).double() / (2 * len(line))


def _average(clients: Sequence[_Placed], most: float) -> _Mean:
    """Return the weighted mean over clients. ``most`` is the largest variance possible, for a side with one example."""
    total = sum(client.weight for client in clients)
    values: list[float] = []
    value = variance = squares = 0.0
    for client in clients:
        share = client.weight / total
        # Sorted, so that order changes no bit.
        sides = [side.sort().values for side in (client.members, client.others)]
        values.append(float(sides[0].mean()))
        value += share * values[-1]
        for side in sides:
            spread = float(side.var()) if len(side) > 1 else most
            part = share**2 * spread / len(side)
            variance += part
            squares += part**2 / max(1, len(side) - 1)
    return _Mean(value, math.sqrt(variance), variance**2 / squares if squares else 1.0, values)


def _count_pairs(clients: Sequence[_Placed]) -> int:
    return sum(min(len(client.members), len(client.others)) for client in clients)


def _shrink_auc(clients: Sequence[_Placed], auc: float) -> float:
    """Return A = (k AUC + 1) / (k + 2), the AUC after one more won and one more lost pair.

    k = Σ min(m, n) is the number of pairs that use each example once.
    """
    pairs = _count_pairs(clients)
    return (pairs * auc + 1) / (pairs + 2)


def _bound_error(clients: Sequence[_Placed], a: float) -> float:
    """Return the smallest standard error of the AUC for these counts: 3 members above 3 others are weak evidence.

        v_c = (A (1 - A) + (m - 1)(A / (2 - A) - A²) + (n - 1)(2 A² / (1 + A) - A²)) / (m n),   sqrt(Σ w_c² v_c) / Σ w_c

    At A = 1/2 it is Mann and Whitney's error. Reference: Hanley and McNeil 1982.

    Args:
        a: A, as `_shrink_auc` gives it.
    """
    one, two = a / (2 - a) - a * a, 2 * a * a / (1 + a) - a * a
    total = 0.0
    for client in clients:
        m, n = len(client.members), len(client.others)
        total += client.weight**2 * (a * (1 - a) + (m - 1) * one + (n - 1) * two) / (m * n)
    return math.sqrt(total) / sum(client.weight for client in clients)


def _around(centre: float, half: float, least: float) -> Interval:
    """Return the interval centre ± half, within ``least`` and 1."""
    return Interval(max(least, centre - half), min(1.0, centre + half))


def _extend_skewed(value: float, shrunk: float, half: float) -> Interval:
    """Return the interval that covers value ± half and atanh shrunk ± half / (1 - shrunk²), between -1 and 1."""
    plain, centre, reach = _around(value, half, -1.0), math.atanh(shrunk), half / (1 - shrunk**2)
    return Interval(min(plain.low, math.tanh(centre - reach)), max(plain.high, math.tanh(centre + reach)))


def _extend_auc(auc: float, shrunk: float, half: float) -> Interval:
    """Return the same for an AUC: 2 AUC - 1 lies between -1 and 1, and its atanh is half the logit of the AUC."""
    both = _extend_skewed(2 * auc - 1, 2 * shrunk - 1, 2 * half)
    return Interval((1 + both.low) / 2, (1 + both.high) / 2)


def _share_found(members: Tensor, others: Tensor, one_in: int) -> tuple[float, Interval]:
    """Return the share of members above the threshold that 1 in ``one_in`` others reach, with its 99 % interval.

    All clients share the threshold: the smallest that at most 1 % (0.1 %) of the others reach. With fewer than 100 (1000)
    others, none may reach it. Ties are never split in the attacker's favour.

    The true threshold is unknown: how many of n others reach it is binomial, at most k with a chance of 99.75 %, so it is
    above the (k+1)-th highest other. Clopper and Pearson's upper limit (99.75 %) for the members above that other is the
    upper end; the lower end likewise. With few others the lower end is 0.
    """
    from scipy.special import bdtr, betaincinv

    line, m, n, miss = others.sort(descending=True).values, len(members), len(others), (1 - LEVEL) / 4
    chances = bdtr(torch.arange(n).numpy(), n, 1 / one_in)  # of at most 0, 1, ... others
    fewest, most = int((chances <= miss).sum()), int((chances < 1 - miss).sum())
    at_most = m if most == n else int((members > line[most]).sum())
    at_least = int((members > line[fewest - 1]).sum()) if fewest else 0
    high = 1.0 if at_most == m else float(betaincinv(at_most + 1, m - at_most, 1 - miss))
    low = float(betaincinv(at_least, m - at_least + 1, miss)) if at_least else 0.0
    return int((members > line[n // one_in]).sum()) / m, Interval(low, high)
