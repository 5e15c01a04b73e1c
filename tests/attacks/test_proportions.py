"""Paired shares, by hand and by simulation."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from data.wording import refused
from feduhb.audit.statistics import compute_difference
from feduhb.errors import DataError
from toys import quick

tables = st.tuples(*[st.integers(0, 30)] * 4).filter(any)


def paired(both: int, alone: int, other: int, neither: int) -> tuple[Tensor, Tensor]:
    """Write a two-by-two table out, image by image."""
    hit = [True] * both + [True] * alone + [False] * other + [False] * neither
    floor = [True] * both + [False] * alone + [True] * other + [False] * neither
    return torch.tensor(hit), torch.tensor(floor)


def test_by_hand():
    """Of 98 images 30 are hit alone, 2 are floor alone: b = 30.5, c = 2.5, N = 100."""
    found = compute_difference(*paired(10, 30, 2, 56), level=0.95)
    half = NormalDist().inv_cdf(0.975) * math.sqrt(33 - 28**2 / 100) / 100
    assert found.value == pytest.approx(28 / 98)
    assert found.low == pytest.approx(0.28 - half)
    assert found.high == pytest.approx(0.28 + half)


def test_images_that_agree_only_dilute():
    """Whether both or neither are hit does not matter to a paired difference."""
    assert compute_difference(*paired(50, 5, 1, 0)) == compute_difference(*paired(0, 5, 1, 50))


@pytest.mark.parametrize("count", [1, 10, 10_000])
def test_full_agreement_is_not_certainty(count):
    """At 99 % b = c = z² / 8: ± z² / 2 of n + z² / 2."""
    found = compute_difference(*paired(count, 0, 0, 0))
    more = NormalDist().inv_cdf(0.995) ** 2 / 2
    assert found.value == 0.0
    assert found.high == -found.low == pytest.approx(more / (count + more))


def test_every_image_hit_and_none_before():
    found = compute_difference(*paired(0, 200, 0, 0))
    assert found.value == found.high == 1.0
    assert 0.95 < found.low < 1.0


@quick
@given(tables, st.floats(0.05, 0.999))
def test_laws(table, level):
    both, alone, other, neither = table
    found = compute_difference(*paired(*table), level=level)
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high
    back = compute_difference(*paired(both, other, alone, neither), level=level)
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))
    wider = compute_difference(*paired(*table), level=(1 + level) / 2)
    assert wider.low <= found.low
    assert wider.high >= found.high


@pytest.mark.parametrize(
    ("count", "alone", "other", "both"),
    [
        (10, 0.3, 0.1, 0.2),
        (30, 0.05, 0.05, 0.0),
        (100, 0.6, 0.0, 0.01),
        (100, 0.02, 0.01, 0.5),
        (500, 0.01, 0.0, 0.0),
    ],
)
def test_the_interval_holds_the_truth(count, alone, other, both):
    """99 % of the time or so, also for rare hits over a floor of 0."""
    rng = torch.Generator().manual_seed(0)
    draws = torch.rand(1000, count, generator=rng)
    hit = (draws < alone) | ((draws >= alone + other) & (draws < alone + other + both))
    floor = (draws >= alone) & (draws < alone + other + both)
    found = [compute_difference(*pair) for pair in zip(hit, floor, strict=True)]
    held = sum(one.low <= alone - other <= one.high for one in found) / 1000
    assert held >= 0.98


def test_a_backdoor_that_is_gone_and_one_that_is_not():
    assert compute_difference(*paired(3, 2, 1, 494)).low < 0 < compute_difference(*paired(3, 2, 1, 494)).high
    assert compute_difference(*paired(3, 200, 1, 296)).low > 0.3


def test_no_images_are_refused():
    none = torch.tensor([], dtype=torch.bool)
    with refused(DataError, "add images of other classes"):
        compute_difference(none, none)
