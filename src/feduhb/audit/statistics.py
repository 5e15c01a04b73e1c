"""The statistics of an audit: the ROC of an attack, equivalence, power, and differences of shares, all with intervals.

Members are compared with held-out examples of the *same* client: across clients an attack would be paid for label skew.
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
from feduhb.errors import ConfigError, DataError

CELLS = 500_000  # resampled scores held at once: some 100 MB
LEVEL, TOST = 0.99, 0.90  # of the two intervals
FEWEST = 100  # bootstrap draws


@dataclass(frozen=True, slots=True)
class Scores:
    """One client's examples under one attack on one model; a higher score is more like a member's."""

    members: Tensor  # [m]
    others: Tensor  # [n]

    def __post_init__(self) -> None:
        for what, scores in (("members", self.members), ("others", self.others)):
            if scores.dim() != 1:
                raise DataError(f"the scores of {what} are {list(scores.shape)}; give one number an example")
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
    upto: Tensor  # [m] and how many it beats or ties with
    weight: float


@dataclass(frozen=True, slots=True)
class _Everybody:
    """All clients' scores in descending order, for the threshold they share."""

    members: Tensor  # [M] positions among all clients' members, the highest first
    others: Tensor  # [N]
    above: Tensor  # [N] how many members lie strictly above each other


def compute_auc(strata: Sequence[Scores]) -> float:
    """Return Σ w_c AUC_c / Σ w_c,  w_c = m n / (m + n),  AUC_c = P(member > other) + P(member = other) / 2.

    The weights are inverse variances where the attack is blind. Clients without members or others are left out.
    """
    return _mean_auc(_sort(strata))


def compute_roc(strata: Sequence[Scores], *, seed: int = 0, draws: int = 2000) -> Roc:
    """Return AUC, true positives, and their intervals from a two-stage bootstrap: clients, then examples within each.

    AUC's intervals are the bootstrap's percentiles, and never narrower than AUC ± z `compute_smallest_error`; its standard
    error is the larger of the two. Intervals of true positives are the bootstrap's percentiles, and never
    narrower than Wilson's for as many members. So no interval is a point, however well the scores are separated.

    The threshold is shared by all clients: the smallest that no more than 1 % (0.1 %) of the others reach; with fewer
    than 100 (1000) others that is none of them. Ties are never split in the attacker's favour.

    Where clients do not differ, C of them make the bootstrap's error too large, by up to sqrt(2 - 1/C): the
    first stage feels within-client noise that the second adds once more.
    """
    if draws < FEWEST:
        raise ConfigError(f"draws is {draws}; give {FEWEST} or more, such as 2000")
    clients = _sort(strata)
    area, floor = _mean_auc(clients), compute_smallest_error(strata)
    drawn = _bootstrap(clients, seed, draws)
    line = _rank(clients)
    count, others = len(line.members), len(line.others)
    once = torch.ones(1, count).long(), torch.ones(1, others).long()
    tpr = [float(_share_reached(line, *once, one_in)) for one_in in (100, 1000)]
    wide = [_widest_interval(drawn[i + 1], LEVEL, wilson_interval(tpr[i], count, LEVEL)) for i in range(2)]
    return Roc(
        auc=area,
        se=max(float(drawn[0].std()), floor),
        interval=_widest_interval(drawn[0], LEVEL, _normal_interval(area, floor, LEVEL)),
        equivalence=_widest_interval(drawn[0], TOST, _normal_interval(area, floor, TOST)),
        tpr_1=tpr[0],
        tpr_1_interval=wide[0],
        tpr_01=tpr[1],
        tpr_01_interval=wide[1],
        members=count,
        others=others,
    )


def compute_smallest_error(strata: Sequence[Scores]) -> float:
    """Return the standard error of the AUC that the counts alone leave: 3 members above 3 others are weak evidence.

        v_c = (A (1 - A) + (m - 1)(A / (2 - A) - A²) + (n - 1)(2 A² / (1 + A) - A²)) / (m n),   sqrt(Σ w_c² v_c) / Σ w_c

    A is the AUC with one pair more won and one more lost than the k = Σ min(m, n) that can be formed of examples used
    once, (k AUC + 1) / (k + 2). At A = 1/2 it is Mann and Whitney's error. Reference: Hanley and McNeil 1982.
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
    """Return whether the 90 % interval lies within 0.5 ± margin: two one-sided tests at 5 % each. Reference: Schuirmann 1987."""
    return 0.5 - margin <= found.equivalence.low and found.equivalence.high <= 0.5 + margin


def compute_power(se: float, margin: float = 0.05) -> float:
    """Return the chance that `is_equivalent` says yes where the true AUC is 0.5: max(0, 2 Φ(margin / se - z) - 1), z = 1.645."""
    if not (se > 0 and margin > 0):
        raise ConfigError(f"power of se {se} and margin {margin} is not defined; give positive numbers")
    normal = NormalDist()
    return max(0.0, 2 * normal.cdf(margin / se - normal.inv_cdf((1 + TOST) / 2)) - 1)


def pool(found: Sequence[Roc]) -> Roc:
    """Combine independent audits of one kind, such as of several seeds.

        AUC = Σ (AUC_i / se_i²) / Σ (1 / se_i²),   se = 1 / sqrt(Σ (1 / se_i²)),   intervals AUC ± z se

    True positives are means over the members, TPR = Σ s_i TPR_i with s_i the share of all members; their interval
    reaches sqrt(Σ s_i² (TPR_i - low_i)²) below and as much with high_i above (Zou and Donner 2008). One true AUC is
    assumed behind all audits; where they differ by more than their errors, the interval says too little.
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
    """Return share(hit) - share(floor) over the same images, [n] truth values each, with an adjusted paired interval.

        b = images hit alone + h,   c = floor alone + h,   N = n + 4 h,   h = max(1/2, z² / 8)
        (b - c) / N ± z sqrt(b + c - (b - c)² / N) / N,   clipped to [-1, 1]

    The added h keeps the interval from being a point where both always agree. Differs from the reference, which adds
    1/2 at 95 % (z² / 8 is 0.48 there): at 99 % that would hold the truth only 96 % of the time where hits are rare and
    the floor is 0. Reference: Agresti and Min 2005.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; give a share between 0 and 1, such as 0.99")
    if hit.dim() != 1 or hit.shape != floor.shape or not len(hit):
        raise DataError(
            f"{list(hit.shape)} and {list(floor.shape)} truth values are not of the same images; give one an image to both"
        )
    if hit.dtype != torch.bool or floor.dtype != torch.bool:
        raise DataError(
            f"{hit.dtype} and {floor.dtype} are no truth values; say which images were hit, yes or no"
        )
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


def _rank(clients: Sequence[_Client]) -> _Everybody:
    members, others = torch.cat([c.members for c in clients]), torch.cat([c.others for c in clients])
    line, rising = others.sort(descending=True), members.sort().values
    above = len(members) - torch.searchsorted(rising, line.values, right=True)
    return _Everybody(members.argsort(descending=True), line.indices, above)


def _mean_auc(clients: Sequence[_Client]) -> float:
    areas = [
        float(_compute_areas(c, torch.ones(1, len(c.members)), torch.ones(1, len(c.others)))) for c in clients
    ]
    weights = [c.weight for c in clients]
    return sum(w * a for w, a in zip(weights, areas, strict=True)) / sum(weights)


def _compute_areas(client: _Client, members: Tensor, others: Tensor) -> Tensor:
    """Return the AUC of each row of counts, which say how often each example was drawn: [r, m], [r, n] -> [r]."""
    reach = pad(others.double().cumsum(dim=1), (1, 0))  # [r, n + 1]
    won = members * (reach[:, client.below] + reach[:, client.upto]) / 2
    return won.sum(dim=1) / (members.shape[1] * others.shape[1])


def _share_reached(line: _Everybody, members: Tensor, others: Tensor, one_in: int) -> Tensor:
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


def _resample(clients: Sequence[_Client], line: _Everybody, rows: int, rng: torch.Generator) -> Tensor:
    chosen = torch.randint(len(clients), (rows, len(clients)), generator=rng)
    won, weight = torch.zeros(2, rows, dtype=torch.float64)
    members, others = [], []  # counts, [rows, m] and [rows, n] for each client
    for c, client in enumerate(clients):
        row = (chosen == c).nonzero()[:, 0]  # [r] the draws that hold this client, once for each time
        m, o = (_draw_counts(len(row), len(part), rng) for part in (client.members, client.others))
        area = _compute_areas(client, m, o)
        won.index_add_(0, row, client.weight * area)
        weight.index_add_(0, row, torch.full_like(area, client.weight))
        for kept, counts in ((members, m), (others, o)):
            kept.append(torch.zeros(rows, counts.shape[1]).long().index_add_(0, row, counts))
    m, o = torch.cat(members, dim=1), torch.cat(others, dim=1)
    return torch.stack([won / weight, _share_reached(line, m, o, 100), _share_reached(line, m, o, 1000)])


def _draw_counts(rows: int, size: int, rng: torch.Generator) -> Tensor:
    """Draw ``size`` of ``size`` with replacement, row by row; return how often each was drawn, [rows, size]."""
    flat = torch.randint(size, (rows, size), generator=rng).add_(torch.arange(rows)[:, None] * size)
    return torch.bincount(flat.flatten(), minlength=rows * size).view(rows, size)


def _widest_interval(drawn: Tensor, level: float, least: Interval) -> Interval:
    """Return a bootstrap's interval, no narrower than ``least``."""
    low, high = torch.quantile(
        drawn, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=drawn.dtype)
    ).tolist()
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
