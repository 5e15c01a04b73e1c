"""The geometric median is where the pulls of all clients balance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feduhb.core.aggregate import geometric_median
from feduhb.core.types import Updates
from toys import block_of, quick


def of(points: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    n = np.ones(len(points)) if weights is None else weights
    block = Updates(
        tuple(map(str, range(len(points)))), torch.from_numpy(points.copy()), torch.from_numpy(n.copy())
    )
    return geometric_median([block]).numpy()


def excess(points: np.ndarray, weights: np.ndarray, z: np.ndarray) -> float:
    """Return the remaining pull at z as a share of the total weight.

    0 lies in the subdifferential of Σ n ‖u - z‖ iff ‖Σ_{u != z} n (u - z) / ‖u - z‖‖ is at most the weight
    that sits at z itself. Points nearer than 1e-6 of the spread count as being at z.
    """
    apart = np.linalg.norm(points - z, axis=1)
    away = apart > 1e-6 * np.linalg.norm(points - points.mean(axis=0), axis=1).max()
    pull = (weights[away, None] * (points - z)[away] / apart[away, None]).sum(axis=0)
    return max(0.0, float(np.linalg.norm(pull)) - weights[~away].sum()) / weights.sum()


@quick
@given(st.integers(0, 9999), st.integers(3, 12), st.integers(2, 6))
def test_the_pulls_balance(seed: int, clients: int, size: int):
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(clients, size)), rng.uniform(1, 10, clients)
    assert (
        excess(points, weights, of(points, weights)) < 1e-3
    )  # 1000 steps; Weiszfeld slows down near a client


@quick
@given(st.integers(0, 9999), st.integers(1, 6))
def test_on_a_line_it_is_the_weighted_median(seed: int, half: int):
    """With distinct points and an odd total weight one point holds the middle, and it is the minimiser."""
    rng = np.random.default_rng(seed)
    points = rng.choice(np.arange(-20.0, 21.0), size=2 * half + 1, replace=False)
    weights = 2.0 * rng.integers(1, 5, 2 * half + 1) - 1
    order = np.argsort(points)
    middle = points[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]
    assert of(points[:, None], weights)[0] == pytest.approx(middle, abs=1e-5)


def test_a_triangle_on_paper():
    """In an equilateral triangle it is the centre; that of (0,0), (2,0), (1, sqrt 3) is (1, 1/sqrt 3)."""
    corners = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 3**0.5]])
    np.testing.assert_allclose(of(corners), [1, 3**-0.5], atol=1e-8)


def test_a_corner_of_120_degrees_or_more_holds_it():
    """(0,0) sees (3,0) and (-3,1) at more than 120 degrees, so the pulls (length < 1) cannot move it."""
    np.testing.assert_allclose(of(np.array([[0.0, 0.0], [3.0, 0.0], [-3.0, 1.0]])), [0, 0], atol=1e-6)


def test_a_majority_at_one_point_holds_it():
    """Three of five at (1, 1): the other two pull with at most 2 against 3."""
    points = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [50.0, -3.0], [-7.0, 90.0]])
    np.testing.assert_allclose(of(points), [1, 1], atol=1e-6)


def test_a_hostile_minority_moves_it_little():
    points = np.concatenate([np.random.default_rng(0).normal(size=(7, 3)), np.full((3, 3), 1e6)])
    assert np.linalg.norm(of(points)) < 3


def test_starting_on_a_client_that_is_not_the_answer():
    """0, 0, 0, 1, 4: the mean is 1, where a client sits; three zeros pull it on to the median, 0."""
    rows = block_of({"a": [0.0], "b": [0.0], "c": [0.0], "d": [1.0], "e": [4.0]})
    assert geometric_median([rows]).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("offset", [1e-11, 1e-12, 1e-13, -1e-12])
def test_starting_all_but_on_a_client_that_is_not_the_answer(offset: float):
    """The same with the mean a hair beside the client: a step there is a hair too, and no convergence."""
    points = np.array([[0.0], [0.0], [0.0], [1.0], [4.0 + offset]])
    assert of(points)[0] == pytest.approx(0, abs=1e-5)


@settings(quick, max_examples=20)
@given(st.integers(0, 9999), st.integers(3, 8), st.floats(-1e6, 1e6))
@example(seed=0, clients=5, shift=65536.0)  # the mean is off its client by rounding, which is no convergence
def test_it_moves_with_the_points(seed: int, clients: int, shift: float):
    """Translation equivariance, also where the mean lands on a client (the last one, by construction)."""
    points = np.random.default_rng(seed).normal(size=(clients, 2)) * np.arange(1, clients + 1)[:, None]
    for case in (points, np.concatenate([points, points.mean(axis=0, keepdims=True)])):
        np.testing.assert_allclose(of(case + shift) - shift, of(case), atol=1e-4)


@quick
@given(st.integers(0, 9999), st.integers(3, 8), st.integers(-30, 30))
def test_it_scales_with_the_points(seed: int, clients: int, power: int):
    points = np.random.default_rng(seed).normal(size=(clients, 3))
    np.testing.assert_allclose(of(points * 2.0**power) / 2.0**power, of(points), rtol=1e-9, atol=1e-9)


@quick
@given(st.integers(0, 9999), st.integers(2, 5))
def test_weights_count_like_clients(seed: int, times: int):
    """A client of weight k is k clients of weight 1 who say the same."""
    points = np.random.default_rng(seed).normal(size=(4, 2))
    weights = np.array([float(times), 1.0, 1.0, 1.0])
    repeated = np.concatenate([np.repeat(points[:1], times, axis=0), points[1:]])
    np.testing.assert_allclose(of(points, weights), of(repeated), atol=1e-6)


def test_clients_of_one_mind():
    assert of(np.full((4, 3), 0.1)).tolist() == pytest.approx([0.1] * 3, rel=1e-15)
    assert of(np.array([[2.0, 3.0]])).tolist() == [2.0, 3.0]
