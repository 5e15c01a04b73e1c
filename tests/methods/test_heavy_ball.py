"""Heavy ball against independent oracles: torch's SGD, the closed form, Retrain, and a leaver at 99."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feduhb.core.types import Updates
from feduhb.methods import FedUHB, Retrain
from feduhb.runs.loop import run
from toys import Scripted, block_of, quadratics, quick

REMAINING = ("b", "c", "d", "e")


def drawn_rounds(seed: int, rounds: int, size: int) -> list[list[Updates]]:
    draw = torch.Generator().manual_seed(seed)
    return [
        [
            Updates(
                ("a", "b", "c"),
                torch.randn(3, size, generator=draw, dtype=torch.float64),
                torch.randint(1, 99, (3,), generator=draw).double(),
            )
        ]
        for _ in range(rounds)
    ]


@settings(quick, max_examples=25)
@given(st.integers(0, 999), st.floats(0.01, 1.5), st.floats(0, 0.99))
def test_it_is_torchs_sgd_with_momentum(seed: int, step_size: float, momentum: float):
    """SGD has v[t+1] = β v[t] + g, w[t+1] = w[t] - α v[t+1]; so w[t+1] - w[t] = β (w[t] - w[t-1]) - α g."""
    rounds = drawn_rounds(seed, 50, 4)
    method = FedUHB(step_size, momentum, epochs=0)
    state = method.init(torch.ones(4, dtype=torch.float64))
    oracle = torch.ones(4, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([oracle], lr=step_size, momentum=momentum)
    for answers in rounds:
        state = method.tell(state, answers)
        n, u = answers[0].weights, answers[0].values
        oracle.grad = (n[:, None] * u).sum(dim=0) / n.sum()
        sgd.step()
        apart = torch.linalg.vector_norm(state.params - oracle.detach())
        assert float(apart) <= 1e-12 * max(1.0, float(torch.linalg.vector_norm(oracle.detach())))


def test_three_steps_on_paper():
    """α = 1/2, β = 1/2, constant update 2 from w = 8: 8 - 1 = 7; 7 - 1 - 1/2 = 5.5; 5.5 - 1 - 3/4 = 3.75."""
    method = FedUHB(step_size=0.5, momentum=0.5)
    state = method.init(torch.tensor([8.0], dtype=torch.float64))
    seen = []
    for _ in range(3):
        state = method.tell(state, [block_of({"a": [2.0]})])
        seen.append((state.params.item(), state.previous.item()))
    assert seen == [(7.0, 8.0), (5.5, 7.0), (3.75, 5.5)]


def test_a_steady_direction_multiplies_the_step_by_one_over_one_minus_beta():
    """The speed v = β v + α g settles at α g / (1 - β): tenfold at 0.9, as the docstring warns."""
    engine = Scripted({t: [block_of({"a": [1.0]})] for t in range(400)})
    method = FedUHB(step_size=0.01, momentum=0.9)
    rounds = list(run(method, engine, ["a"], method.init(torch.zeros(1, dtype=torch.float64)), rounds=400))
    assert rounds[-1][1].moved == pytest.approx(0.1, rel=1e-12)


@settings(quick, max_examples=15)
@given(st.integers(0, 999), st.floats(0.01, 1.0), st.sampled_from([torch.float32, torch.float64]))
def test_without_momentum_it_is_retrain_bit_for_bit(seed: int, step_size: float, dtype: torch.dtype):
    start = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    ball, plain = FedUHB(step_size, momentum=0.0, epochs=2), Retrain(step_size, epochs=2)
    ours = run(ball, quadratics(), REMAINING, ball.init(start), rounds=30)
    theirs = run(plain, quadratics(), REMAINING, plain.init(start), rounds=30)
    for (heavy, one), (avg, other) in zip(ours, theirs, strict=True):
        assert torch.equal(heavy.params, avg.params)
        assert one.moved == other.moved


def test_retrain_is_fedavg():
    """With α = 1 the new model is the weighted mean of the clients' models: Σ (n_c / N) (w - u_c)."""
    engine = quadratics()
    method = Retrain(epochs=3)
    start = torch.zeros(3, dtype=torch.float64)
    state, _ = next(iter(run(method, engine, REMAINING, method.init(start), rounds=1)))
    total = sum(engine.examples[c] for c in REMAINING)
    expected = torch.zeros(3, dtype=torch.float64)
    for c in REMAINING:
        w = start
        for _ in range(3):
            w = w - engine.lr * engine.gradient(c, w)
        expected += engine.examples[c] / total * w
    torch.testing.assert_close(state.params, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    "method", [FedUHB(0.5, 0.5, epochs=0), FedUHB(0.3, 0.9, epochs=0), Retrain(0.5, epochs=0)]
)
def test_gradients_lead_to_the_optimum_of_those_who_remain(method):
    """With gradients the fixed point solves Σ n_c A_c (w - m_c) = 0 over the remaining clients."""
    engine = quadratics()
    *_, (state, _) = run(
        method, engine, REMAINING, method.init(torch.full((3,), 5.0, dtype=torch.float64)), rounds=700
    )
    torch.testing.assert_close(state.params, engine.optimum(REMAINING), rtol=1e-12, atol=1e-12)
    everyone = engine.optimum(("a", *REMAINING))
    assert float((state.params - everyone).norm()) > 1e-3, (
        "the leaver's optimum is another place, so the test can fail"
    )


@pytest.mark.parametrize("epochs", [0, 3])
@pytest.mark.parametrize(
    "make", [lambda epochs: FedUHB(0.4, 0.8, epochs), lambda epochs: Retrain(0.4, epochs)]
)
def test_a_leaver_at_99_leaves_no_trace(make, epochs: int):
    """The same bits whether client a sits at 99, at -5 with a million examples, or never existed."""
    method = make(epochs)
    results = []
    for case in ("at 99", "heavy", "never"):
        engine = quadratics(REMAINING if case == "never" else ("a", *REMAINING))
        if case != "never":
            engine.centre["a"] = torch.full((3,), 99.0 if case == "at 99" else -5.0, dtype=torch.float64)
            engine.examples["a"] = 1.0 if case == "at 99" else 1e6
        results.append(
            list(run(method, engine, REMAINING, method.init(torch.zeros(3, dtype=torch.float64)), rounds=25))
        )
    for (one, _), (two, _), (three, _) in zip(*results, strict=True):
        assert torch.equal(one.params, two.params)
        assert torch.equal(one.params, three.params)


def test_the_leaver_would_leave_a_trace_if_it_stayed():
    engine = quadratics()
    engine.centre["a"] = torch.full((3,), 99.0, dtype=torch.float64)
    method = FedUHB(0.4, 0.8, epochs=0)
    *_, (state, _) = run(
        method, engine, ("a", *REMAINING), method.init(torch.zeros(3, dtype=torch.float64)), rounds=25
    )
    assert float(state.params.norm()) > 5
