"""A sweep over the stop rule is replayed from one recorded run: same round, same model, no retraining."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from feduhb.methods import FedUHB
from feduhb.runs.folder import Round
from feduhb.runs.loop import run
from feduhb.stopping import DynamicStop, dynamic_stop, never, replay
from toys import quadratics

METHOD = FedUHB(step_size=0.3, momentum=0.6, epochs=0)
CLIENTS = ("b", "c", "d", "e")
ROUNDS = 40


def live(rule) -> list[tuple[torch.Tensor, torch.Tensor, Round]]:
    start = METHOD.init(torch.full((3,), 5.0, dtype=torch.float64))
    rounds = run(METHOD, quadratics(), CLIENTS, start, rounds=ROUNDS, stop=rule)
    return [(state.params, state.previous, record) for state, record in rounds]


@cache
def recorded() -> list[tuple[torch.Tensor, torch.Tensor, Round]]:
    """Return a run without a stop rule, made once."""
    return live(never)


RULES = [
    *(
        pytest.param(dynamic_stop(scale, momentum=0.6), id=f"lambda {scale}")
        for scale in (0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
    ),
    pytest.param(dynamic_stop(0.6, window=3), id="window 3"),
    pytest.param(dynamic_stop(1.5, window=5), id="window 5"),
    pytest.param(dynamic_stop(0.0, floor=0.01, momentum=0.6), id="floor"),
    pytest.param(dynamic_stop(0.4, momentum=0.6, as_printed=True), id="as printed"),
    pytest.param(dynamic_stop(0.0), id="lambda 0 never speaks"),
    pytest.param(never, id="never"),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_replay_ends_where_a_live_run_ends(rule: DynamicStop):
    moved = [record.moved for _, _, record in recorded()]
    rounds = live(rule)
    fired = replay(rule, moved)
    assert len(rounds) == (fired or ROUNDS)
    params, _, record = rounds[-1]
    assert torch.equal(params, recorded()[len(rounds) - 1][0])
    assert record.moved == moved[len(rounds) - 1]
    assert record.stopped == rule(moved[: len(rounds)])
    assert [r.threshold for _, _, r in rounds] == [rule.threshold(moved[: n + 1]) for n in range(len(rounds))]


def test_the_sweep_shows_something():
    """A larger lambda never stops later, and on this toy the paper's range of them spreads out."""
    moved = [record.moved for _, _, record in recorded()]
    ends = [
        replay(dynamic_stop(scale, momentum=0.6), moved) or ROUNDS for scale in (0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
    ]
    assert ends == sorted(ends, reverse=True)
    assert len(set(ends)) > 2
    assert max(ends) < ROUNDS


def test_the_model_the_paper_would_return_is_the_previous_one():
    """As printed the rule judges the movement into w[t] with w[t+1] made, and returns w[t], ``previous``."""
    rounds = live(dynamic_stop(0.4, as_printed=True))
    _, previous, record = rounds[-1]
    assert record.stopped is not None
    assert record.stopped.movement == rounds[-2][2].moved
    assert torch.equal(previous, rounds[-2][0])


@pytest.mark.parametrize("stop_after", [1, 2, 3, 5])
def test_a_resumed_run_stops_where_the_other_would_have(stop_after: int):
    """The rule sees recorded movements only, so an interruption changes nothing."""
    rule = dynamic_stop(0.4, momentum=0.6)
    straight = live(rule)
    assert len(straight) > 5
    start = METHOD.init(torch.full((3,), 5.0, dtype=torch.float64))
    half = list(run(METHOD, quadratics(), CLIENTS, start, rounds=stop_after, stop=rule))
    moved = [record.moved for _, record in half]
    rest = list(
        run(
            METHOD,
            quadratics(),
            CLIENTS,
            half[-1][0],
            rounds=ROUNDS,
            stop=rule,
            first=stop_after,
            moved=moved,
        )
    )
    assert rest[-1][1].round == straight[-1][2].round
    assert rest[-1][1].stopped == straight[-1][2].stopped
    assert torch.equal(rest[-1][0].params, straight[-1][0])
