"""FedEraser: the stored lengths, the new directions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feduhb.core.types import Work
from feduhb.errors import ConfigError
from feduhb.methods import FedEraser
from feduhb.methods.replay import calibrate
from feduhb.runs.loop import run
from runs.remembering import Remembered, remember
from toys import Quadratics, Scripted, block_of, quadratics, quick

CLIENTS = ("a", "b", "c", "d", "e")
REMAINING = ("a", "c", "d")
START = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def history_of(rounds: int = 5, epochs: int = 3) -> Remembered:
    return remember(quadratics(), CLIENTS, START, rounds=rounds, epochs=epochs)


def lines(centres: dict[str, float], examples: dict[str, float], lr: float) -> Quadratics:
    """f_c(w) = 1/2 (w - m_c)² in one dimension; an epoch is a step of lr, so v_c = lr (w - m_c)."""
    one = torch.ones(1, 1, dtype=torch.float64)
    centre = {c: torch.tensor([m], dtype=torch.float64) for c, m in centres.items()}
    return Quadratics(dict.fromkeys(centres, one), centre, examples, lr)


def test_golden_case_of_three_lines():
    """Three 1-D quadratics, centres a 4, b -2, x 10, examples 1, 2, 1, lr 1/2, one epoch, w[0] = 0; x leaves.

    Training. u_c = (w - m_c) / 2 and w moves by the weighted mean, N = 4:
        t=0  w=0      u_a = -2      u_b = 1        u_x = -5      mean = (-2 + 2 - 5)/4 = -5/4       w[1] = 5/4
        t=1  w=5/4    u_a = -11/8   u_b = 13/8     u_x = -35/8   mean = (-11 + 26 - 35)/32 = -5/8   w[2] = 15/8
        t=2  w=15/8   u_a = -17/16  u_b = 31/16    u_x = ...
    Erasing with interval 1 and ratio 1, N = 3. In one dimension ‖u‖ v/‖v‖ is |u| sign(v):
        t=0  stored as they are: (-2 + 2*1)/3 = 0                                  w = 0
        t=1  v_a = (0-4)/2 < 0, v_b = (0+2)/2 > 0:  (-11/8 + 2*13/8)/3 = 5/8       w = -5/8
        t=2  v_a < 0, v_b = (-5/8+2)/2 > 0:  (-17/16 + 2*31/16)/3 = 45/48 = 15/16  w = -5/8 - 15/16 = -25/16
    """
    engine = lines({"a": 4, "b": -2, "x": 10}, {"a": 1.0, "b": 2.0, "x": 1.0}, lr=0.5)
    history = remember(engine, "abx", torch.zeros(1, dtype=torch.float64), rounds=3)
    assert [float(history.models[t]) for t in range(3)] == [0, 5 / 4, 15 / 8]
    method = FedEraser(interval=1, ratio=1.0, epochs=1, history=history, clients=("a", "b"))
    states = run(method, engine, ("a", "b"), method.init(torch.zeros(1, dtype=torch.float64)), rounds=3)
    found = [float(state.params) for state, _ in states]
    assert found == pytest.approx([0, -5 / 8, -25 / 16], rel=1e-14, abs=1e-15)


@quick
@given(
    rows=st.lists(
        st.lists(st.floats(-1e3, 1e3).filter(lambda x: abs(x) > 1e-3), min_size=3, max_size=3),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 100),
)
def test_each_answer_gets_the_stored_length_and_keeps_its_direction(rows, seed):
    """One client at a time, whose step is then the whole mean."""
    history = history_of().shuffled(seed)
    for client, row in zip(CLIENTS, rows, strict=False):
        method = FedEraser(interval=1, epochs=3, history=history, clients=(client,))
        state = method.init(START)._replace(step=2)
        step = START - method.tell(state, [block_of({client: row}, [7.0])]).params
        v, u = torch.tensor(row, dtype=torch.float64), history.update(2, client)
        torch.testing.assert_close(step, v * (u.norm() / v.norm()), rtol=1e-12, atol=1e-14)
        (calibrated,) = calibrate(history, 2, [block_of({client: row})], "federaser")
        assert float(calibrated.values.norm()) == pytest.approx(float(u.norm()), rel=1e-12)
        cosine = float(calibrated.values[0] @ v / (calibrated.values[0].norm() * v.norm()))
        assert cosine == pytest.approx(1, abs=1e-12)


def test_several_answers_are_each_calibrated_and_averaged_by_their_weights():
    history = history_of()
    method = FedEraser(interval=1, epochs=3, history=history, clients=REMAINING)
    rows = {"a": [1.0, 2.0, 2.0], "c": [0.0, -3.0, 0.0], "d": [1e-9, 0.0, 0.0]}
    weights = [2.0, 3.0, 5.0]
    told = method.tell(method.init(START)._replace(step=1), [block_of(rows, weights)])
    expected = START.clone()
    for (client, row), n in zip(rows.items(), weights, strict=True):
        v = torch.tensor(row, dtype=torch.float64)
        expected -= n / 10 * history.update(1, client).norm() * v / v.norm()
    torch.testing.assert_close(told.params, expected, rtol=1e-13, atol=1e-14)
    assert told.step == 2


def test_the_first_kept_round_applies_stored_updates_and_asks_nobody():
    history = history_of()
    method = FedEraser(interval=2, epochs=3, history=history, clients=REMAINING)
    state = method.init(START)
    assert method.ask(state) is None
    told = method.tell(state, ())
    n = quadratics().examples
    mean = torch.stack([n[c] * history.update(0, c) for c in REMAINING]).sum(dim=0)
    torch.testing.assert_close(told.params, START - mean / sum(n[c] for c in REMAINING))
    engine = quadratics()
    records = [r for _, r in run(method, engine, REMAINING, state, rounds=3)]
    assert records[0].asked == records[0].answered == ()
    assert (records[0].client_epochs, records[0].bytes_up, records[0].bytes_down) == (0, 0, 0)
    assert [r.asked for r in records[1:]] == [REMAINING, REMAINING]
    assert [t for t, _ in engine.asked] == [1, 2]


@pytest.mark.parametrize(
    ("ratio", "epochs", "asked"),
    [
        (0.5, 5, 3),
        (0.5, 4, 2),
        (0.5, 1, 1),
        (1.0, 5, 5),
        (0.1, 5, 1),
        (0.2, 5, 1),
        (0.21, 5, 2),
        (0.6, 5, 3),
        (0.28, 25, 7),
    ],
)
def test_a_share_of_the_epochs_rounded_up(ratio, epochs, asked):
    method = FedEraser(ratio=ratio, epochs=epochs, history=history_of(), clients=REMAINING)
    work = method.ask(method.init(START)._replace(step=1))
    assert work is not None
    assert work.epochs == asked == math.ceil(ratio * epochs - 1e-9)
    assert work.clients == REMAINING
    assert torch.equal(work.params, START)


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 6, 9])
def test_every_so_many_rounds_are_kept(interval):
    method = FedEraser(interval=interval, epochs=3, history=history_of(6), clients=REMAINING)
    kept = list(range(0, 6, interval))
    assert method.kept == kept
    assert method.rounds == len(kept)
    history = method.history
    assert isinstance(history, Remembered)
    for t, _ in enumerate(run(method, quadratics(), REMAINING, method.init(START), rounds=len(kept))):
        assert set(history.read_rounds) == set(kept[: t + 1])


def test_without_a_history_it_has_no_rounds():
    assert FedEraser().rounds == 0
    assert FedEraser().kept == []


def test_an_answer_of_zero_stays_zero():
    """It has no direction: nothing is divided by nothing, and its weight still counts."""
    history = history_of()
    method = FedEraser(epochs=3, history=history, clients=REMAINING)
    told = method.tell(
        method.init(START)._replace(step=1), [block_of({"a": [0, 0, 0], "c": [0, 2, 0]}, [1.0, 3.0])]
    )
    step = 3 / 4 * history.update(2, "c").norm() * torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(told.params, START - step)


def test_a_stored_update_of_zero_moves_nothing():
    history = Remembered(
        {t: torch.zeros(1, dtype=torch.float64) for t in range(2)},
        {t: [block_of({"a": [0.0], "b": [2.0]})] for t in range(2)},
    )
    method = FedEraser(interval=1, epochs=1, history=history, clients=("a", "b"))
    told = method.tell(method.init(torch.zeros(1)), ())
    assert told.params.tolist() == [-1.0]
    told = method.tell(told, [block_of({"a": [5.0], "b": [-5.0]})])
    assert told.params.tolist() == [0.0]


CAST = [("a", "b", "c"), ("c", "e", "b"), ("d", "a"), ("b", "e"), ("e", "d", "c", "a")]


def scattered() -> tuple[Quadratics, Remembered]:
    """Clients that took part in some rounds and not in others; in round 3 only leavers did."""
    engine = quadratics()
    return engine, remember(engine, lambda t: CAST[t], START, rounds=5)


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_aligned_by_id_whatever_blocks_and_orders(seed):
    engine, history = scattered()
    expected = START
    for t, cast in enumerate(CAST):
        there = [c for c in REMAINING if c in cast]
        if not there:
            continue
        total, step = sum(engine.examples[c] for c in there), torch.zeros(3, dtype=torch.float64)
        for c in there:
            u, v = history.update(t, c), engine.answer(c, Work(expected, 1))
            step += engine.examples[c] / total * (u if t == 0 else u.norm() * v / v.norm())
        expected = expected - step
    method = FedEraser(interval=1, epochs=1, history=history.shuffled(seed), clients=REMAINING)
    engine = quadratics(block=1 + seed % 3)
    states = list(run(method, engine, REMAINING[::-1], method.init(START), rounds=5))
    torch.testing.assert_close(states[-1][0].params, expected, rtol=1e-12, atol=1e-13)


def test_only_those_who_were_there_are_asked():
    engine, history = scattered()
    method = FedEraser(interval=1, epochs=1, history=history, clients=REMAINING)
    states = list(run(method, engine, REMAINING, method.init(START), rounds=5))
    assert [record.asked for _, record in states] == [(), ("c",), ("a", "d"), (), ("a", "c", "d")]
    assert torch.equal(states[3][0].params, states[2][0].params)
    assert states[3][1].moved == 0


def test_a_first_kept_round_of_leavers_only_leaves_the_start():
    history = remember(quadratics(), lambda t: [("b", "e"), CLIENTS][t], START, rounds=2)
    method = FedEraser(interval=1, epochs=1, history=history, clients=REMAINING)
    told = method.tell(method.init(START), ())
    assert torch.equal(told.params, START)
    work = method.ask(told)
    assert work is not None
    assert work.clients == REMAINING


def test_who_stays_silent_is_left_out_and_the_weights_are_the_others():
    engine, history = quadratics(), history_of()
    method = FedEraser(interval=1, epochs=3, history=history, clients=REMAINING)
    state = method.init(START)._replace(step=1)
    work = method.ask(state)
    assert work is not None
    answers = list(engine.train(work, ("a", "d"), 1))
    without = FedEraser(interval=1, epochs=3, history=history, clients=("a", "d"))
    assert torch.equal(method.tell(state, answers).params, without.tell(state, answers).params)
    silent = Scripted({1: answers})
    _, (final, record) = list(run(method, silent, REMAINING, method.init(START), rounds=2))
    assert record.asked == REMAINING
    assert record.answered == ("a", "d")
    assert final.step == 2


def test_a_leaver_far_away_shows_in_the_stored_lengths_only():
    """Put at 99 it stretched the others' stored updates; the directions are today's."""
    engine = lines({"a": 1, "b": 2, "x": 99}, {"a": 1.0, "b": 1.0, "x": 1.0}, lr=0.5)
    history = remember(engine, "abx", torch.zeros(1, dtype=torch.float64), rounds=4)
    method = FedEraser(interval=1, epochs=1, history=history, clients=("a", "b"))
    states = list(run(method, engine, ("a", "b"), method.init(torch.zeros(1, dtype=torch.float64)), rounds=4))
    assert float(history.models[3]) > 20
    for (before, _), (after, record) in itertools.pairwise(states):
        lengths = [float(history.update(record.round, c)) for c in "ab"]
        assert abs(record.moved) <= sum(lengths) / 2 + 1e-12
        assert float(after.params - before.params) * float(before.params - 1.5) <= 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"interval": 0}, "interval is 0; give 1 or more"),
        ({"ratio": 0.0}, "ratio is 0.0; give a share above 0"),
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"ratio": math.nan}, "ratio is nan"),
        ({"epochs": 0}, "epochs is 0; FedEraser calibrates by local training"),
    ],
)
def test_settings_that_cannot_be(wrong, said):
    with pytest.raises(ConfigError, match=said):
        FedEraser(**wrong)
