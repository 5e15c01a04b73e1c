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
from torch import Tensor

from data.wording import refused
from feduhb.audit import statistics as module
from feduhb.audit.result import Interval, Roc
from feduhb.audit.statistics import (
    Scores,
    compute_auc,
    compute_power,
    compute_roc,
    compute_smallest_error,
    is_equivalent,
    pool,
    wilson_interval,
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
    assert compute_auc([scores(members, others)]) == pytest.approx(brute(members, others), abs=1e-12)


@quick
@given(clients)
def test_clients_are_averaged_with_their_weights(pairs):
    weights = [len(m) * len(o) / (len(m) + len(o)) for m, o in pairs]
    expected = sum(w * brute(m, o) for w, (m, o) in zip(weights, pairs, strict=True)) / sum(weights)
    assert compute_auc([scores(m, o) for m, o in pairs]) == pytest.approx(expected, abs=1e-12)


def test_weights_by_hand():
    """AUC 1 with 2 x 2 examples weighs 1, AUC 0 with 6 x 3 weighs 2: a third."""
    found = compute_auc([scores([3, 4], [1, 2]), scores([0] * 6, [1, 2, 3])])
    assert found == pytest.approx(1 / 3)


def test_clients_are_never_compared_with_one_another():
    """Together the members would lie above the others 3 times of 4; within each client it is a tie."""
    assert compute_auc([scores([9], [9]), scores([1], [1])]) == 0.5
    skewed = normal(200, 100, offset=5.0, count=2)
    assert compute_auc(skewed) == pytest.approx(compute_auc(normal(200, 100, count=2)), abs=1e-6)


def test_clients_that_lack_a_side_are_left_out():
    whole = scores([1, 3], [2])
    assert compute_auc([scores([], [1]), whole, scores([5], [])]) == compute_auc([whole]) == 0.5
    found = compute_roc([scores([], [1] * 9), whole, scores([5] * 9, [])], draws=100)
    assert (found.members, found.others) == (2, 1)


@pytest.mark.parametrize("strata", [[], [scores([1], [])], [scores([], [])]])
def test_nothing_to_compare(strata):
    words = (
        "no client has both members and held-out examples to compare; hold out a share of every client's data"
    )
    for attempt in (compute_auc, compute_roc, compute_smallest_error):
        with refused(DataError, words):
            attempt(strata)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_numbers(bad):
    with refused(DataError, "1 of the 2 scores of members are not finite", "diverged"):
        scores([0.0, bad], [1.0])
    with refused(DataError, "2 of the 3 scores of others"):
        scores([0.0], [bad, 1.0, bad])


@quick
@given(clients, st.integers(0, 5))
def test_only_the_order_of_scores_counts(pairs, seed):
    """A monotone map changes no bit, and neither does the order in which a client's examples come."""
    plain = [scores(m, o) for m, o in pairs]
    mapped = [scores([math.exp(v) for v in m], [math.exp(v) for v in o]) for m, o in pairs]
    turned = [scores(m[::-1], sorted(o)) for m, o in pairs]
    found = compute_roc(plain, seed=seed, draws=100)
    assert compute_roc(mapped, seed=seed, draws=100) == found
    assert compute_roc(turned, seed=seed, draws=100) == found


@quick
@given(clients)
def test_everything_is_in_its_bounds(pairs):
    found = compute_roc([scores(m, o) for m, o in pairs], draws=100)
    assert 0 <= found.interval.low <= found.equivalence.low <= found.auc
    assert found.auc <= found.equivalence.high <= found.interval.high <= 1
    assert found.interval.high - found.interval.low > 0.1
    assert found.se > 0
    for share, wide in ((found.tpr_1, found.tpr_1_interval), (found.tpr_01, found.tpr_01_interval)):
        assert 0 <= wide.low <= share <= wide.high <= 1
        assert wide.high > wide.low


def test_same_seed_same_bits():
    strata = normal(30, 20, shift=0.5, count=3)
    assert compute_roc(strata, seed=4) == compute_roc(strata, seed=4)
    assert compute_roc(strata, seed=4).interval != compute_roc(strata, seed=5).interval
    before = torch.default_generator.get_state()
    compute_roc(strata, draws=100)
    assert torch.equal(before, torch.default_generator.get_state())


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
    found = compute_roc([Scores(members, others)], draws=100)
    assert found.tpr_1 == pytest.approx(flagged(members, others, 0.01))
    assert found.tpr_01 == pytest.approx(flagged(members, others, 0.001))


def test_with_few_others_no_false_positive_is_allowed():
    found = compute_roc([scores([0, 3, 5, 6], [5, 1, 2])], draws=100)
    assert found.tpr_1 == found.tpr_01 == 0.25  # 6 alone: a tie with the highest other does not count


def test_the_threshold_is_shared_by_all_clients():
    """The second client's others spoil the first one's members."""
    assert compute_roc([scores([5, 6], [1]), scores([0, 0], [9])], draws=100).tpr_1 == 0.0
    assert compute_roc([scores([5, 6], [1]), scores([0, 0], [5])], draws=100).tpr_1 == 0.25


def test_one_false_positive_in_a_hundred():
    others = [float(v) for v in range(100)]
    found = compute_roc([scores([98.5, 99.5, 97.5, 0.0], others)], draws=100)
    assert (found.tpr_1, found.tpr_01) == (0.5, 0.25)


def test_perfect_separation_is_not_perfect_evidence():
    """The bootstrap has no width; the counts give it one, and more examples leave less of it."""
    found = [compute_roc([scores(range(n, 2 * n), range(n))], draws=100) for n in (1, 3, 50)]
    assert all(one.auc == one.interval.high == one.tpr_1 == 1.0 for one in found)
    assert found[0].interval.low == 0.0
    assert found[1].interval.low < 0.5 < 0.9 < found[2].interval.low < 1.0
    for n, one in zip((1, 3, 50), found, strict=True):
        assert one.tpr_1_interval.low == pytest.approx(wilson_interval(1.0, n, 0.99).low)


def test_separation_by_hand():
    """3 and 3 at AUC 1: A = (3 + 1) / 5, variance (0.16 + 2 (0.8/1.2 - 0.64) + 2 (1.28/1.8 - 0.64)) / 9."""
    expected = math.sqrt((0.16 + 2 * (0.8 / 1.2 - 0.64) + 2 * (1.28 / 1.8 - 0.64)) / 9)
    assert compute_smallest_error([scores([4, 5, 6], [1, 2, 3])]) == pytest.approx(expected)


def test_all_ties_have_the_width_of_the_counts():
    """The error of Mann and Whitney's test, sqrt((m + n + 1) / (12 m n))."""
    tied = [scores([2.0] * 40, [2.0] * 60)]
    expected = math.sqrt(101 / (12 * 40 * 60))
    assert compute_smallest_error(tied) == pytest.approx(expected)
    found = compute_roc(tied)
    assert (found.auc, found.se) == (0.5, pytest.approx(expected))
    assert found.equivalence.high == pytest.approx(0.5 + PHI.inv_cdf(0.95) * expected)
    assert not is_equivalent(found)


def test_wilson_by_hand():
    """0 of 10 at 95 %: from 0 to z² / (10 + z²)."""
    z = PHI.inv_cdf(0.975)
    assert wilson_interval(0.0, 10, 0.95).high == pytest.approx(z * z / (10 + z * z))
    assert wilson_interval(0.0, 10, 0.95).low == pytest.approx(0.0, abs=1e-12)
    assert wilson_interval(0.5, 10**6, 0.95).low == pytest.approx(0.5 - z * 0.0005, abs=1e-6)


def test_permuted_members_are_chance():
    caught = normal(300, 300, shift=2.0)[0]
    mixed = torch.cat([caught.members, caught.others])
    mixed = mixed[torch.randperm(600, generator=torch.Generator().manual_seed(3))]
    assert compute_roc([caught]).interval.low > 0.85
    found = compute_roc([Scores(mixed[:300], mixed[300:])])
    assert found.interval.low < 0.5 < found.interval.high


def covered(shift: float, count: int) -> tuple[float, float]:
    """Return the shares of 200 runs whose 99 % and whose 90 % interval hold the truth."""
    truth, held = PHI.cdf(shift / math.sqrt(2)), []
    for run in range(200):
        found = compute_roc(normal(40, 30, shift=shift, count=count, seed=run), seed=run, draws=300)
        held.append([wide.low <= truth <= wide.high for wide in (found.interval, found.equivalence)])
    return sum(a for a, _ in held) / 200, sum(b for _, b in held) / 200


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "count"), [(0.0, 1), (0.0, 2), (0.0, 5), (0.5, 2), (1.5, 2)])
def test_the_intervals_hold_the_truth(shift, count):
    wide, narrow = covered(shift, count)
    assert wide >= 0.97
    assert narrow >= 0.86


def test_a_client_alone_has_no_needless_width():
    """The bootstrap's error is near the true one; here sqrt((m + n + 1) / (12 m n))."""
    found = compute_roc(normal(300, 300))
    assert found.se == pytest.approx(math.sqrt(601 / (12 * 300 * 300)), rel=0.1)


def test_differences_between_clients_are_felt():
    """Clients with AUC near 0.24 and 0.76 in turn: their mean is uncertain though every client's own is sharp."""
    rng = torch.Generator().manual_seed(0)
    unlike = [
        Scores(torch.randn(200, generator=rng) + shift, torch.randn(200, generator=rng))
        for shift in (1.0, -1.0) * 4
    ]
    alike = normal(200, 200, count=8)
    together = Scores(torch.cat([s.members for s in unlike]), torch.cat([s.others for s in unlike]))
    assert compute_roc(unlike).se > 3 * compute_roc([together]).se
    assert compute_roc(unlike).se > 3 * compute_roc(alike).se


def test_alike_clients_cost_what_the_docstring_states():
    """Two clients without a difference: the error is too large by up to sqrt(3/2), on average over data."""
    ratio = [
        compute_roc(normal(100, 100, count=2, seed=s), draws=300).se / math.sqrt(201 / (12 * 10**4))
        for s in range(40)
    ]
    mean = math.sqrt(sum(r * r for r in ratio) / 40) * math.sqrt(2)
    assert 1.1 < mean < math.sqrt(1.5) + 0.1


def made(area: float, se: float, **more: object) -> Roc:
    z, wide = PHI.inv_cdf(0.95) * se, Interval(0.0, 0.1)
    plain = Roc(area, se, Interval(0, 1), Interval(area - z, area + z), 0.0, wide, 0.0, wide, 100, 100)
    return replace(plain, **more)


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
    """Errors 0.01 and 0.02 weigh 4 : 1."""
    found = pool([made(0.5, 0.01), made(0.6, 0.02)])
    assert found.auc == pytest.approx(0.52)
    assert found.se == pytest.approx(1 / math.sqrt(10_000 + 2_500))
    assert found.interval.high == pytest.approx(0.52 + PHI.inv_cdf(0.995) * found.se)
    assert found.equivalence.low == pytest.approx(0.52 - PHI.inv_cdf(0.95) * found.se)
    assert (found.members, found.others) == (200, 200)


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


@pytest.mark.slow
def test_twenty_thousand_examples_in_chunks(monkeypatch):
    """No step holds more than the chunk's cells, and a chunk of one draw works too."""
    held = []
    plain = module._draw_counts

    def watched(rows: int, size: int, rng: torch.Generator) -> Tensor:
        held.append(rows * size)
        return plain(rows, size, rng)

    monkeypatch.setattr(module, "_draw_counts", watched)
    found = compute_roc(normal(10_000, 10_000, shift=0.5), draws=200)
    assert found.interval.low < PHI.cdf(0.5 / math.sqrt(2)) < found.interval.high
    assert max(held) <= module.CELLS
    monkeypatch.setattr(module, "CELLS", 1)
    assert compute_roc(normal(40, 40, count=3), draws=100).se == pytest.approx(
        compute_roc(normal(40, 40, count=3)).se, rel=0.3
    )
