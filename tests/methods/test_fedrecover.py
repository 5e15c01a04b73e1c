"""FedRecover: when it asks, what it estimates, and where it arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from feduhb.core.types import Updates, Work
from feduhb.errors import ConfigError
from feduhb.methods import FedRecover, Retrain
from feduhb.methods.fedrecover import Recovery
from feduhb.runs.loop import run
from methods.curvature import dense
from methods.recovering import CLIENTS, REMAINING, START, made
from runs.remembering import Remembered, remember
from toys import Quadratics, Scripted, block_of, quadratics, quick


def recorded(rounds: int = 8, **changes: float) -> tuple[Quadratics, Remembered]:
    engine = quadratics(**changes)  # pyright: ignore[reportArgumentType]
    return engine, remember(engine, CLIENTS, START, rounds=rounds)


def after(method: FedRecover, engine: Quadratics, rounds: int, start: Tensor = START) -> Recovery:
    *_, (state, _) = run(method, engine, REMAINING, method.init(start), rounds=rounds)
    return state


def answers(rows: dict[str, list[float]]) -> list[Updates]:
    return [block_of(rows)]


# --- the schedule ---


@quick
@given(
    rounds=st.integers(1, 30),
    warmup=st.integers(2, 10),
    correction=st.integers(0, 8),
    final=st.integers(0, 8),
)
def test_exact_rounds_are_the_listed_ones(rounds, warmup, correction, final):
    listed = set(range(min(warmup, rounds))) | set(range(max(rounds - final, 0), rounds))
    if correction:
        listed |= set(range(warmup + correction - 1, rounds, correction))
    history = Remembered(
        {t: torch.zeros(1, dtype=torch.float64) for t in range(rounds)},
        {t: [block_of({"a": [1.0]})] for t in range(rounds)},
    )
    method = FedRecover(
        warmup=warmup, correction=correction, final=final, buffer=1, history=history, clients=("a",), epochs=1
    )
    assert method.rounds == rounds
    start = method.init(torch.zeros(1, dtype=torch.float64))
    asked = [method.ask(start._replace(step=t)) for t in range(rounds)]
    assert {t for t, work in enumerate(asked) if work is not None and work.clients is None} == listed


def test_rounds_in_which_nobody_is_needed_ask_for_nothing():
    engine, history = recorded(10)
    method = made(history, warmup=3, correction=4, final=2)
    engine.asked.clear()
    records = [r for _, r in run(method, engine, REMAINING, method.init(START), rounds=10)]
    exact = [0, 1, 2, 6, 8, 9]
    assert [r.round for r in records if r.asked] == exact
    assert [t for t, _ in engine.asked] == exact
    for record in records:
        everyone = REMAINING if record.round in exact else ()
        assert (record.asked, record.answered) == (everyone, everyone)
        assert record.client_epochs == len(everyone)
        assert (record.bytes_up > 0) == (record.bytes_down > 0) == bool(everyone)
        assert record.moved > 0


def test_warm_up_over_all_rounds_is_retrain_bit_for_bit():
    engine, history = recorded(6)
    retrain = Retrain(epochs=1)
    plain = run(retrain, engine, REMAINING, retrain.init(START), rounds=6)
    method = made(history, warmup=6)
    found = run(method, engine, REMAINING, method.init(START), rounds=6)
    for (one, a), (other, b) in zip(plain, found, strict=True):
        assert torch.equal(one.params, other.params)
        assert (a.asked, a.answered, a.moved) == (b.asked, b.answered, b.moved)


# --- the pairs ---


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_pairs_are_matched_by_round_and_client(seed):
    """Some took part in some rounds only; blocks and order of the history are of no matter."""
    cast = [CLIENTS, ("a", "b", "e"), ("d", "c", "b"), ("e", "d"), ("c", "a")]
    engine = quadratics()
    history = remember(engine, lambda t: cast[t], START, rounds=5)
    method = made(history if seed is None else history.shuffled(seed), warmup=4, buffer=3)
    state, expected = method.init(START), {c: [] for c in REMAINING}
    for t in range(4):
        for client in REMAINING:
            if client in cast[t] and t > 0:
                now = engine.answer(client, Work(state.params, 1))
                expected[client].append((state.params - history.models[t], now - history.update(t, client)))
        state = method.tell(state, list(engine.train(Work(state.params, 1), REMAINING, t)))
    assert {c: len(p) for c, p in expected.items()} == {"a": 1, "c": 1, "d": 2}
    for row, client in enumerate(REMAINING):
        assert int(state.held[row]) == len(expected[client])
        for i, (s, y) in enumerate(expected[client]):
            torch.testing.assert_close(state.s[row, i], s, rtol=1e-13, atol=1e-14)
            torch.testing.assert_close(state.y[row, i], y, rtol=1e-13, atol=1e-14)
        assert not state.s[row, len(expected[client]) :].any()


def test_the_oldest_pair_drops_out():
    engine, history = recorded(8)
    method = made(history, warmup=6, buffer=2)
    states = [s for s, _ in run(method, engine, REMAINING, method.init(START), rounds=6)]
    assert [s.held.tolist() for s in states] == [[0] * 3, [1] * 3, [2] * 3, [2] * 3, [2] * 3, [2] * 3]
    for row in range(3):
        assert torch.equal(states[4].s[row, 0], states[3].s[row, 1])
        assert torch.equal(states[4].y[row, 0], states[3].y[row, 1])
        assert torch.equal(states[5].s[row, 1], states[4].params - history.models[5])


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ([1.0, 0.0], True),
        ([1e-6, 1.0], True),
        ([-1.0, 0.0], False),
        ([0.0, 1.0], False),
        ([0.0, 0.0], False),
        ([1e-13, 1.0], False),
        ([2e-12, 1.0], True),
    ],
)
def test_a_pair_without_curvature_is_skipped(row, kept):
    """s = (1, 0): y stands as far along it as its first entry says, at least 1e-12 of |s| |y|."""
    zero = torch.zeros(2, dtype=torch.float64)
    history = Remembered(dict.fromkeys(range(4), zero), {t: [block_of({"a": [0.0, 0.0]})] for t in range(4)})
    method = FedRecover(warmup=2, buffer=1, correction=0, final=0, epochs=1, history=history, clients=("a",))
    state = method.init(torch.tensor([1.0, 0.0], dtype=torch.float64))
    told = method.tell(state, answers({"a": row}))
    assert told.held.tolist() == [int(kept)]
    assert told.s[0, 0].tolist() == ([1.0, 0.0] if kept else [0.0, 0.0])
    assert told.y[0, 0].tolist() == (row if kept else [0.0, 0.0])
    same_place = method.tell(method.init(zero), answers({"a": [1.0, 1.0]}))
    assert same_place.held.tolist() == [0]


# --- the estimates ---


def estimate(state: Recovery, history: Remembered, t: int, client: str) -> Tensor:
    """u + B (ŵ - w) with the matrix itself."""
    row = REMAINING.index(client)
    held = int(state.held[row])
    b = dense(state.s[row, :held], state.y[row, :held])
    return history.update(t, client) + b @ (state.params - history.models[t])


@pytest.mark.parametrize("seed", range(4))
def test_an_estimated_round_is_the_formula(seed):
    engine, history = recorded(8)
    state = after(made(history), engine, 3)
    expected = torch.zeros(3, dtype=torch.float64)
    for client in REMAINING:
        expected += engine.examples[client] * estimate(state, history, 3, client)
    expected = state.params - expected / sum(engine.examples[c] for c in REMAINING)
    told = made(history.shuffled(seed)).tell(state, ())
    torch.testing.assert_close(told.params, expected, rtol=1e-10, atol=1e-12)
    assert told.step == 4
    assert torch.equal(told.s, state.s)


def test_in_one_dimension_estimates_are_exact_by_the_secant_equation():
    """f_c' is a line and one pair gives its slope, so the recovered run is Retrain, though hardly anybody was asked."""
    engine = quadratics(size=1)
    start = torch.tensor([1.0], dtype=torch.float64)
    history = remember(engine, CLIENTS, start, rounds=20)
    method, retrain = made(history, warmup=2, buffer=1), Retrain(epochs=1)
    plain = run(retrain, engine, REMAINING, retrain.init(start), rounds=20)
    found = list(run(method, engine, REMAINING, method.init(start), rounds=20))
    assert sum(len(r.asked) for _, r in found) == 6
    for (one, _), (other, _) in zip(plain, found, strict=True):
        torch.testing.assert_close(one.params, other.params, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("buffer", [1, 2, 3])
def test_with_corrections_it_converges_to_the_optimum_of_those_who_remain(buffer):
    engine, history = recorded(80, lr=0.6)
    method = made(history, warmup=4, correction=3, final=3, buffer=buffer)
    end = after(method, engine, 80).params
    torch.testing.assert_close(end, engine.optimum(REMAINING), rtol=1e-5, atol=1e-5)
    assert float((end - engine.optimum(CLIENTS)).norm()) > 0.1


def test_a_leaver_at_99_moves_the_stored_models_but_not_where_final_tuning_arrives():
    engine = quadratics(lr=0.6)
    engine.centre["b"] = torch.full((3,), 99.0, dtype=torch.float64)
    history = remember(engine, CLIENTS, START, rounds=60)
    assert float(history.models[59].norm()) > 5
    end = after(made(history, correction=5, final=40), engine, 60).params
    torch.testing.assert_close(end, engine.optimum(REMAINING), rtol=1e-6, atol=1e-6)


def test_a_round_of_leavers_only_leaves_the_model():
    engine = quadratics()
    cast = [CLIENTS, CLIENTS, CLIENTS, ("b", "e"), CLIENTS]
    history = remember(engine, lambda t: cast[t], START, rounds=5)
    states = list(run(made(history), engine, REMAINING, made(history).init(START), rounds=5))
    assert states[3][1].asked == ()
    assert torch.equal(states[3][0].params, states[2][0].params)
    assert states[4][1].moved > 0


# --- what is abnormal ---


@quick
@given(
    share=st.one_of(st.just(0.0), st.floats(1e-6, 0.9)),
    clients=st.integers(1, 6),
    size=st.integers(1, 30),
    block=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
@example(share=0.15, clients=6, size=30, block=6, seed=0)  # 0.15 * 6 * 30 is below 27, 0.15 * 180 is not
@example(share=0.9, clients=6, size=30, block=1, seed=0)
def test_the_limit_is_what_a_share_of_the_original_entries_exceeds(share, clients, size, block, seed):
    draw = torch.Generator().manual_seed(seed)
    names = [f"c{i}" for i in range(clients)]
    rounds = range(3)
    values = {t: torch.randn(clients + 1, size, generator=draw, dtype=torch.float64) for t in rounds}
    blocks = {
        t: [block_of({c: values[t][i].tolist() for i, c in enumerate(names)} | {"leaver": [1e9] * size})]
        for t in rounds
    }
    cut = {
        t: [Updates(b.clients[i : i + block], b.values[i : i + block], b.weights[i : i + block])
            for b in p for i in range(0, clients + 1, block)]
        for t, p in blocks.items()
    }  # fmt: skip
    history = Remembered({t: torch.zeros(size, dtype=torch.float64) for t in rounds}, cut)
    method = FedRecover(abnormal=share, history=history, clients=tuple(names))
    limit = float(method.init(torch.zeros(size, dtype=torch.float64)).limit)
    if share == 0:
        assert limit == np.inf
        return
    sizes = [np.abs(values[t][:clients].numpy()).ravel() for t in rounds]
    rank = clients * size - 1 - int(share * (clients * size))
    assert limit == max(np.partition(each, rank)[rank] for each in sizes)


def at_the_first_estimate(
    **changes: float,
) -> tuple[Quadratics, Remembered, FedRecover, Recovery, dict[str, float]]:
    """A state before its first estimated round, and the largest entry of each client's estimate."""
    engine, history = recorded(8)
    method = made(history, **changes)
    state = after(method, engine, 3)
    return (
        engine,
        history,
        method,
        state,
        {c: float(estimate(state, history, 3, c).abs().max()) for c in REMAINING},
    )


@pytest.mark.parametrize("asked", [0, 1, 2, 3])
def test_abnormal_estimates_ask_exactly_those_clients(asked):
    _, _, method, state, largest = at_the_first_estimate()
    ranked = sorted(largest, key=largest.__getitem__, reverse=True)
    bounds = [*(largest[c] for c in ranked), 0.0]
    below = bounds[asked]
    limit = (below + (bounds[asked - 1] if asked else 2 * below)) / 2
    work = method.ask(state._replace(limit=torch.tensor(limit, dtype=torch.float64)))
    if asked == 0:
        assert work is None
    else:
        assert work is not None
        assert set(work.clients or ()) == set(ranked[:asked])
        assert torch.equal(work.params, state.params)
        assert work.epochs == 1


def test_answers_stand_for_abnormal_estimates_and_leave_no_pair():
    engine, history, method, state, largest = at_the_first_estimate()
    strange = max(largest, key=largest.__getitem__)
    limit = torch.tensor(largest[strange] * (1 - 1e-6), dtype=torch.float64)
    work = method.ask(state._replace(limit=limit))
    assert work is not None
    told = method.tell(state._replace(limit=limit), engine.train(work, work.clients or (), 3))
    step = torch.zeros(3, dtype=torch.float64)
    for c in REMAINING:
        u = engine.answer(c, work) if c == strange else estimate(state, history, 3, c)
        step += engine.examples[c] * u
    expected = state.params - step / sum(engine.examples[c] for c in REMAINING)
    torch.testing.assert_close(told.params, expected, rtol=1e-10, atol=1e-12)
    assert torch.equal(told.held, state.held)


def test_an_abnormal_client_that_stays_silent_is_left_out():
    """Told by the loop, that is, which lets the round through without any answer."""
    engine, history, method, state, largest = at_the_first_estimate()
    strange = max(largest, key=largest.__getitem__)
    limit = torch.tensor(largest[strange] * (1 - 1e-6), dtype=torch.float64)
    silent = Scripted({3: []})
    told, record = next(iter(run(method, silent, REMAINING, state._replace(limit=limit), rounds=8, first=3)))
    assert silent.asked == [(3, (strange,))]
    assert (record.asked, record.answered) == ((strange,), ())
    others = [c for c in REMAINING if c != strange]
    step = torch.stack([engine.examples[c] * estimate(state, history, 3, c) for c in others]).sum(dim=0)
    expected = state.params - step / sum(engine.examples[c] for c in others)
    torch.testing.assert_close(told.params, expected, rtol=1e-10, atol=1e-12)


def test_one_without_pairs_is_asked_whatever_the_limit():
    _, _, method, state, _ = at_the_first_estimate()
    held = state.held.clone()
    held[1] = 0
    work = method.ask(state._replace(held=held))
    assert work is not None
    assert work.clients == (REMAINING[1],)


def test_one_whose_system_is_singular_is_asked():
    _, _, method, state, _ = at_the_first_estimate()
    s = state.s.clone()
    s[2, 0] = 0
    work = method.ask(state._replace(s=s))
    assert work is not None
    assert work.clients == (REMAINING[2],)


def test_an_estimate_beyond_its_precision_is_asked_even_without_a_limit():
    """1e45 is infinite in float32, and infinity is not above a limit of infinity."""
    history = Remembered(
        {t: torch.zeros(1) for t in range(4)}, {t: [block_of({"a": [0.0]})] for t in range(4)}
    )
    history = history.to(torch.float32)
    method = FedRecover(
        warmup=2, buffer=1, correction=0, final=0, abnormal=0.0, epochs=1, history=history, clients=("a",)
    )
    state = method.init(torch.ones(1))
    steep = state._replace(
        step=2, s=torch.full((1, 1, 1), 1e-15), y=torch.full((1, 1, 1), 1e30), held=torch.tensor([1])
    )
    work = method.ask(steep)
    assert work is not None
    assert work.clients == ("a",)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"buffer": 0}, "buffer is 0; give 1 or more"),
        ({"warmup": 2}, "warmup is 2; give more than the buffer, 2"),
        ({"correction": -1}, "correction is -1; give 0 or more"),
        ({"final": -1}, "final is -1; give 0 or more"),
        ({"abnormal": 1.0}, "abnormal is 1.0; give at least 0"),
        ({"abnormal": -0.1}, "abnormal is -0.1"),
        ({"abnormal": float("nan")}, "abnormal is nan"),
        ({"epochs": -1}, "epochs is -1"),
    ],
)
def test_settings_that_cannot_be(wrong, said):
    with pytest.raises(ConfigError, match=said):
        FedRecover(**wrong)
