"""The theorem: its constants against exact Hessians, its bounds against measured paths, easy and adversarial."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feduhb.core.flat import flatten, with_params
from feduhb.core.types import Local, Updates, Work
from feduhb.data.federation import Federation
from feduhb.engines import Loop
from feduhb.errors import ConfigError, RequestError, StorageError
from feduhb.methods import FedUHB, Retrain
from feduhb.models import softmax
from feduhb_reproduction import bounds as theorem
from feduhb_reproduction.theorem import TheoremSettings, load_remaining, measure, run_theorem
from toys import Quadratics, quadratics, quick

pytestmark = pytest.mark.slow

BETAS = (0.0, 0.05, 0.3, 0.6, 0.9)
SMALL = TheoremSettings(data="digits", clients=5, betas=BETAS, regulariser=0.1, rounds=150)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measure(SMALL, show=None)


# The problem: softmax regression, its μ and L


def small_softmax(classes: int = 3, features: int = 4, seed: int = 0) -> Federation:
    draw = torch.Generator().manual_seed(seed)

    def some(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % classes
        return torch.randn(count, features, generator=draw, dtype=torch.float64), labels

    clients = {"a": some(7), "b": some(12), "c": some(5)}
    return Federation(clients, some(6), softmax((features,), classes).double())


def loss(federation: Federation, regulariser: float, w: Tensor) -> Tensor:
    """The mean loss over all examples of all clients, written out: no engine, no module."""
    pairs = [examples.all() for examples in federation.clients.values()]
    x, y = torch.cat([x for x, _ in pairs]).flatten(1), torch.cat([y for _, y in pairs])
    classes = len(w) // (x.shape[1] + 1)
    weight, bias = w[: classes * x.shape[1]].view(classes, -1), w[-classes:]
    return torch.nn.functional.cross_entropy(x @ weight.T + bias, y) + regulariser / 2 * w.square().sum()


@settings(quick, max_examples=15)
@given(st.integers(0, 10**6), st.integers(2, 4), st.floats(0.01, 1), st.floats(0, 5))
def test_every_eigenvalue_of_the_exact_hessian_is_between_mu_and_l(
    seed: int, classes: int, regulariser: float, size: float
):
    federation = small_softmax(classes, seed=seed)
    known = theorem.find_constants(federation, regulariser)
    w = size * torch.randn(5 * classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda w: loss(federation, regulariser, w), w)
    eigenvalues = torch.linalg.eigvalsh(hessian)
    assert eigenvalues[0] >= known.strong - 1e-12
    assert eigenvalues[-1] <= known.smooth + 1e-12


def test_l_is_reached_by_two_classes_at_zero_so_no_smaller_one_would_do():
    """At w = 0, p = (1/2, 1/2) and S = diag(p) - pp' has the eigenvalue 1/2 for every example."""
    federation = small_softmax(classes=2)
    hessian = torch.autograd.functional.hessian(
        lambda w: loss(federation, 0.3, w), torch.zeros(10, dtype=torch.float64)
    )
    eigenvalues = torch.linalg.eigvalsh(hessian)
    known = theorem.find_constants(federation, 0.3)
    assert float(eigenvalues[-1]) == pytest.approx(known.smooth, rel=1e-12)
    assert float(eigenvalues[0]) == pytest.approx(known.strong, rel=1e-9)


def test_the_noted_gradient_is_that_of_the_written_out_loss():
    """The weighted mean over clients of their means is the mean over all; the bias is regularised too."""
    federation = small_softmax()
    start = flatten(federation.fresh_model())
    engine = Loop(federation, Local(l2=0.2))
    path = theorem.follow_method(Retrain(epochs=0, step_size=0.5), engine, list(federation.clients), start, 3)
    assert len(path.gradients) == len(path.weights) == 4
    for w, norm in zip(path.weights, path.gradients, strict=True):
        exact = torch.autograd.functional.jacobian(lambda w: loss(federation, 0.2, w), w)
        assert norm == pytest.approx(float(torch.linalg.vector_norm(exact)), rel=1e-12)


def test_every_example_is_divided_by_its_own_norm_and_an_empty_one_stays():
    federation = small_softmax()
    x, y = federation.clients["a"].all()
    x[2] = 0
    scaled = theorem.make_regression(federation.replace(clients={"a": (x.float(), y)}, test=(x.float(), y)))
    rows, labels = scaled.clients["a"].all()
    assert rows.dtype == torch.float64
    assert torch.equal(labels, y)
    norms = torch.linalg.vector_norm(rows, dim=1)
    assert norms[2] == 0
    torch.testing.assert_close(norms[y.new_tensor([0, 1, 3, 4, 5, 6])], torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(rows[0] * x[0].norm(), x[0], rtol=1e-6, atol=1e-6)


def test_scaling_lets_nothing_of_a_leaver_flow_to_the_others():
    federation = small_softmax()
    x, y = federation.clients["b"].all()
    noisy = federation.replace(clients={**federation.clients, "b": (1e6 * x.flip(0), y)})
    one, other = (theorem.make_regression(f.without(["b"])) for f in (federation, noisy))
    assert list(one.clients) == ["a", "c"]
    for client in one.clients:
        assert torch.equal(one.clients[client].all()[0], other.clients[client].all()[0])
    assert torch.equal(flatten(one.fresh_model()), flatten(other.fresh_model()))
    assert theorem.find_constants(one, 0.1) == theorem.find_constants(other, 0.1)


# The bounds: their algebra, and measured paths on quadratics


def test_the_bounds_on_paper():
    """α = 1/2, μ = 3/2: ρ = 1/2. G = 4, β = 1/2: pushes 4 and 2; after t rounds 2 push (1 - 2^-t)."""
    known = theorem.Constants(strong=1.5, smooth=2.0)
    assert (known.step_size, known.shrink) == (0.5, 0.5)
    paper, tight = (theorem.compute_push(0.5, 0.5, 4.0, tight=tight) for tight in (False, True))
    assert (paper, tight) == (4.0, 2.0)
    assert theorem.bound_distances(3, 0.5, paper) == [0.0, 4.0, 6.0, 7.0]
    assert theorem.bound_distances(3, 0.5, tight, apart=8.0) == [8.0, 6.0, 5.0, 4.5]
    assert (theorem.find_limit(0.5, paper), theorem.find_limit(0.5, tight)) == (8.0, 4.0)


def test_with_beta_the_tight_bound_goes_to_0_and_the_papers_does_not():
    betas = (0.5, 0.1, 1e-3, 1e-9, 0.0)
    tight = [theorem.compute_push(0.5, beta, 4.0, tight=True) for beta in betas]
    assert tight == sorted(tight, reverse=True)
    assert tight[-2] < 1e-8
    assert tight[-1] == 0.0
    assert theorem.compute_push(0.5, 0.0, 4.0, tight=False) == 2.0


def federation_of(curvature: Tensor) -> Quadratics:
    size = len(curvature)
    return Quadratics({"a": curvature}, {"a": torch.zeros(size, dtype=torch.float64)}, {"a": 1.0})


def excess(
    engine: Any, clients: Sequence[str], starts: Sequence[Tensor], alpha: float, mu: float, beta: float
) -> dict[str, float]:
    """Return by how much the distance exceeds each bound at most, in units of the start, over 60 rounds."""
    rounds = 60
    ball = theorem.follow_method(FedUHB(alpha, beta, epochs=0), engine, clients, starts[0], rounds)
    plain = theorem.follow_method(Retrain(alpha, epochs=0), engine, clients, starts[1], rounds)
    distance, largest = theorem.measure_distances(ball, plain), theorem.find_largest_gradient(ball, plain)
    unit = 1 + float(sum(torch.linalg.vector_norm(start) for start in starts))
    rho = theorem.compute_rho(alpha, mu)
    bounds = {
        name: theorem.bound_distances(
            rounds, rho, theorem.compute_push(alpha, beta, largest, tight=name == "tight"), distance[0]
        )
        for name in ("paper", "tight")
    }
    return {name: max((d - b) / unit for d, b in zip(distance, bounds[name], strict=True)) for name in bounds}


@pytest.mark.slow
@settings(quick, max_examples=80)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.floats(1, 1000),
    st.floats(0.01, 1),
    st.floats(0, 0.99, exclude_max=True),
    st.booleans(),
)
def test_no_strongly_convex_quadratic_breaks_a_bound(
    seed: int, size: int, condition: float, share: float, beta: float, same: bool
):
    """Spectra in [μ, L] with both ends in them, any α up to 1 / L, starts alike or apart."""
    draw = torch.Generator().manual_seed(seed)
    spectrum = 1 + (condition - 1) * torch.rand(size, generator=draw, dtype=torch.float64)
    spectrum[0], spectrum[-1] = 1.0, condition
    basis = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64)).Q
    engine = federation_of(basis * spectrum @ basis.T)
    starts = list(10 * torch.randn(2, size, generator=draw, dtype=torch.float64))
    if same:
        starts[1] = starts[0]
    mu = float(spectrum.min())  # with one dimension, μ = L
    over = excess(engine, ("a",), starts, share / condition, mu, beta)
    assert over["paper"] <= 1e-12
    assert over["tight"] <= 1e-12


@dataclass
class Bent:
    """f'(w) = 25 w below 1, w + 24 to 2, 25 w - 24 above: μ = 1, L = 25, and no quadratic.

    On it heavy ball tuned for quadratics (α = 1/9, β = 4/9) cycles for ever: Lessard, Recht and Packard 2016.
    """

    @property
    def about(self) -> Mapping[str, Any]:
        return {"name": "bent"}

    def train(self, work: Work, clients: Sequence[str], round: int) -> Iterator[Updates]:  # noqa: ARG002
        w = work.params
        slope = torch.where(w < 1, 25 * w, torch.where(w < 2, w + 24, 25 * w - 24))
        yield Updates(tuple(clients), slope.expand(len(clients), -1), torch.ones(len(clients)))


@settings(quick, max_examples=40)
@given(
    st.floats(-20, 20), st.floats(-20, 20), st.floats(0.05, 1), st.floats(0, 0.99, exclude_max=True), st.booleans()
)  # fmt: skip
def test_nor_does_the_function_that_heavy_ball_fails_on(
    one: float, other: float, share: float, beta: float, same: bool
):
    starts = [torch.tensor([w], dtype=torch.float64) for w in (one, one if same else other)]
    over = excess(Bent(), ("a",), starts, share / 25, 1.0, beta)
    assert over["paper"] <= 1e-12
    assert over["tight"] <= 1e-12


def test_a_step_beyond_1_over_l_does_break_it():
    """β = 0, spectrum {1/2, 1}, α = 1.9: a step shrinks by |1 - 1.9| = 0.9, not by sqrt(1 - 0.95) = 0.22."""
    engine = federation_of(torch.diag(torch.tensor([0.5, 1.0], dtype=torch.float64)))
    starts = [torch.tensor([0.0, w], dtype=torch.float64) for w in (1.0, -1.0)]
    assert excess(engine, ("a",), starts, 1.9, 0.5, 0.0)["tight"] > 0.1
    assert excess(engine, ("a",), starts, 1.0, 0.5, 0.0)["tight"] <= 1e-12


@dataclass
class Opposite:
    """Two clients with the losses (μ / 2) w² + g w and (μ / 2) w² - g w, of which a round draws one.

    At w = 0 their gradients are g and -g: unbiased, and no longer than G = g.
    """

    drawn: str
    g: float = 3.0
    mu: float = 1.0

    @property
    def about(self) -> Mapping[str, Any]:
        return {"name": "opposite"}

    def train(self, work: Work, clients: Sequence[str], round: int) -> Iterator[Updates]:  # noqa: ARG002
        signs = {"a": 1.0, "b": -1.0}
        assert self.drawn in clients
        slope = self.mu * work.params + signs[self.drawn] * self.g
        yield Updates((self.drawn,), slope[None], torch.ones(1))


@pytest.mark.parametrize("mu", [1.0, 0.1])
def test_stochastic_gradients_do_break_it(mu: float):
    """FedUHB draws one client and Retrain the other: 2 α g apart after a round at β = 0, and the bound is α g."""
    alpha, g, start = 0.5, 3.0, torch.zeros(1, dtype=torch.float64)
    ball, plain = (
        theorem.follow_method(method, Opposite(drawn, g, mu), ("a", "b"), start, 1)
        for method, drawn in ((FedUHB(alpha, 0.0, epochs=0), "a"), (Retrain(alpha, epochs=0), "b"))
    )
    assert ball.gradients[0] == plain.gradients[0] == g
    bound = theorem.bound_distances(
        1, theorem.compute_rho(alpha, mu), theorem.compute_push(alpha, 0.0, g, tight=False)
    )
    assert theorem.measure_distances(ball, plain)[1] == 2 * alpha * g
    assert bound[1] == pytest.approx(alpha * g)


def test_in_a_federation_of_quadratics_the_gap_bounds_the_distance_to_the_optimum():
    engine, clients = quadratics(), ("b", "c", "e")
    start = torch.full((3,), 4.0, dtype=torch.float64)
    mu = float(torch.linalg.eigvalsh(engine.hessian(clients))[0])
    path = theorem.follow_method(FedUHB(0.3, 0.5, epochs=0), engine, clients, start, 12)
    left = float(torch.linalg.vector_norm(path.weights[-1] - engine.optimum(clients)))
    assert 0 < left <= path.gap(mu) < 10 * left


# Real data: what `feduhb theorem` measures


@pytest.mark.slow
def test_the_distance_stays_under_both_bounds_for_every_beta(found: dict[str, Any]):
    assert [run["beta"] for run in found["runs"]] == list(BETAS)
    for run in found["runs"]:
        assert run["under_paper"]
        assert run["under_tight"]
        assert len(run["distance"]) == len(run["paper"]) == len(run["tight"]) == SMALL.rounds + 1
        for distance, tight, paper in zip(run["distance"], run["tight"], run["paper"], strict=True):
            assert 0 <= distance <= tight <= paper


@pytest.mark.slow
def test_it_could_have_been_broken(found: dict[str, Any]):
    """With half of the G that was seen, the bound with β would not hold: the check has teeth."""
    for run in found["runs"][1:3]:
        assert any(d > b / 2 for d, b in zip(run["distance"], run["tight"], strict=True))
        near = run["tight_closest"]
        measured, bound = run["distance"][near["round"]], run["tight"][near["round"]]
        assert bound / measured == pytest.approx(near["ratio"], rel=1e-5)


@pytest.mark.slow
def test_the_distance_goes_to_0_and_the_bounds_do_not(found: dict[str, Any]):
    for run in found["runs"][1:]:
        assert run["peak"] == pytest.approx(max(run["distance"]), rel=1e-5)
        assert run["distance"][run["peak_round"]] == max(run["distance"])
        assert 0 < run["final"] < 1e-3 * run["peak"]
        for name in ("paper", "tight"):
            assert run[name] == sorted(run[name])
            assert 0.95 * run[f"{name}_limit"] < run[name][-1] < run[f"{name}_limit"]


def test_both_end_at_one_optimum(found: dict[str, Any]):
    for run in found["runs"]:
        assert run["final"] <= run["gap"] + found["retrain"]["gap"]
        assert run["test_accuracy"] == found["retrain"]["test_accuracy"] > 0.5
    assert 0 < found["retrain"]["gap"] < 1e-4 * found["start_from_optimum"]


def test_without_momentum_the_weights_are_retrains_bit_for_bit(found: dict[str, Any]):
    run = found["runs"][0]
    assert run["distance"] == [0.0] * (SMALL.rounds + 1)
    assert run["tight"] == [0.0] * (SMALL.rounds + 1)
    assert run["paper"][-1] > 0
    assert run["tight_closest"] is run["paper_closest"] is None


def test_a_smaller_beta_gives_a_smaller_distance_and_a_smaller_tight_bound(found: dict[str, Any]):
    for name in ("peak", "tight_limit", "paper_limit"):
        values = [run[name] for run in found["runs"]]
        assert values == sorted(values)
    low, high = found["runs"][1:3]
    assert low["G"] == high["G"]  # the largest gradient is the start's
    assert low["tight_limit"] / high["tight_limit"] == pytest.approx(0.05 / 0.95 / (0.3 / 0.7), rel=1e-12)


def test_the_constants_are_the_remaining_clients(found: dict[str, Any]):
    federation = load_remaining(SMALL)
    assert list(federation.clients) == ["c02", "c03", "c04"]
    assert found["remaining_clients"] == 3
    assert found["remaining_examples"] == sum(map(len, federation.clients.values()))
    assert found["parameters"] == 650
    assert found["mu"] == 0.1
    assert found["L"] == theorem.find_constants(federation, 0.1).smooth
    assert found["alpha"] * found["L"] == pytest.approx(1.0, rel=1e-15)
    assert found["rho"] == math.sqrt(1 - found["alpha"] * 0.1)


def test_g_is_the_largest_gradient_of_either_path(found: dict[str, Any]):
    federation = load_remaining(SMALL)
    start = flatten(federation.fresh_model())
    gradient = torch.autograd.functional.jacobian(lambda w: loss(federation, 0.1, w), start)
    for run in found["runs"]:
        assert run["G"] >= float(torch.linalg.vector_norm(gradient)) * (1 - 1e-12)
    assert found["runs"][0]["G"] == pytest.approx(float(torch.linalg.vector_norm(gradient)), rel=1e-12)


def test_the_accuracy_is_that_of_the_final_model(found: dict[str, Any]):
    federation = load_remaining(SMALL)
    engine = Loop(federation, Local(l2=0.1))
    method = Retrain(epochs=0, step_size=found["alpha"])
    start = flatten(federation.fresh_model())
    path = theorem.follow_method(method, engine, list(federation.clients), start, SMALL.rounds)
    x, y = federation.test.all()
    with torch.no_grad():
        right = with_params(federation.fresh_model(), path.weights[-1])(x).argmax(dim=1) == y
    assert found["retrain"]["test_accuracy"] == pytest.approx(float(right.double().mean()))


def test_it_writes_what_it_found_and_shows_a_line_for_every_run(tmp_path: Path, capsys):
    quickly = TheoremSettings(data="digits", clients=3, forget="c00", betas=(0.9, 0.5, 0.9), rounds=50)
    found = run_theorem(tmp_path / "deep" / "theorem", quickly, show="lines")
    written = (tmp_path / "deep" / "theorem" / "theorem.json").read_text()
    assert json.loads(written) == json.loads(json.dumps(found))
    assert [run["beta"] for run in found["runs"]] == [0.5, 0.9]
    assert found["settings"]["forget"] == "c00"
    assert capsys.readouterr().err.splitlines() == [
        "theorem 1/3  retrain", "theorem 2/3  beta 0.5", "theorem 3/3  beta 0.9",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"betas": (0.3, 1.0)}, "momentum is 1.0; give at least 0 and below 1"),
        ({"betas": (-0.1,)}, "momentum is -0.1; give at least 0"),
        ({"betas": (math.nan,)}, "momentum is nan"),
        ({"betas": ()}, "no beta is given; give some"),
        ({"regulariser": 0.0}, "the regulariser is 0.0; give a positive number"),
        ({"regulariser": -1.0}, "the regulariser is -1.0; give a positive number"),
        ({"regulariser": math.inf}, "the regulariser is inf"),
        ({"rounds": 0}, "rounds is 0; give 1 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_words(changes: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        TheoremSettings(**changes)


def test_forgetting_everyone_or_a_stranger_is_refused():
    with pytest.raises(RequestError, match="no client would remain to train on"):
        measure(TheoremSettings(data="digits", clients=2, forget="c00,c01"), show=None)
    with pytest.raises(RequestError, match="c77"):
        measure(TheoremSettings(data="digits", clients=2, forget="c77"), show=None)


def test_a_regulariser_too_small_to_be_seen_is_refused():
    with pytest.raises(ConfigError, match="give a larger regulariser"):
        measure(TheoremSettings(data="digits", clients=2, forget="c00", regulariser=1e-18), show=None)


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write theorem.json into .*; choose another folder"):
        run_theorem(tmp_path / "file" / "theorem", TheoremSettings(rounds=10**9))
