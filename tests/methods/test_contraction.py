"""Heavy ball contracts on a quadratic exactly as fast as linear algebra says.

With gradients, e[t] = w[t] - w* and a an eigenvalue of the mean curvature H, every eigen-direction runs

    e[t+1] = (1 + β - α a) e[t] - β e[t-1],     e[-1] = e[0]

so (e[t+1], e[t]) = M (e[t], e[t-1]) with M = [[1 + β - α a, -β], [1, 0]]. Its eigenvalues are the roots of
r² - (1 + β - α a) r + β. Where (1 + β - α a)² < 4 β they are complex, of size sqrt(β) (underdamped); else
real (overdamped). The contraction is the spectral radius, the larger size.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from feduhb.methods import FedUHB, Retrain
from feduhb.runs.loop import run
from toys import Quadratics, quadratics, quick


def one_dimension(curvature: float, *, minimum: float = 0.0) -> Quadratics:
    a, m = torch.tensor([[curvature]], dtype=torch.float64), torch.tensor([minimum], dtype=torch.float64)
    return Quadratics({"a": a}, {"a": m}, {"a": 1.0})


def errors(
    method, engine: Quadratics, clients: tuple[str, ...], rounds: int, start: torch.Tensor
) -> np.ndarray:
    """Return e[0] .. e[rounds] as rows."""
    best = engine.optimum(clients)
    states = [state.params for state, _ in run(method, engine, clients, method.init(start), rounds=rounds)]
    return torch.stack([start - best, *(w - best for w in states)]).numpy()


def radius(curvature: float, step_size: float, momentum: float) -> float:
    matrix = np.array([[1 + momentum - step_size * curvature, -momentum], [1.0, 0.0]])
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def measured(e: np.ndarray) -> float:
    """Fit e[t+1] = p e[t] + q e[t-1] to four errors in a row and give the larger root of r² - p r - q."""
    p, q = np.linalg.solve(np.array([[e[1], e[0]], [e[2], e[1]]]), np.array([e[2], e[3]]))
    return float(np.abs(np.roots([1.0, -p, -q])).max())


@settings(quick, max_examples=30)
@given(st.floats(0.2, 3), st.floats(0.05, 0.9), st.floats(0.1, 0.95))
def test_the_measured_contraction_is_the_spectral_radius(curvature: float, step_size: float, momentum: float):
    assume(abs((1 + momentum - step_size * curvature) ** 2 - 4 * momentum) > 0.05)  # a double root: see below
    assume(abs(step_size * curvature) > 0.05)
    assume(abs(radius(curvature, step_size, momentum) - 1) > 1e-3)
    method = FedUHB(step_size, momentum, epochs=0)
    e = errors(method, one_dimension(curvature), ("a",), 8, torch.ones(1, dtype=torch.float64))[:, 0]
    assert measured(e[4:8]) == pytest.approx(radius(curvature, step_size, momentum), rel=1e-6)


@pytest.mark.parametrize(
    ("curvature", "step_size", "momentum", "expected"),
    [
        pytest.param(1.0, 0.1, 0.81, 0.9, id="underdamped: sqrt(0.81), whatever the curvature"),
        pytest.param(2.0, 0.1, 0.81, 0.9, id="underdamped: the same"),
        pytest.param(0.2, 0.5, 0.2, (1.1 + math.sqrt(0.41)) / 2, id="overdamped: r² - 1.1 r + 0.2"),
        pytest.param(1.0, 0.3, 0.0, 0.7, id="no momentum: 1 - 0.3"),
    ],
)
def test_the_long_run_settles_at_it(curvature: float, step_size: float, momentum: float, expected: float):
    """‖(e[t], e[t-1])‖^(1/t) tends to ρ; over 200 rounds swinging by κ costs κ^(1/200), under 3 percent."""
    assert radius(curvature, step_size, momentum) == pytest.approx(expected, rel=1e-12)
    method = FedUHB(step_size, momentum, epochs=0)
    e = errors(method, one_dimension(curvature), ("a",), 250, torch.ones(1, dtype=torch.float64))[:, 0]
    pairs = np.hypot(e[1:], e[:-1])
    assert (pairs[-1] / pairs[49]) ** (1 / 200) == pytest.approx(expected, rel=0.03)


@settings(quick, max_examples=15)
@given(st.floats(0.3, 1.0), st.floats(0.3, 0.9))
def test_underdamped_areas_shrink_by_beta_a_round(step_size: float, momentum: float):
    """det M = β, so e[t]² - e[t+1] e[t-1] shrinks by β = ρ² a round: sharper than any ratio of norms."""
    assume((1 + momentum - step_size) ** 2 < 4 * momentum - 0.05)
    method = FedUHB(step_size, momentum, epochs=0)
    e = errors(method, one_dimension(1.0), ("a",), 22, torch.ones(1, dtype=torch.float64))[:, 0]
    area = e[1:-1] ** 2 - e[2:] * e[:-2]
    np.testing.assert_allclose(area[1:] / area[:-1], momentum, rtol=1e-9)


def test_the_best_settings_for_mu_1_and_l_9_on_paper():
    """α = 4 / (sqrt L + sqrt μ)² = 1/4, β = ((sqrt L - sqrt μ) / (sqrt L + sqrt μ))² = 1/4: ρ = 1/2.

    Both have a double root. a = 1: r² - r + 1/4, r = 1/2; from e[0] = 1, e[1] = 3/4: e[t] = (1 + t/2) / 2^t.
    a = 9: r² + r + 1/4, r = -1/2; from e[0] = 1, e[1] = -5/4: e[t] = (1 + 3t/2) (-1/2)^t.
    All numbers are dyadic, so nothing is rounded and the comparison is exact.
    """
    diagonal, zero = (
        torch.diag(torch.tensor([1.0, 9.0], dtype=torch.float64)),
        torch.zeros(2, dtype=torch.float64),
    )
    engine = Quadratics({"a": diagonal}, {"a": zero}, {"a": 1.0})
    e = errors(FedUHB(0.25, 0.25, epochs=0), engine, ("a",), 20, torch.ones(2, dtype=torch.float64))
    t = np.arange(21)
    np.testing.assert_array_equal(e[:, 0], (1 + t / 2) / 2.0**t)
    np.testing.assert_array_equal(e[:, 1], (1 + 3 * t / 2) / (-2.0) ** t)


def test_heavy_ball_at_its_best_beats_gradient_descent_at_its_best():
    """Gradient descent's best for μ = 1, L = 9 is α = 2 / (L + μ), ρ = (L - μ) / (L + μ) = 0.8, not 0.5."""
    diagonal, zero = (
        torch.diag(torch.tensor([1.0, 9.0], dtype=torch.float64)),
        torch.zeros(2, dtype=torch.float64),
    )
    engine = Quadratics({"a": diagonal}, {"a": zero}, {"a": 1.0})
    plain = errors(Retrain(0.2, epochs=0), engine, ("a",), 20, torch.ones(2, dtype=torch.float64))
    np.testing.assert_allclose(np.linalg.norm(plain, axis=1), math.sqrt(2) * 0.8 ** np.arange(21), rtol=1e-12)
    ball = errors(FedUHB(0.25, 0.25, epochs=0), engine, ("a",), 20, torch.ones(2, dtype=torch.float64))
    assert np.linalg.norm(ball[-1]) < np.linalg.norm(plain[-1]) / 100


def test_in_a_federation_every_eigendirection_of_the_mean_curvature_has_its_own_radius():
    """H = Σ (n_c / N) A_c; in its eigenvectors the run splits into scalar ones."""
    engine, clients = quadratics(), ("b", "c", "d", "e")
    values, vectors = np.linalg.eigh(engine.hessian(clients).numpy())
    e = (
        errors(FedUHB(0.4, 0.1, epochs=0), engine, clients, 8, torch.full((3,), 4.0, dtype=torch.float64))
        @ vectors
    )
    for i, curvature in enumerate(values):
        assert measured(e[2:6, i]) == pytest.approx(radius(float(curvature), 0.4, 0.1), rel=1e-6)
