"""Distances that can be worked out on paper."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data.wording import refused
from feduhb.audit.measures import compute_distance
from feduhb.audit.result import Distance
from feduhb.errors import DataError
from toys import quick

OUTPUTS = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]])


def test_a_model_and_itself():
    w = torch.tensor([3.0, -4.0])
    assert compute_distance(w, w, OUTPUTS, OUTPUTS) == Distance(0.0, 1.0, 0.0, 0.0)


def test_weights_by_hand():
    """(3, 4) and (4, 3): √2 apart, cosine 24/25."""
    found = compute_distance(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0]), OUTPUTS, OUTPUTS)
    assert found.l2 == pytest.approx(math.sqrt(2))
    assert found.cosine == pytest.approx(24 / 25)


@pytest.mark.parametrize("other", [[0.0, 0.0], [1.0, 2.0]])
def test_no_weights_have_no_direction(other):
    found = compute_distance(torch.zeros(2), torch.tensor(other), OUTPUTS, OUTPUTS)
    assert found.cosine == 0.0
    assert found.l2 == pytest.approx(math.hypot(*other))


def test_opposite_and_tiny_weights():
    w = torch.tensor([1e-30, 2e-30])
    assert compute_distance(w, -w, OUTPUTS, OUTPUTS).cosine == pytest.approx(-1.0)
    large = torch.tensor([1e30, -1e30])
    assert compute_distance(large, large, OUTPUTS, OUTPUTS).cosine == pytest.approx(1.0)


def test_kl_by_hand_and_its_direction():
    """The reference says 3/4 to 1/4, the model 1/2 to 1/2, on one of two examples; elsewhere they agree."""
    reference = torch.tensor([[math.log(3.0), 0.0], [5.0, 1.0]])
    model = torch.tensor([[0.0, 0.0], [5.0, 1.0]])
    w = torch.ones(1)
    there = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    back = (0.5 * math.log(2 / 3) + 0.5 * math.log(2)) / 2
    assert compute_distance(w, w, model, reference).kl == pytest.approx(there, rel=1e-6)
    assert compute_distance(w, w, reference, model).kl == pytest.approx(back, rel=1e-6)


def test_disagreement_counts_other_first_choices():
    model = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [9.0, 0.0]])
    reference = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert compute_distance(torch.ones(1), torch.ones(1), model, reference).disagreement == 0.5


def test_predictions_that_are_all_but_certain():
    """The reference is sure of what the model all but excludes: 2000 nats, not infinity."""
    sure, other = torch.tensor([[1000.0, -1000.0]]), torch.tensor([[-1000.0, 1000.0]])
    assert compute_distance(torch.ones(1), torch.ones(1), other, sure).kl == 2000.0
    assert compute_distance(torch.ones(1), torch.ones(1), sure, sure).kl == 0.0


@quick
@given(st.integers(0, 10_000), st.floats(-30, 30))
def test_laws(seed, shift):
    """Not negative; blind to a constant added to outputs; both lengths are symmetric."""
    rng = torch.Generator().manual_seed(seed)
    w, v = torch.randn(2, 5, generator=rng)
    model, reference = torch.randn(2, 7, 3, generator=rng, dtype=torch.float64)
    found, back = compute_distance(w, v, model, reference), compute_distance(v, w, reference, model)
    assert found.kl is not None
    assert found.kl >= 0
    assert -1 <= found.cosine <= 1
    assert (found.l2, found.cosine, found.disagreement) == (back.l2, back.cosine, back.disagreement)
    assert compute_distance(w, v, model + shift, reference).kl == pytest.approx(found.kl, abs=1e-9)
    oracle = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=reference), torch.distributions.Categorical(logits=model)
    )
    assert found.kl == pytest.approx(float(oracle.mean()), abs=1e-9)


def test_a_diverged_model_is_named():
    bad = torch.tensor([math.nan, 1.0])
    with refused(DataError, "the model has diverged: some weights or outputs are not finite"):
        compute_distance(bad, torch.ones(2), OUTPUTS, OUTPUTS)
    with refused(DataError, "the reference has diverged: some weights or outputs are not finite"):
        compute_distance(torch.ones(2), torch.ones(2), OUTPUTS, OUTPUTS / 0)
