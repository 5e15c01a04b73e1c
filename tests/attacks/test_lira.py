"""LiRA on normal confidences, where the best attack is known on paper.

Example i has φ ~ N(d_i + gain, σ²) under models trained on it and N(d_i, σ²) under others. With known parameters the
likelihood ratio has AUC Φ(gain / (σ √2)); a threshold on φ alone has to fight the spread of the difficulties d_i.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from data.wording import refused
from feduhb.audit.attacks.lira import attack_shadows, compute_likelihood_ratios
from feduhb.audit.statistics import Scores, compute_roc
from feduhb.errors import DataError
from toys import quick

f64 = torch.float64


def world(
    *, shadows: int, examples: int, gain: float, spread: float, seed: int = 0, share: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Draw φ [K, n] and membership [K, n]; σ is 1."""
    rng = torch.Generator().manual_seed(seed)
    difficulty = spread * torch.randn(examples, generator=rng, dtype=f64)
    inside = torch.rand(shadows, examples, generator=rng) < share
    noise = torch.randn(shadows, examples, generator=rng, dtype=f64)
    return difficulty + gain * inside + noise, inside


def attacked(phi: Tensor, inside: Tensor) -> tuple[Scores, Scores]:
    """Attack the first model with the rest: LiRA's scores and the plain threshold's."""
    ratios = compute_likelihood_ratios(phi[0], phi[1:], inside[1:])
    return Scores(ratios[inside[0]], ratios[~inside[0]]), Scores(phi[0][inside[0]], phi[0][~inside[0]])


def test_close_to_the_best_attack_there_is():
    """With 200 shadows the parameters are all but known."""
    ratios, _ = attacked(*world(shadows=201, examples=4000, gain=1.5, spread=5.0))
    assert compute_roc([ratios]).auc == pytest.approx(NormalDist().cdf(1.5 / math.sqrt(2)), abs=0.02)


def test_better_than_a_threshold_where_examples_differ_in_difficulty():
    ratios, plain = attacked(*world(shadows=17, examples=2000, gain=1.5, spread=5.0))
    assert compute_roc([ratios]).auc > compute_roc([plain]).auc + 0.1
    assert compute_roc([plain]).auc < 0.65


def test_few_shadows_cost_something_but_not_all():
    best = NormalDist().cdf(1.5 / math.sqrt(2))
    few, many = (
        compute_roc([attacked(*world(shadows=k, examples=4000, gain=1.5, spread=5.0))[0]]).auc
        for k in (9, 101)
    )
    assert 0.7 < few < many < best + 0.02


def test_by_hand():
    """One example, inside twice at 1 and 3, outside at -1 and 1: means 2 and 0, both variances 2."""
    shadows, inside = (
        torch.tensor([[1.0], [3.0], [-1.0], [1.0]]),
        torch.tensor([[True], [True], [False], [False]]),
    )
    for phi in (-1.0, 0.0, 1.0, 2.5):
        found = compute_likelihood_ratios(torch.tensor([phi]), shadows, inside)
        assert found.item() == pytest.approx(-((phi - 2) ** 2) / 4 + phi**2 / 4)


def test_variances_are_pooled_over_examples_and_differ_by_side():
    """Left-overs inside are ±1 and ±3 with one degree of freedom each: (2 + 18) / 2 = 10; outside 2 and 2, so 2."""
    shadows = torch.tensor([[1.0, 7.0], [3.0, 13.0], [-1.0, 1.0], [1.0, 3.0]])
    inside = torch.tensor([[True, True], [True, True], [False, False], [False, False]])
    target = torch.tensor([1.5, 4.0])
    expected = [
        -((t - mu_in) ** 2 / 10 + math.log(10)) / 2 + ((t - mu_out) ** 2 / 2 + math.log(2)) / 2
        for t, mu_in, mu_out in ((1.5, 2.0, 0.0), (4.0, 10.0, 2.0))
    ]
    assert compute_likelihood_ratios(target, shadows, inside).tolist() == pytest.approx(expected)


@quick
@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 6))
def test_exchanging_in_and_out_turns_the_sign(seed, count, examples):
    phi, inside = world(shadows=count, examples=examples, gain=1.0, spread=1.0, seed=seed)
    inside[0, 0], inside[1, 0] = True, False
    target = phi.mean(dim=0)
    there, back = (
        compute_likelihood_ratios(target, phi, inside),
        compute_likelihood_ratios(target, phi, ~inside),
    )
    torch.testing.assert_close(there, -back, rtol=1e-9, atol=1e-9)


@quick
@given(st.integers(0, 10_000), st.floats(0.1, 10.0), st.floats(-50, 50))
def test_shifting_and_scaling_confidences_changes_nothing(seed, scale, shift):
    phi, inside = world(shadows=9, examples=6, gain=1.0, spread=1.0, seed=seed)
    target = phi[0].clone()
    plain = compute_likelihood_ratios(target, phi[1:], inside[1:])
    moved = compute_likelihood_ratios(scale * target + shift, scale * phi[1:] + shift, inside[1:])
    torch.testing.assert_close(moved, plain, rtol=1e-6, atol=1e-6)


def test_a_model_that_saw_nothing_of_the_client_gives_one_half():
    """The attacked model is drawn as if no example were inside; any split of the examples must look like chance."""
    phi, inside = world(shadows=17, examples=1000, gain=2.0, spread=3.0)
    phi[0] -= 2.0 * inside[0]
    found = compute_roc([attacked(phi, inside)[0]])
    assert found.interval.low < 0.5 < found.interval.high


def test_permuted_membership_gives_one_half():
    phi, inside = world(shadows=17, examples=1000, gain=2.0, spread=3.0)
    ratios = compute_likelihood_ratios(phi[0], phi[1:], inside[1:])
    shuffled = inside[0][torch.randperm(1000, generator=torch.Generator().manual_seed(1))]
    found = compute_roc([Scores(ratios[shuffled], ratios[~shuffled])])
    assert found.interval.low < 0.5 < found.interval.high
    assert compute_roc([Scores(ratios[inside[0]], ratios[~inside[0]])]).interval.low > 0.8


def test_who_was_never_inside_borrows_the_others_shift():
    """The first example's means are 0 and 3; the second was outside at 10 alone, so inside it is taken to be at 13."""
    shadows = torch.tensor([[3.0, 10.0], [3.5, 10.0], [2.5, 10.0], [0.5, 10.0], [-0.5, 10.0]])
    inside = torch.tensor([[True, False]] * 3 + [[False, False]] * 2)
    near_in, near_out = (
        compute_likelihood_ratios(torch.tensor([0.0, at]), shadows, inside)[1].item() for at in (13.0, 10.0)
    )
    assert near_in > 0 > near_out
    left_in, left_out = 0.25, 0.5 / 5  # (0 + .25 + .25) / 2, and .5 over 1 + 4 degrees of freedom
    expected = -math.log(left_in / left_out) / 2 + 9 / (2 * left_out)
    assert near_in == pytest.approx(expected)


def test_who_was_never_outside_borrows_too():
    shadows = torch.tensor([[3.0, 10.0], [3.5, 10.0], [2.5, 10.0], [0.5, 10.0], [-0.5, 10.0]])
    inside = torch.tensor([[True, True]] * 3 + [[False, True]] * 2)
    ratios = [
        compute_likelihood_ratios(torch.tensor([0.0, at]), shadows, inside)[1].item() for at in (10.0, 7.0)
    ]
    assert ratios[0] > 0 > ratios[1]


def test_two_shadows_that_split_the_examples():
    """No example has both sides and none was seen twice: the shift is that of the means, and nothing is infinite."""
    shadows, inside = torch.tensor([[5.0, 1.0], [1.0, 5.0]]), torch.tensor([[True, False], [False, True]])
    found = compute_likelihood_ratios(torch.tensor([5.0, 1.0]), shadows, inside)
    assert found.isfinite().all()
    assert found[0] > 0 > found[1]
    alone = compute_likelihood_ratios(torch.tensor([5.0, 1.0]), shadows[:1], inside[:1])
    assert alone.isfinite().all()


def test_shadows_that_all_agree_have_a_floor_under_their_variance():
    inside = torch.tensor([[True], [True], [False], [False]])
    found = compute_likelihood_ratios(torch.tensor([2.0]), torch.full((4, 1), 2.0), inside)
    assert found.tolist() == [0.0]
    apart = compute_likelihood_ratios(torch.tensor([1.0]), torch.tensor([[1.0], [1.0], [0.0], [0.0]]), inside)
    assert 0 < apart.item() < math.inf


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_nothing_to_compare(where):
    inside = torch.full((3, 2), where == "outside")
    with refused(
        DataError, f"LiRA needs examples {where} the training data of some shadow", "use more shadows"
    ):
        compute_likelihood_ratios(torch.zeros(2), torch.randn(3, 2), inside)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_model_is_refused(bad):
    inside = torch.tensor([[True, False], [False, True]])
    with refused(DataError, "not finite", "diverged"):
        compute_likelihood_ratios(torch.tensor([0.0, bad]), torch.zeros(2, 2), inside)
    with refused(DataError, "not finite", "diverged"):
        compute_likelihood_ratios(torch.zeros(2), torch.tensor([[0.0, bad], [0.0, 0.0]]), inside)


def test_inputs_stay_as_they_were():
    phi, inside = world(shadows=5, examples=4, gain=1.0, spread=1.0)
    kept = phi.clone(), inside.clone()
    attack_shadows(phi, inside)
    assert torch.equal(phi, kept[0])
    assert torch.equal(inside, kept[1])


def test_the_self_test_attacks_every_shadow_the_client_took_part_in():
    phi, inside = world(shadows=10, examples=50, gain=3.0, spread=2.0)
    inside[[2, 5]] = False  # it stayed at home
    found = attack_shadows(phi, inside)
    assert [len(members) for members, _ in found] == [int(row.sum()) for row in inside if row.any()]
    assert all(len(members) + len(others) == 50 for members, others in found)


def test_the_self_test_tells_what_the_attack_can_do():
    phi, inside = world(shadows=16, examples=300, gain=2.0, spread=4.0)
    found = compute_roc([Scores(*scores) for scores in attack_shadows(phi, inside)]).auc
    assert 0.8 < found < NormalDist().cdf(2 / math.sqrt(2)) + 0.02


def test_the_self_test_is_blind_where_there_is_nothing_to_see():
    phi, inside = world(shadows=16, examples=300, gain=0.0, spread=4.0)
    found = compute_roc([Scores(*scores) for scores in attack_shadows(phi, inside)])
    assert found.interval.low < 0.5 < found.interval.high
    assert found.auc == pytest.approx(0.5, abs=0.03)


def test_a_shadow_is_never_attacked_with_itself():
    """Its scores are those of the ratio learnt without it, whatever its own membership says of its values."""
    phi, inside = world(shadows=8, examples=30, gain=2.0, spread=1.0)
    inside[:, 0], inside[3] = True, torch.arange(30) < 15
    members, others = attack_shadows(phi, inside)[3]
    rest = [k for k in range(8) if k != 3]
    expected = compute_likelihood_ratios(phi[3], phi[rest], inside[rest])
    assert torch.equal(torch.cat([members, others]), expected)
    relabelled = inside.clone()
    relabelled[3] = ~inside[3]
    swapped = attack_shadows(phi, relabelled)[3]
    assert torch.equal(swapped[0], others)
    assert torch.equal(swapped[1], members)


def test_the_self_test_needs_a_second_shadow_with_the_client():
    phi, inside = world(shadows=4, examples=5, gain=1.0, spread=1.0)
    inside[1:] = False
    inside[0, 0] = True
    with refused(DataError, "LiRA needs examples inside", "use more shadows"):
        attack_shadows(phi, inside)
    assert attack_shadows(phi, torch.zeros_like(inside)) == []
