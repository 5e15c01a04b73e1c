"""The AUC against brute force, and its error bars against simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta
from torch import Tensor

from data.wording import refused
from feduhb.audit.pooling import pool, pool_differences
from feduhb.audit.result import AucDifference, Interval, Roc
from feduhb.audit.statistics import (
    Scores,
    compare_aucs,
    compute_power,
    compute_roc,
    is_equivalent,
)
from feduhb.errors import DataError
from toys import quick

PHI = NormalDist()
few_levels = st.lists(st.integers(-3, 3), min_size=1, max_size=12)
clients = st.lists(st.tuples(few_levels, few_levels), min_size=1, max_size=4)


def scores(members: Sequence[float], others: Sequence[float]) -> Scores:
    return Scores(torch.tensor(members, dtype=torch.float64), torch.tensor(others, dtype=torch.float64))


def brute(members: Sequence[float], others: Sequence[float]) -> float:
    """Compare every member with every other; a tie counts half."""
    won = sum((m > o) + (m == o) / 2 for m in members for o in others)
    return won / (len(members) * len(others))


def normal(
    m: int, n: int, *, shift: float = 0.0, seed: int = 0, count: int = 1, offset: float = 0.0
) -> list[Scores]:
    """Draw clients whose members lie ``shift`` standard deviations above their others: AUC Φ(shift / √2)."""
    rng = torch.Generator().manual_seed(seed)
    return [
        Scores(torch.randn(m, generator=rng) + shift + offset * c, torch.randn(n, generator=rng) + offset * c)
        for c in range(count)
    ]


@quick
@given(few_levels, few_levels)
def test_one_client_against_brute_force(members, others):
    assert compute_roc([scores(members, others)]).auc == pytest.approx(brute(members, others), abs=1e-12)


@quick
@given(clients)
def test_clients_are_averaged_with_their_weights(pairs):
    weights = [len(m) * len(o) / (len(m) + len(o)) for m, o in pairs]
    expected = sum(w * brute(m, o) for w, (m, o) in zip(weights, pairs, strict=True)) / sum(weights)
    assert compute_roc([scores(m, o) for m, o in pairs]).auc == pytest.approx(expected, abs=1e-12)


def test_weights_by_hand():
    """AUC 1 with 2 x 2 examples weighs 1, AUC 0 with 6 x 3 weighs 2: a third."""
    found = compute_roc([scores([3, 4], [1, 2]), scores([0] * 6, [1, 2, 3])]).auc
    assert found == pytest.approx(1 / 3)


def test_clients_are_never_compared_with_one_another():
    """Together the members would lie above the others 3 times of 4; within each client it is a tie."""
    assert compute_roc([scores([9], [9]), scores([1], [1])]).auc == 0.5
    skewed = normal(200, 100, offset=5.0, count=2)
    assert compute_roc(skewed).auc == pytest.approx(compute_roc(normal(200, 100, count=2)).auc, abs=1e-6)


def test_clients_that_lack_a_side_are_left_out():
    whole = scores([1, 3], [2])
    assert compute_roc([scores([], [1]), whole, scores([5], [])]).auc == compute_roc([whole]).auc == 0.5
    found = compute_roc([scores([], [1] * 9), whole, scores([5] * 9, [])])
    assert (found.members, found.others) == (2, 1)


@pytest.mark.parametrize("strata", [[], [scores([1], [])], [scores([], [])]])
def test_nothing_to_compare(strata):
    words = (
        "no client has both members and held-out examples to compare; hold out a share of every client's data"
    )
    with refused(DataError, words):
        compute_roc(strata)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_numbers(bad):
    with refused(DataError, "1 of the 2 scores of members are not finite", "diverged"):
        scores([0.0, bad], [1.0])
    with refused(DataError, "2 of the 3 scores of others"):
        scores([0.0], [bad, 1.0, bad])


@quick
@given(clients)
def test_only_the_order_of_scores_counts(pairs):
    """A monotone map changes no bit, and neither does the order in which a client's examples come."""
    plain = [scores(m, o) for m, o in pairs]
    mapped = [scores([math.exp(v) for v in m], [math.exp(v) for v in o]) for m, o in pairs]
    turned = [scores(m[::-1], sorted(o)) for m, o in pairs]
    found = compute_roc(plain)
    assert compute_roc(mapped) == found
    assert compute_roc(turned) == found


@quick
@given(clients)
def test_everything_is_in_its_bounds(pairs):
    found = compute_roc([scores(m, o) for m, o in pairs])
    assert 0 <= found.interval.low <= found.equivalence.low <= found.auc
    assert found.auc <= found.equivalence.high <= found.interval.high <= 1
    assert found.interval.high - found.interval.low > 0.1
    assert found.se > 0
    for share, wide in ((found.tpr_1, found.tpr_1_interval), (found.tpr_01, found.tpr_01_interval)):
        assert 0 <= wide.low <= share <= wide.high <= 1
        assert wide.high > wide.low


def flagged(members: Tensor, others: Tensor, target: float) -> float:
    """Try every threshold: the smallest whose share of others at or above it is within the target."""
    for threshold in torch.cat([members, others]).unique().tolist():
        if float((others >= threshold).double().mean()) <= target:
            return float((members >= threshold).double().mean())
    return 0.0


@quick
@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([1, 30, 99, 100, 101, 250, 2900]))
def test_true_positives_against_every_threshold(seed, m, n):
    rng = torch.Generator().manual_seed(seed)
    members = (10 * torch.randn(m, generator=rng) + 10).round().double()
    others = (10 * torch.randn(n, generator=rng)).round().double()
    found = compute_roc([Scores(members, others)])
    assert found.tpr_1 == pytest.approx(flagged(members, others, 0.01))
    assert found.tpr_01 == pytest.approx(flagged(members, others, 0.001))


def test_with_few_others_no_false_positive_is_allowed():
    found = compute_roc([scores([0, 3, 5, 6], [5, 1, 2])])
    assert found.tpr_1 == found.tpr_01 == 0.25  # 6 alone: a tie with the highest other does not count


def test_the_threshold_is_shared_by_all_clients():
    """The second client's others spoil the first one's members."""
    assert compute_roc([scores([5, 6], [1]), scores([0, 0], [9])]).tpr_1 == 0.0
    assert compute_roc([scores([5, 6], [1]), scores([0, 0], [5])]).tpr_1 == 0.25


def test_one_false_positive_in_a_hundred():
    others = [float(v) for v in range(100)]
    found = compute_roc([scores([98.5, 99.5, 97.5, 0.0], others)])
    assert (found.tpr_1, found.tpr_01) == (0.5, 0.25)


def test_perfect_separation_is_not_perfect_evidence():
    """DeLong's error is 0; the counts give the interval a width, and more examples leave less of it."""
    found = [compute_roc([scores(range(n, 2 * n), range(n))]) for n in (1, 3, 50)]
    assert all(one.auc == one.interval.high == one.tpr_1 == 1.0 for one in found)
    assert found[0].interval.low == 0.0
    assert found[1].interval.low < 0.5 < 0.85 < found[2].interval.low < 1.0
    assert found[2].tpr_1_interval.low == 0.0  # 50 others do not tell which threshold 1 in 100 reach


def test_separation_by_hand():
    """3 and 3 at AUC 1: A = (3 + 1) / 5, variance (0.16 + 2 (0.8/1.2 - 0.64) + 2 (1.28/1.8 - 0.64)) / 9."""
    expected = math.sqrt((0.16 + 2 * (0.8 / 1.2 - 0.64) + 2 * (1.28 / 1.8 - 0.64)) / 9)
    assert compute_roc([scores([4, 5, 6], [1, 2, 3])]).se == pytest.approx(expected)


def test_all_ties_have_the_width_of_the_counts():
    """The error of Mann and Whitney's test, sqrt((m + n + 1) / (12 m n))."""
    tied = [scores([2.0] * 40, [2.0] * 60)]
    expected = math.sqrt(101 / (12 * 40 * 60))
    assert compute_roc(tied).se == pytest.approx(expected)
    found = compute_roc(tied)
    assert (found.auc, found.se) == (0.5, pytest.approx(expected))
    assert found.equivalence.high == pytest.approx(0.5 + PHI.inv_cdf(0.95) * expected)
    assert not is_equivalent(found)


def test_true_positives_by_hand():
    """At most 5 of 100 others reach the true threshold with a chance of 99.75 %; at least 0."""
    others = [float(v) for v in range(100)]
    found = compute_roc([scores([*range(90, 100), *([0.0] * 10)], others)]).tpr_1_interval
    above = 5  # members above 94, the sixth highest of the others
    assert found.low == 0.0
    assert found.high == pytest.approx(float(beta.ppf(0.9975, above + 1, 20 - above)))
    many = compute_roc([scores([9.0] * 20, [float(v) for v in range(9)] * 300)]).tpr_1_interval
    assert many.high == 1.0
    assert many.low == pytest.approx(0.0025 ** (1 / 20))  # all 20 of 20


def cover_share(seed: int) -> bool:
    rng = torch.Generator().manual_seed(seed)
    members, others = torch.randn(60, generator=rng) + 2, torch.randn(400, generator=rng)
    found = compute_roc([Scores(members, others)]).tpr_1_interval
    truth = 1 - PHI.cdf(PHI.inv_cdf(0.99) - 2)
    return found.low <= truth <= found.high


def test_the_intervals_of_true_positives_hold_the_truth():
    """Wilson's interval alone, which takes the threshold as known, would hold it in 92 % of these draws."""
    assert sum(map(cover_share, range(300))) >= 0.98 * 300


def test_permuted_members_are_chance():
    caught = normal(300, 300, shift=2.0)[0]
    mixed = torch.cat([caught.members, caught.others])
    mixed = mixed[torch.randperm(600, generator=torch.Generator().manual_seed(3))]
    assert compute_roc([caught]).interval.low > 0.85
    found = compute_roc([Scores(mixed[:300], mixed[300:])])
    assert found.interval.low < 0.5 < found.interval.high


RUNS = 500


def is_held(truth: float, found: Roc | AucDifference) -> list[bool]:
    """Return whether the 99 % and the 90 % interval hold the truth."""
    return [wide.low <= truth <= wide.high for wide in (found.interval, found.equivalence)]


def check_coverage(held: list[list[bool]]) -> None:
    """Check the shares, less three of their standard errors."""
    for level, column in zip((0.99, 0.90), zip(*held, strict=True), strict=True):
        assert sum(column) / len(column) >= level - 3 * math.sqrt(level * (1 - level) / len(column))


@pytest.mark.parametrize(
    ("m", "n", "shift", "count"),
    [(40, 30, 0.0, 1), (43, 14, 0.0, 2), (40, 30, 0.5, 5), (43, 14, 1.5, 2), (40, 30, 3.0, 1)],
)
def test_the_intervals_hold_the_truth(m, n, shift, count):
    truth = PHI.cdf(shift / math.sqrt(2))
    found = [compute_roc(normal(m, n, shift=shift, count=count, seed=run)) for run in range(RUNS)]
    check_coverage([is_held(truth, one) for one in found])


def draw_unlike(seed: int, clients: int, *, common: float = 0.0) -> tuple[list[Scores], list[Scores], float]:
    """Return scores by two models that share examples, and the mean of the first's AUCs at these clients.

    Each client's members lie higher by its own draw, for the first model. The second one remembers nothing.
    """
    rng = torch.Generator().manual_seed(seed)
    shifts = (0.6 * torch.randn(clients, generator=rng)).tolist()
    both: tuple[list[Scores], list[Scores]] = ([], [])
    for shift in shifts:
        sizes = (60, 40)
        base = [math.sqrt(common) * torch.randn(size, generator=rng) for size in sizes]
        for known, found in zip((shift, 0.0), both, strict=True):
            own = [b + math.sqrt(1 - common) * torch.randn(len(b), generator=rng) for b in base]
            found.append(Scores(own[0] + known, own[1]))
    return *both, sum(PHI.cdf(shift / math.sqrt(2)) for shift in shifts) / clients


@pytest.mark.parametrize("count", [2, 5])
def test_two_intervals_if_clients_differ(count):
    """One is about these clients, whose mean AUC is known here; one about all clients, whose mean is 0.5."""
    held, population = [], 0
    for seed in range(RUNS):
        first, _, truth = draw_unlike(seed, count)
        found = compute_roc(first)
        held.append(is_held(truth, found))
        assert found.population is not None
        assert found.population.low <= found.interval.low < found.interval.high <= found.population.high
        population += found.population.low <= 0.5 <= found.population.high
    check_coverage(held)
    assert population / RUNS >= 0.99 - 3 * math.sqrt(0.0099 / RUNS)


def test_one_client_says_nothing_about_others():
    assert compute_roc(normal(40, 30)).population is None
    assert compare_aucs(normal(40, 30), normal(40, 30, seed=1)).population is None


@pytest.mark.parametrize("common", [0.0, 0.5, 0.95])
def test_the_paired_interval_holds_the_truth(common):
    held = []
    for seed in range(RUNS):
        first, second, truth = draw_unlike(seed, 2, common=common)
        held.append(is_held(truth - 0.5, compare_aucs(first, second)))
    check_coverage(held)


def test_the_paired_test_against_every_pair():
    """DeLong's covariance by its definition, over all pairs of a member and another."""
    first, second, _ = draw_unlike(0, 1, common=0.5)
    won = [
        (s.members[:, None] > s.others[None]).double() + (s.members[:, None] == s.others[None]).double() / 2
        for s in (first[0], second[0])
    ]
    covariance = sum(
        torch.cov(torch.stack([w.mean(dim=d) for w in won])) / won[0].shape[1 - d] for d in (1, 0)
    )
    assert isinstance(covariance, Tensor)
    found = compare_aucs(first, second)
    expected = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert found.value == pytest.approx(float(won[0].mean() - won[1].mean()))
    assert found.se == pytest.approx(math.sqrt(float(expected)))


def test_examples_that_are_hard_for_both_models_do_not_blur_their_difference():
    first, second, _ = draw_unlike(1, 2, common=0.95)
    apart, alone = compare_aucs(first, second), compute_roc(first)
    assert apart.se < alone.se / 2
    turned = compare_aucs(second, first)
    assert (turned.value, turned.interval.low) == pytest.approx((-apart.value, -apart.interval.high))


def test_equal_models_differ_by_nothing_and_the_interval_is_no_point():
    alike = normal(60, 40, count=2)
    found = compare_aucs(alike, alike)
    assert (found.value, found.se) == (0.0, pytest.approx(1 / 82))
    assert found.interval.high == pytest.approx(PHI.inv_cdf(0.995) / 82)


def test_a_paired_test_needs_the_same_examples():
    with refused(DataError, "a paired test needs scores of the same examples", "[(3, 2)] and [(2, 2)]"):
        compare_aucs([scores([1, 2, 3], [1, 2])], [scores([1, 2], [1, 2])])


def test_the_error_is_near_the_true_one():
    """A client alone, and two that do not differ; the true error is sqrt((m + n + 1) / (12 m n)) / sqrt(clients)."""
    for count in (1, 2):
        expected = math.sqrt(601 / (12 * 300 * 300) / count)
        assert compute_roc(normal(300, 300, count=count)).se == pytest.approx(expected, rel=0.05)


def test_differences_between_clients_widen_only_the_interval_for_other_clients():
    """Clients with AUC near 0.24 and 0.76 in turn."""
    rng = torch.Generator().manual_seed(0)
    unlike = [
        Scores(torch.randn(200, generator=rng) + shift, torch.randn(200, generator=rng))
        for shift in (1.0, -1.0) * 4
    ]
    found, alike = compute_roc(unlike), compute_roc(normal(200, 200, count=8))
    assert found.se < alike.se
    assert found.population is not None
    assert alike.population is not None
    width, plain = (one.high - one.low for one in (found.population, alike.population))
    assert width > 5 * plain


def made(area: float, se: float, **more: object) -> Roc:
    wide, equal = (Interval(area - z * se, area + z * se) for z in (PHI.inv_cdf(0.995), PHI.inv_cdf(0.95)))
    some = Interval(0.0, 0.1)
    return replace(Roc(area, se, wide, equal, 0.0, some, 0.0, some, 100, 100), **more)


@pytest.mark.parametrize(
    ("area", "se", "passes"),
    [
        (0.50, 0.01, True),
        (0.53, 0.01, True),
        (0.54, 0.01, False),  # its interval ends at 0.556
        (0.46, 0.01, False),
        (0.50, 0.04, False),  # holds 0.5, and says too little
        (0.60, 0.001, False),
    ],
)
def test_equivalence(area, se, passes):
    assert is_equivalent(made(area, se)) is passes


def test_a_wider_margin_is_easier():
    assert is_equivalent(made(0.5, 0.04), margin=0.1)


def test_a_blind_attack_passes_with_enough_examples_and_not_with_few():
    assert is_equivalent(compute_roc(normal(3000, 3000)))
    assert not is_equivalent(compute_roc(normal(30, 30)))
    assert not is_equivalent(compute_roc(normal(3000, 3000, shift=0.5)))


@pytest.mark.parametrize("se", [0.01, 0.015, 0.02, 0.025, 0.03])
def test_power_against_simulation(se):
    draws = 0.5 + se * torch.randn(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = PHI.inv_cdf(0.95) * se
    share = float(((draws - z >= 0.45) & (draws + z <= 0.55)).double().mean())
    assert compute_power(se) == pytest.approx(share, abs=0.015)


def test_power_by_hand():
    assert compute_power(0.04) == 0.0  # 1.645 x 0.04 is more than the margin
    assert compute_power(0.05 / (2 * PHI.inv_cdf(0.95))) == pytest.approx(0.9)
    assert compute_power(1e-6) == pytest.approx(1.0)
    assert compute_power(0.02, margin=0.1) > compute_power(0.02)


def test_pooling_by_hand():
    """400 against 400 examples weigh four times as much as 100 against 100."""
    found = pool([made(0.5, 0.01, members=400, others=400), made(0.6, 0.02)])
    assert found.auc == pytest.approx(0.52)
    assert found.se == pytest.approx(math.hypot(0.8 * 0.01, 0.2 * 0.02))
    assert found.interval.high == pytest.approx(0.52 + PHI.inv_cdf(0.995) * found.se)
    assert found.equivalence.low == pytest.approx(0.52 - PHI.inv_cdf(0.95) * found.se)
    assert (found.members, found.others) == (500, 500)
    assert found.population == Interval(0.0, 1.0)


def test_pooled_true_positives_by_hand():
    """300 members at 0.4 (0.3 to 0.5) and 100 at 0 (0 to 0.2): 0.3, from 0.3 - 0.075 to 0.3 + sqrt(0.075² + 0.05²)."""
    many = made(0.5, 0.01, tpr_1=0.4, tpr_1_interval=Interval(0.3, 0.5), members=300)
    few = made(0.5, 0.01, tpr_1=0.0, tpr_1_interval=Interval(0.0, 0.2))
    found = pool([many, few])
    assert found.tpr_1 == pytest.approx(0.3)
    assert found.tpr_1_interval.low == pytest.approx(0.225)
    assert found.tpr_1_interval.high == pytest.approx(0.3 + math.hypot(0.075, 0.05))


def test_pooling_one_and_none():
    alone = compute_roc(normal(50, 50, shift=0.5))
    found = pool([alone])
    assert (found.auc, found.se) == pytest.approx((alone.auc, alone.se))
    assert found.tpr_1_interval.low == pytest.approx(alone.tpr_1_interval.low)
    with refused(DataError, "there are no audits to pool"):
        pool([])


def test_several_seeds_together_decide_what_one_cannot():
    audits = [compute_roc(normal(250, 250, count=2, seed=s)) for s in range(5)]
    assert not any(is_equivalent(one, 0.03) for one in audits)
    assert is_equivalent(pool(audits), 0.03)
    assert pool(audits).se < min(one.se for one in audits) / 2


def test_pooled_differences_by_hand():
    """Each weighs the same, whatever its error; the spread of 0.1 and 0.0 says nearly nothing about other audits."""

    def differ(value: float, se: float) -> AucDifference:
        wide, equal = (Interval(value - z * se, value + z * se) for z in (2.5, 1.5))
        return AucDifference(value, se, wide, equal)

    found = pool_differences([differ(0.1, 0.01), differ(0.0, 0.02)])
    assert found.value == pytest.approx(0.05)
    assert found.se == pytest.approx(math.hypot(0.01, 0.02) / 2)
    assert found.interval.low == pytest.approx(0.05 - 2.5 * found.se)
    assert found.equivalence.high == pytest.approx(0.05 + 1.5 * found.se)
    assert found.population == Interval(-1.0, 1.0)
    with refused(DataError, "there are no audits to pool"):
        pool_differences([])


def test_five_seeds_together_find_a_difference_that_one_does_not():
    found = []
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        base = [torch.randn(80, generator=rng) for _ in range(2)]
        known, plain = ([b + 0.7 * torch.randn(80, generator=rng) for b in base] for _ in range(2))
        found.append(compare_aucs([Scores(known[0] + 0.25, known[1])], [Scores(*plain)]))
    assert not any(one.interval.low > 0 for one in found)
    assert pool_differences(found).interval.low > 0
