"""Bad answers never reach the model: named and refused, or left out as if they had never come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.types import Method, Updates, Work
from feduhb.errors import AnswerError, DivergedError
from feduhb.methods import FedUHB, Retrain
from feduhb.methods.retrain import Plain
from feduhb.runs.loop import OnBad, run
from toys import Scripted, block_of, summed

START = torch.zeros(2, dtype=torch.float64)
GOOD = {"a": [1.0, 2.0], "c": [3.0, 6.0], "d": [5.0, 1.0]}
ADVICE = "that round was discarded. Look at that client's data, or lower lr, step_size or momentum"


@dataclass(frozen=True)
class Watched(Method[Plain]):
    """FedAvg that notes when tell is called and when it comes to an end."""

    calls: list[str] = field(default_factory=list)
    name: ClassVar[str] = "watched"
    exact: ClassVar[bool] = True

    def init(self, params: Tensor) -> Plain:
        return Plain(params)

    def ask(self, state: Plain) -> Work:
        return Work(state.params, 1)

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        self.calls.append("told")
        new = Plain(state.params - weighted_mean(answers))
        self.calls.append("done")
        return new


def rows(values: dict[str, list[float]], weights: list[float] | None = None, block: int = 2) -> list[Updates]:
    """Return blocks of two rows, so that the bad row has a good neighbour."""
    whole = block_of(values, weights)
    return [
        Updates(whole.clients[i : i + block], whole.values[i : i + block], whole.weights[i : i + block])
        for i in range(0, len(whole.clients), block)
    ]


def with_b(row: list[float]) -> dict[str, list[float]]:
    return {"a": GOOD["a"], "b": row, "c": GOOD["c"], "d": GOOD["d"]}


BAD = [
    pytest.param(rows(with_b([math.nan, 1.0])), "NaN", id="NaN"),
    pytest.param(rows(with_b([1.0, -math.inf])), "infinity", id="infinity"),
    pytest.param(rows(with_b([math.inf, math.nan])), "NaN", id="both"),
    pytest.param(rows(with_b([1.0, 1.0]), [1, 0, 1, 1]), "a weight of 0 examples", id="no examples"),
    pytest.param(rows(with_b([1.0, 1.0]), [1, -3, 1, 1]), "a weight of -3 examples", id="negative"),
    pytest.param(rows(with_b([1.0, 1.0]), [1, math.nan, 1, 1]), "a weight of nan examples", id="weight NaN"),
    pytest.param(rows(with_b([300.0, 400.0])), "an update of norm 500, above the limit 100", id="norm"),
    pytest.param(
        [
            block_of({"a": GOOD["a"]}),
            block_of({"b": [1.0, 2.0, 3.0]}),
            *rows({"c": GOOD["c"], "d": GOOD["d"]}),
        ],
        "3 numbers instead of 2",
        id="shape",
    ),
]


def go(
    method, blocks: list[Updates], on_bad: OnBad = "raise", clients: str = "abcd"
) -> tuple[list[Any], Scripted]:
    """Run a sound round 0 of zeros, then round 1 with these blocks, and give what was yielded."""
    sound = [block_of({c: [0.0, 0.0] for c in clients})]
    engine, seen = Scripted({0: sound, 1: blocks}), []
    stream = run(method, engine, tuple(clients), method.init(START), rounds=2, on_bad=on_bad, max_norm=100.0)
    try:
        seen.extend(stream)
    except AnswerError as error:
        seen.append(error)
    return seen, engine


@pytest.mark.parametrize(("blocks", "fault"), BAD)
def test_a_bad_answer_is_named_and_nothing_is_made_of_it(blocks: list[Updates], fault: str):
    method = Watched()
    seen, engine = go(method, blocks)
    assert len(seen) == 2
    assert str(seen[1]) == f"client b answered round 1 with {fault}; {ADVICE}"
    assert isinstance(seen[1], DivergedError) is (fault in {"NaN", "infinity"})
    assert method.calls.count("done") == 1, "only the sound round 0 was finished"
    assert engine.closed == [0, 1]


@pytest.mark.parametrize(("blocks", "fault"), BAD)
@pytest.mark.parametrize("method", [Retrain(), FedUHB()])
def test_dropped_it_is_as_if_the_client_had_not_answered(method, blocks: list[Updates], fault: str):  # noqa: ARG001
    (_, (state, record)), _ = go(method, blocks, "drop")
    (_, (without, _)), _ = go(method, rows(GOOD), clients="acd")
    assert torch.equal(state.params, without.params)
    assert record.asked == ("a", "b", "c", "d")
    assert record.answered == ("a", "c", "d")
    assert record.bytes_up == 3 * 2 * 8


def test_the_largest_norm_allowed_is_allowed():
    method = Retrain()
    (_, (state, _)), _ = go(method, [block_of({c: [60.0, 80.0] for c in "abcd"})])
    assert state.params.tolist() == [-60.0, -80.0]


@pytest.mark.parametrize("on_bad", ["raise", "drop"])
@pytest.mark.parametrize(
    ("blocks", "who"),
    [
        pytest.param([block_of({"a": GOOD["a"], "z": GOOD["a"]})], "z", id="a stranger"),
        pytest.param(
            [block_of({"a": GOOD["a"]}), block_of({"b": GOOD["c"], "a": GOOD["a"]})], "a", id="twice"
        ),
        pytest.param(
            [block_of({"a": GOOD["a"]}), block_of({"z": [math.nan, 0.0]})], "z", id="a stranger's NaN"
        ),
        pytest.param(
            [Updates(("a", "b", "a"), torch.ones(3, 2), torch.ones(3))], "a", id="twice in one block"
        ),
        pytest.param([Updates(("a", "b", "a"), torch.ones(1, 2), torch.ones(1))], "a", id="twice in one sum"),
    ],
)
def test_who_was_not_asked_or_answers_twice_is_the_engines_fault(
    blocks: list[Updates], who: str, on_bad: OnBad
):
    method = Watched()
    seen, engine = go(method, blocks, on_bad)
    assert str(seen[-1]) == f"{who} answered round 1 twice or unasked; fix the engine"
    assert method.calls.count("done") == 1
    assert engine.closed == [0, 1]


def test_a_bad_sum_cannot_name_a_client():
    method = Watched()
    total = summed([block_of({"a": [math.nan, 0.0], "b": GOOD["a"], "c": GOOD["c"]})])
    seen, _ = go(method, [total])
    assert str(seen[-1]) == f"the sum of all clients answered round 1 with NaN; {ADVICE}"
    seen, _ = go(method, [total, block_of({"d": [8.0, 8.0]})], "drop")
    assert seen[-1][1].answered == ("d",)


NOBODY = [
    pytest.param([], "raise", id="silence"),
    pytest.param([], "drop", id="silence when dropping"),
    pytest.param([block_of({c: [math.nan, 0.0] for c in "abcd"})], "drop", id="all dropped"),
    pytest.param([Updates((), torch.zeros(0, 2), torch.zeros(0))], "raise", id="an empty block"),
]


@pytest.mark.parametrize(("blocks", "on_bad"), NOBODY)
def test_nobody_answered_is_said_before_the_method_is_told(blocks: list[Updates], on_bad: OnBad):
    method = Watched()
    seen, _ = go(method, blocks, on_bad)
    words = (
        "none of the 4 clients asked in round 1 answered; check that they are running and their data is valid"
    )
    assert str(seen[-1]) == words
    assert method.calls == ["told", "done"], "round 0 alone"


def test_blocks_are_passed_on_as_they_come():
    """A server that needs only a sum holds one block: tell sees the first before the second is made."""
    order: list[str] = []

    class Slow(Scripted):
        def train(self, work, clients, round) -> Iterator[Updates]:
            for number, block in enumerate(super().train(work, clients, round)):
                order.append(f"made {number}")
                yield block

    class Folding(Watched):
        def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
            for number, _ in enumerate(answers):
                order.append(f"told {number}")
            return state

    method = Folding()
    list(run(method, Slow({0: rows(GOOD)}), ("a", "c", "d"), method.init(START), rounds=1))
    assert order == ["made 0", "told 0", "made 1", "told 1"]


@pytest.mark.parametrize("take", [0, 1])
def test_the_engine_is_told_when_the_method_gives_up_midway(take: int):
    """Workers behind the stream must not be left running."""

    class GivesUp(Watched):
        def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:  # noqa: ARG002
            stream = iter(answers)
            for _ in range(take):
                next(stream)
            raise RuntimeError("no more")

    engine, method = Scripted({0: rows(GOOD, block=1)}), GivesUp()
    with pytest.raises(RuntimeError, match="no more"):
        list(run(method, engine, ("a", "c", "d"), method.init(START), rounds=1))
    assert engine.closed == [0]
    assert engine.told < 3


def test_the_engine_is_told_when_the_method_has_heard_enough():
    class First(Watched):
        def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
            return Plain(state.params - next(iter(answers)).values[0])

    engine, method = Scripted({0: rows(GOOD, block=1)}), First()
    _, record = next(iter(run(method, engine, ("a", "c", "d"), method.init(START), rounds=1)))
    assert engine.closed == [0]
    assert record.answered == ("a",)
