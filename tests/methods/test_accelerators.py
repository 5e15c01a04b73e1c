"""Nesterov, FedAdam, FedYogi and FedNadam against torch's optimisers, by hand, and at their limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feduhb.core.types import Method
from feduhb.errors import ConfigError
from feduhb.methods import FedAdam, FedExP, FedNadam, FedYogi, Nesterov, Retrain
from feduhb.runs.loop import run
from feduhb.stopping import never
from methods.test_heavy_ball import drawn_rounds
from toys import block_of, quadratics, quick

REMAINING = ("b", "c", "d", "e")
MOMENTS = (FedAdam, FedYogi, FedNadam)
decays = st.floats(0, 0.99)


@pytest.fixture(autouse=True)
def precise() -> Iterator[None]:
    """Let torch keep NAdam's product of momenta, a tensor of the default type, in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def follow(method: Method[Any], updates: list[float], start: float = 0.0) -> list[float]:
    """Return the parameter of a model of one number after each of these updates."""
    state, found = method.init(torch.tensor([start])), []
    for update in updates:
        state = method.tell(state, [block_of({"a": [update]})])
        found.append(state.params.item())
    return found


def check_oracle(
    method: Method[Any], make: Callable[[list[Tensor]], torch.optim.Optimizer], seed: int
) -> None:
    """Feed both with the same 50 means, of which the later are tiny."""
    state, oracle = method.init(torch.ones(4)), torch.ones(4, requires_grad=True)
    optimizer = make([oracle])
    for t, (block,) in enumerate(drawn_rounds(seed, 50, 4)):
        u = block.values * (1.0 if t < 25 else 1e-4)
        state = method.tell(state, [type(block)(block.clients, u, block.weights)])
        oracle.grad = (block.weights[:, None] * u).sum(dim=0) / block.weights.sum()
        optimizer.step()
        apart = float(torch.linalg.vector_norm(state.params - oracle.detach()))
        assert apart <= 1e-12 * max(1.0, float(torch.linalg.vector_norm(oracle.detach())))


@settings(quick, max_examples=25)
@given(st.integers(0, 999), st.floats(0.01, 1.5), st.floats(0.01, 0.99))
def test_nesterov_is_torchs_sgd(seed: int, step_size: float, momentum: float):
    """Without a momentum torch refuses nesterov=True: there it is Retrain, see below."""
    method = Nesterov(step_size, momentum)
    check_oracle(method, lambda p: torch.optim.SGD(p, lr=step_size, momentum=momentum, nesterov=True), seed)


@settings(quick, max_examples=25)
@given(st.integers(0, 999), st.floats(0.001, 0.1), decays, decays, st.floats(1e-6, 0.1))
def test_fedadam_is_torchs_adam(seed: int, lr: float, b1: float, b2: float, tau: float):
    check_oracle(
        FedAdam(lr, b1, b2, tau), lambda p: torch.optim.Adam(p, lr=lr, betas=(b1, b2), eps=tau), seed
    )


@settings(quick, max_examples=25)
@given(st.integers(0, 999), st.floats(0.001, 0.1), decays, decays, st.floats(1e-6, 0.1))
def test_fednadam_is_torchs_nadam_with_constant_momentum(
    seed: int, lr: float, b1: float, b2: float, tau: float
):
    """torch's momentum of step t is b1 (1 - 0.96^(t momentum_decay) / 2), which is b1 if the decay is large."""
    betas = (b1, b2)
    method = FedNadam(lr, b1, b2, tau)
    check_oracle(
        method, lambda p: torch.optim.NAdam(p, lr=lr, betas=betas, eps=tau, momentum_decay=1e6), seed
    )


def test_a_nadam_without_decay_is_another_rule():
    """With momentum_decay=0 torch halves b1: the test above can fail."""
    with pytest.raises(AssertionError):
        check_oracle(FedNadam(), lambda p: torch.optim.NAdam(p, 0.01, (0.9, 0.99), 1e-3, momentum_decay=0), 1)


def test_nesterov_on_paper():
    """α = 1/2, β = 1/2, constant update 2 from w = 8.

    v = 2: step (2 + 1) / 2 = 1.5; v = 3: step (2 + 1.5) / 2 = 1.75; v = 3.5: step (2 + 1.75) / 2 = 1.875.
    """
    assert follow(Nesterov(0.5, 0.5), [2, 2, 2], 8.0) == [6.5, 4.75, 2.875]


def test_fedyogi_on_paper():
    """η = 1, β₁ = 1/2, β₂ = 3/4, τ = 1; updates 2, 2, 1, 0 from w = 0, with m[0] = 0 and q[0] = τ² = 1.

    1. m = 1. q = 1 < g² = 4, so q = 1 + 4/4 = 2; w = -1 / (√2 + 1).
    2. m = 1.5. 2 < 4, so q = 3; w falls by 1.5 / (√3 + 1).
    3. m = 1.25. 3 > 1, so q = 3 - 1/4 = 2.75; w falls by 1.25 / (√2.75 + 1). Adam's q would be 3/4 · 3 + 1/4 = 2.5.
    4. m = 0.625. g = 0 leaves q as it is; w falls by 0.625 / (√2.75 + 1).
    """
    steps = [1 / (2**0.5 + 1), 1.5 / (3**0.5 + 1), 1.25 / (2.75**0.5 + 1), 0.625 / (2.75**0.5 + 1)]
    method = FedYogi(lr=1.0, b1=0.5, b2=0.75, tau=1.0)
    state = method.init(torch.zeros(1))
    assert (state.mean.item(), state.square.item(), state.steps) == (0.0, 1.0, 0)
    expected, squares = 0.0, []
    for update, step in zip([2.0, 2.0, 1.0, 0.0], steps, strict=True):
        state = method.tell(state, [block_of({"a": [update]})])
        squares.append(state.square.item())
        expected -= step
        assert state.params.item() == pytest.approx(expected, rel=1e-14)
    assert squares == [2.0, 3.0, 2.75, 2.75]
    assert state.steps == 4


@pytest.mark.parametrize(
    ("update", "first"),
    [
        (1e6, (1 - 0.9) / (1 - 0.99) ** 0.5),  # g ≫ τ: η (1 - β₁) g / √((1 - β₂) g²), which is η
        (1e-9, 0.1 * 1e-9 / 2e-3),  # g ≪ τ: η (1 - β₁) g / (√τ² + τ)
    ],
)
def test_the_first_step_of_fedyogi_at_both_ends(update: float, first: float):
    (found,) = follow(FedYogi(), [update])
    assert found == pytest.approx(-0.01 * first, rel=1e-6)


@pytest.mark.parametrize("kind", [FedAdam, FedNadam])
def test_the_first_step_of_adam_and_nadam_at_both_ends(kind: type[FedAdam | FedNadam]):
    """Corrected, the first averages are g and g²: the step is η g / (|g| + τ). Nadam's looks ahead: times 1 + β₁ / (1 + β₁)."""
    # m̂ = β₁ (1 - β₁) g / (1 - β₁²) + g = (β₁ / (1 + β₁) + 1) g
    ahead = 1 + 0.9 / 1.9 if kind is FedNadam else 1.0
    for update in (1e6, 1e-9):
        (found,) = follow(kind(), [update])
        assert found == pytest.approx(-0.01 * ahead * update / (update + 1e-3), rel=1e-12)


def test_yogis_square_shrinks_slowly_where_adams_forgets():
    """A large update, then small ones: Adam's q falls by β₂ a round, Yogi's by (1 - β₂) g² at most."""
    squares = {}
    for method in (FedAdam(), FedYogi()):
        state = method.init(torch.zeros(1))
        for update in [1.0, *[1e-3] * 200]:
            state = method.tell(state, [block_of({"a": [update]})])
        squares[method.name] = state.square.item()
    assert squares["fedadam"] == pytest.approx(0.01 * 0.99**200, rel=1e-3)
    assert squares["fedyogi"] == pytest.approx(1e-6 + 0.01 - 200 * 0.01 * 1e-6, rel=1e-12)


@settings(quick, max_examples=25)
@given(st.lists(st.floats(-1e6, 1e6), max_size=30), decays, st.floats(1e-6, 1.0))
def test_yogis_square_is_never_negative(updates: list[float], b2: float, tau: float):
    method = FedYogi(b2=b2, tau=tau)
    state = method.init(torch.zeros(1))
    for update in updates:
        state = method.tell(state, [block_of({"a": [update]})])
        assert state.square.item() >= 0
        assert math.isfinite(state.params.item())


@settings(quick, max_examples=15)
@given(st.integers(0, 999), st.floats(0.01, 1.0), st.sampled_from([torch.float32, torch.float64]))
def test_nesterov_without_momentum_is_retrain_bit_for_bit(seed: int, step_size: float, dtype: torch.dtype):
    start = torch.randn(3, generator=torch.Generator().manual_seed(seed)).to(dtype)
    one, other = Nesterov(step_size, momentum=0.0, epochs=2), Retrain(step_size, epochs=2)
    ours = run(one, quadratics(), REMAINING, one.init(start), rounds=20)
    theirs = run(other, quadratics(), REMAINING, other.init(start), rounds=20)
    assert all(torch.equal(a.params, b.params) for (a, _), (b, _) in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", [FedAdam, FedNadam])
def test_without_memory_every_step_is_its_update_over_its_size(kind: type[FedAdam | FedNadam]):
    """b1 = b2 = 0: η g / (|g| + τ), whatever came before."""
    updates = [3.0, -0.002, 0.0, 5e-4]
    found = follow(kind(lr=0.1, b1=0, b2=0, tau=1e-3), updates)
    steps = [0.1 * u / (abs(u) + 1e-3) for u in updates]
    assert found == pytest.approx([-sum(steps[: t + 1]) for t in range(4)], rel=1e-13)


def test_a_large_tau_is_momentum():
    """τ ≫ √q: FedAdam's step is (η / τ) m̂, the mean of the updates by age."""
    found = follow(FedAdam(lr=1e9, b1=0.5, tau=1e9), [2.0, 4.0])
    assert found == pytest.approx([-2.0, -2.0 - (0.25 * 2 + 0.5 * 4) / 0.75], rel=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        Nesterov(0.5, 0.5, epochs=0),
        FedAdam(lr=1.0, tau=10.0, epochs=0),
        FedYogi(lr=1.0, tau=1.0, epochs=0),
        FedNadam(lr=1.0, tau=10.0, epochs=0),
        FedExP(
            eps=10.0, epochs=0
        ),  # a small ε would circle around the optimum: the clients' updates are not 0 there
    ],
)
def test_gradients_lead_to_the_optimum_of_those_who_remain(method: Method[Any]):
    engine = quadratics()
    *_, (state, _) = run(method, engine, REMAINING, method.init(torch.full((3,), 2.0)), rounds=1500)
    torch.testing.assert_close(state.params, engine.optimum(REMAINING), rtol=1e-10, atol=1e-10)
    assert float((state.params - engine.optimum(("a", *REMAINING))).norm()) > 1e-3


@pytest.mark.parametrize("make", [Nesterov, *MOMENTS, FedExP])
@pytest.mark.parametrize("epochs", [0, 3])
def test_a_leaver_at_99_leaves_no_trace(make: Callable[..., Method[Any]], epochs: int):
    method, results = make(epochs=epochs), []
    for case in ("at 99", "heavy", "never"):
        engine = quadratics(REMAINING if case == "never" else ("a", *REMAINING))
        if case != "never":
            engine.centre["a"] = torch.full((3,), 99.0 if case == "at 99" else -5.0)
            engine.examples["a"] = 1.0 if case == "at 99" else 1e6
        *_, (state, _) = run(method, engine, REMAINING, method.init(torch.zeros(3)), rounds=20)
        results.append(state.params)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


SHARE = "give at least 0 and below 1, such as"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Nesterov(momentum=1.0), f"momentum is 1.0; {SHARE} 0.9"),
        (lambda: Nesterov(step_size=0), "step_size is 0; give a positive number, such as 1.0"),
        *((lambda kind=kind: kind(lr=0.0), "lr is 0.0; give a positive number, such as 0.01") for kind in MOMENTS),
        *((lambda kind=kind: kind(b1=1), f"b1 is 1; {SHARE} 0.9") for kind in MOMENTS),
        *((lambda kind=kind: kind(b2=-0.1), f"b2 is -0.1; {SHARE} 0.99") for kind in MOMENTS),
        *((lambda kind=kind: kind(tau=0), "tau is 0; give a positive number, such as 0.001") for kind in MOMENTS),
        *((lambda kind=kind: kind(epochs=-1), "epochs is -1; give 0 or more") for kind in (*MOMENTS, Nesterov)),
        (lambda: FedAdam(lr="0.1"), "lr is '0.1'; give a positive number, such as 0.01"),  # pyright: ignore[reportArgumentType]
        (lambda: FedAdam(tau=math.inf), "tau is inf; give a positive number, such as 0.001"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(make: Callable[[], object], words: str):
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == words


def test_the_defaults_are_the_documented_ones():
    assert Nesterov() == Nesterov(1.0, 0.9, 5)
    for kind in MOMENTS:
        assert kind() == kind(lr=0.01, b1=0.9, b2=0.99, tau=1e-3, epochs=5)
    assert FedExP() == FedExP(eps=1e-3, epochs=5)
    assert all(kind().default_stop() == never for kind in (Nesterov, *MOMENTS, FedExP))
