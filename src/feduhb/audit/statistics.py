"""The statistics of an audit: the ROC of an attack, equivalence, power, and differences of shares, with intervals.

Members are compared with held-out examples of the *same* client, so that an attack does not profit from label skew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import pad

from feduhb.audit.result import Difference, Interval, Roc
from feduhb.core.seeds import generator
from feduhb.errors import DataError

CELLS = 500_000  # resampled scores in memory at once, about 100 MB
LEVEL, TOST = 0.99, 0.90  # levels of the two intervals


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
class _Client:
    """One client's scores in ascending order."""

    members: Tensor  # [m]
    others: Tensor  # [n]
    below: Tensor  # [m] how many others each member beats
    upto: Tensor  # [m] how many it beats or ties with
    weight: float


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The scores of all clients in descending order, for the threshold that they share."""

    members: Tensor  # [M] positions among all clients' members, the highest first
    others: Tensor  # [N]
    above: Tensor  # [N] for each of the others, how many members lie strictly above it


def compute_auc(strata: Sequence[Scores]) -> float:
    """Return Σ w_c AUC_c / Σ w_c,  w_c = m n / (m + n),  AUC_c = P(member > other) + P(member = other) / 2.

    The weights are inverse variances if the attack is blind. Clients without members or others do not count.
    """
    return _mean_auc(_sort(strata))


def compute_roc(strata: Sequence[Scores], *, seed: int = 0, draws: int = 2000) -> Roc:
    """Return AUC, true positives, and their intervals from a two-stage bootstrap: clients, then examples within each.

    Intervals are the bootstrap's percentiles. Those of the AUC are never narrower than AUC ± z `compute_smallest_error`,
    and its standard error is never smaller. Those of true positives are never narrower than Wilson's for this number of
    members. So no interval is a point, however well the scores are separated.

    All clients share the threshold: the smallest that at most 1 % (0.1 %) of the others reach. With fewer than 100 (1000)
    others, none may reach it. Ties are never split in the attacker's favour.

    If C clients do not differ, the bootstrap's error is too large by up to sqrt(2 - 1/C), because the first stage
    includes the noise within clients, which the second stage adds again.
    """
    clients = _sort(strata)
    area, floor = compute_auc(strata), compute_smallest_error(strata)
    drawn = _bootstrap(clients, seed, draws)
    line = _rank(clients)
    count, others = len(line.members), len(line.others)
    once = torch.ones(1, count).long(), torch.ones(1, others).long()
    tpr = [float(_share_reached(line, *once, one_in)) for one_in in (100, 1000)]
    wide = [_widest_interval(drawn[i + 1], LEVEL, wilson_interval(tpr[i], count, LEVEL)) for i in range(2)]
    se = max(float(drawn[0].std()), floor)
    whole = _widest_interval(drawn[0], LEVEL, _normal_interval(area, floor, LEVEL))
    equal = _widest_interval(drawn[0], TOST, _normal_interval(area, floor, TOST))
    return Roc(area, se, whole, equal, tpr[0], wide[0], tpr[1], wide[1], count, others)


def compute_smallest_error(strata: Sequence[Scores]) -> float:
    """Return the smallest standard error of the AUC for these counts: 3 members above 3 others are weak evidence.

        v_c = (A (1 - A) + (m - 1)(A / (2 - A) - A²) + (n - 1)(2 A² / (1 + A) - A²)) / (m n),   sqrt(Σ w_c² v_c) / Σ w_c

    A = (k AUC + 1) / (k + 2) is the AUC after one more won and one more lost pair, where k = Σ min(m, n) is the number of
    pairs that use each example once. At A = 1/2 it is Mann and Whitney's error. Reference: Hanley and McNeil 1982.
    """
    clients = _sort(strata)
    sizes = [(len(c.members), len(c.others)) for c in clients]
    pairs = sum(min(size) for size in sizes)
    a = (pairs * _mean_auc(clients) + 1) / (pairs + 2)
    one, two = a / (2 - a) - a * a, 2 * a * a / (1 + a) - a * a
    total = sum(
        c.weight**2 * (a * (1 - a) + (m - 1) * one + (n - 1) * two) / (m * n)
        for c, (m, n) in zip(clients, sizes, strict=True)
    )
    return math.sqrt(total) / sum(c.weight for c in clients)


def is_equivalent(found: Roc, margin: float = 0.05) -> bool:
    """Return whether the 90 % interval is within 0.5 ± margin: two one-sided tests at 5 %. Reference: Schuirmann 1987."""
    return 0.5 - margin <= found.equivalence.low and found.equivalence.high <= 0.5 + margin


def compute_power(se: float, margin: float = 0.05) -> float:
    """Return the chance that `is_equivalent` is true if the AUC is 0.5: max(0, 2 Φ(margin / se - z) - 1), z = 1.645."""
    normal = NormalDist()
    return max(0.0, 2 * normal.cdf(margin / se - normal.inv_cdf((1 + TOST) / 2)) - 1)


def pool(found: Sequence[Roc]) -> Roc:
    """Combine independent audits of one kind, such as of several seeds.

        AUC = Σ (AUC_i / se_i²) / Σ (1 / se_i²),   se = 1 / sqrt(Σ (1 / se_i²)),   intervals AUC ± z se

    True positives are means over the members, TPR = Σ s_i TPR_i with s_i the share of all members. Their interval
    reaches sqrt(Σ s_i² (TPR_i - low_i)²) below, and likewise with high_i above (Zou and Donner 2008). All audits are
    assumed to have the same true AUC; if they differ by more than their errors, the interval is too narrow.
    """
    if not found:
        raise DataError("there are no audits to pool; give at least one")
    weights = [1 / one.se**2 for one in found]
    area = sum(w * one.auc for w, one in zip(weights, found, strict=True)) / sum(weights)
    se = 1 / math.sqrt(sum(weights))
    count = sum(one.members for one in found)
    shares = [one.members / count for one in found]
    tpr_1, wide_1 = _combine_shares(shares, [(one.tpr_1, one.tpr_1_interval) for one in found])
    tpr_01, wide_01 = _combine_shares(shares, [(one.tpr_01, one.tpr_01_interval) for one in found])
    others = sum(one.others for one in found)
    both = _normal_interval(area, se, LEVEL), _normal_interval(area, se, TOST)
    return Roc(area, se, *both, tpr_1, wide_1, tpr_01, wide_01, count, others)


def wilson_interval(share: float, count: int, level: float) -> Interval:
    """Return Wilson's interval of a share of ``count`` examples. Reference: Wilson 1927."""
    from scipy.stats import binomtest  # a second to import

    found = binomtest(round(share * count), count).proportion_ci(level, method="wilson")
    return Interval(float(found.low), float(found.high))


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
    z = NormalDist().inv_cdf((1 + level) / 2)
    more = max(0.5, z * z / 8)
    b, c, count = alone + more, other + more, len(hit) + 4 * more
    centre, half = (b - c) / count, z * math.sqrt(b + c - (b - c) ** 2 / count) / count
    return Difference(value, min(value, max(-1.0, centre - half)), max(value, min(1.0, centre + half)))


def _sort(strata: Sequence[Scores]) -> list[_Client]:
    """Sort the scores of the clients that have both members and others."""
    pairs = [(s.members.double().cpu(), s.others.double().cpu()) for s in strata]
    clients = []
    for members, others in ((m.sort().values, o.sort().values) for m, o in pairs if len(m) and len(o)):
        m, n = len(members), len(others)
        below, upto = (torch.searchsorted(others, members, right=right) for right in (False, True))
        clients.append(_Client(members, others, below, upto, m * n / (m + n)))
    if not clients:
        raise DataError(
            "no client has both members and held-out examples to compare; hold out a share of every client's data"
        )
    return clients


def _rank(clients: Sequence[_Client]) -> _Ranking:
    members, others = torch.cat([c.members for c in clients]), torch.cat([c.others for c in clients])
    line, rising = others.sort(descending=True), members.sort().values
    above = len(members) - torch.searchsorted(rising, line.values, right=True)
    return _Ranking(members.argsort(descending=True), line.indices, above)


def _mean_auc(clients: Sequence[_Client]) -> float:
    once = ((c, torch.ones(1, len(c.members)), torch.ones(1, len(c.others))) for c in clients)
    return sum(c.weight * float(_compute_areas(c, *counts)) for c, *counts in once) / sum(
        c.weight for c in clients
    )


def _compute_areas(client: _Client, members: Tensor, others: Tensor) -> Tensor:
    """Return the AUC of each row of counts of how often each example was drawn: [r, m], [r, n] -> [r]."""
    reach = pad(others.double().cumsum(dim=1), (1, 0))  # [r, n + 1]
    won = members * (reach[:, client.below] + reach[:, client.upto]) / 2
    return won.sum(dim=1) / (members.shape[1] * others.shape[1])


def _share_reached(line: _Ranking, members: Tensor, others: Tensor, one_in: int) -> Tensor:
    """Return the share of members above the (k+1)-th highest other, k = ⌊others / one_in⌋: [r, M], [r, N] -> [r]."""
    allowed = others.sum(dim=1, keepdim=True) // one_in
    first_false = (others[:, line.others].cumsum(dim=1) <= allowed).sum(dim=1)
    reach = pad(members[:, line.members].cumsum(dim=1), (1, 0))  # [r, M + 1]
    return reach.gather(1, line.above[first_false][:, None]).squeeze(1).double() / reach[:, -1]


def _bootstrap(clients: Sequence[_Client], seed: int, draws: int) -> Tensor:
    """Return bootstrap draws of AUC, TPR at 1 % and TPR at 0.1 %, [3, draws]."""
    rng, line = generator(seed, "roc"), _rank(clients)
    step = max(1, CELLS // (len(line.members) + len(line.others)))
    parts = [_resample(clients, line, min(step, draws - start), rng) for start in range(0, draws, step)]
    return torch.cat(parts, dim=1)


def _resample(clients: Sequence[_Client], line: _Ranking, rows: int, rng: torch.Generator) -> Tensor:
    chosen = torch.randint(len(clients), (rows, len(clients)), generator=rng)
    won, weight = torch.zeros(2, rows, dtype=torch.float64)
    members, others = [], []  # counts, [rows, m] and [rows, n] for each client
    for c, client in enumerate(clients):
        row = (chosen == c).nonzero()[:, 0]  # [r] the draws of this client, repeated if drawn repeatedly
        m, o = (_draw_counts(len(row), len(part), rng) for part in (client.members, client.others))
        area = _compute_areas(client, m, o)
        won.index_add_(0, row, client.weight * area)
        weight.index_add_(0, row, torch.full_like(area, client.weight))
        for kept, counts in ((members, m), (others, o)):
            kept.append(torch.zeros(rows, counts.shape[1]).long().index_add_(0, row, counts))
    m, o = torch.cat(members, dim=1), torch.cat(others, dim=1)
    return torch.stack([won / weight, _share_reached(line, m, o, 100), _share_reached(line, m, o, 1000)])


def _draw_counts(rows: int, size: int, rng: torch.Generator) -> Tensor:
    """Draw ``size`` of ``size`` examples with replacement in each row; return the counts, [rows, size]."""
    flat = torch.randint(size, (rows, size), generator=rng).add_(torch.arange(rows)[:, None] * size)
    return torch.bincount(flat.flatten(), minlength=rows * size).view(rows, size)


def _widest_interval(drawn: Tensor, level: float, least: Interval) -> Interval:
    """Return a bootstrap's interval, extended to cover ``least``."""
    levels = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=drawn.dtype)
    low, high = torch.quantile(drawn, levels).tolist()
    return Interval(min(low, least.low), max(high, least.high))


def _normal_interval(centre: float, se: float, level: float) -> Interval:
    half = NormalDist().inv_cdf((1 + level) / 2) * se
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def _combine_shares(
    shares: Sequence[float], found: Sequence[tuple[float, Interval]]
) -> tuple[float, Interval]:
    """Combine shares and their intervals, each side by the root of the sum of squares."""
    mean = sum(s * value for s, (value, _) in zip(shares, found, strict=True))
    below = math.hypot(*(s * (value - wide.low) for s, (value, wide) in zip(shares, found, strict=True)))
    above = math.hypot(*(s * (wide.high - value) for s, (value, wide) in zip(shares, found, strict=True)))
    return mean, Interval(max(0.0, mean - below), min(1.0, mean + above))
