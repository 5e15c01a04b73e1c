"""The one loop: who is asked, in which order, what is recorded, and when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from feduhb.core.seeds import sample_clients
from feduhb.core.types import Method, Updates, Work
from feduhb.errors import AnswerError, DivergedError
from feduhb.methods import FedUHB, Retrain
from feduhb.runs.loop import measure_distance, run
from feduhb.stopping import dynamic_stop
from toys import Scripted, block_of, quadratics

ZERO = torch.zeros(3, dtype=torch.float64)


class Counted(NamedTuple):
    """A model and the number of rounds it has seen."""

    params: Tensor
    seen: int


@dataclass(frozen=True)
class EveryOther(Method[Counted]):
    """Asks in even rounds only, whom it is told to ask, and takes one step of 1 in the others."""

    whom: tuple[str, ...] | None = None
    needed: bool = True
    name: ClassVar[str] = "every-other"
    exact: ClassVar[bool] = False

    def init(self, params: Tensor) -> Counted:
        return Counted(params, 0)

    def ask(self, state: Counted) -> Work | None:
        return Work(state.params, 2, self.whom, self.needed) if state.seen % 2 == 0 else None

    def tell(self, state: Counted, answers: Iterable[Updates]) -> Counted:
        if state.seen % 2:
            assert answers == ()
            return Counted(state.params + 1, state.seen + 1)
        return Counted(
            state.params - sum((block.values.sum(dim=0) for block in answers), torch.zeros(())),
            state.seen + 1,
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_distance_is_that_of_whole_vectors_in_double_precision(dtype, monkeypatch):
    """Differences are computed in parts, which saves memory; the sum is not, for its bits would change."""
    new, old = torch.randn(2, 10_007, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = float(torch.linalg.vector_norm(new.double() - old.double()))
    for part in (1 << 18, 10_007, 1_000, 13):
        monkeypatch.setattr("feduhb.runs.loop.CHUNK", part)
        assert measure_distance(new, old) == whole
    assert measure_distance(new[:0], old[:0]) == 0


def test_the_order_in_which_clients_are_listed_is_of_no_matter():
    method = FedUHB(0.5, 0.8, epochs=1)
    first = None
    for listed in permutations(("b", "d", "a", "c")):
        engine = quadratics(block=3)
        *_, (state, record) = run(method, engine, listed, method.init(ZERO), rounds=4)
        assert record.asked == ("a", "b", "c", "d")
        assert engine.asked[-1] == (3, ("a", "b", "c", "d"))
        first = state.params if first is None else first
        assert torch.equal(state.params, first)


def test_a_function_of_the_round_says_who_takes_part():
    engine, method = quadratics(), FedUHB(epochs=1)

    def chosen(round: int) -> tuple[str, ...]:
        return sample_clients(0, round, ("e", "a", "c", "b"), 2)

    records = [record for _, record in run(method, engine, chosen, method.init(ZERO), rounds=6)]
    assert [record.asked for record in records] == [tuple(sorted(chosen(t))) for t in range(6)]
    assert len({record.asked for record in records}) > 1
    assert engine.asked == [(t, records[t].asked) for t in range(6)]


def test_a_method_may_ask_some_of_those_who_take_part():
    method, engine = EveryOther(whom=("c", "a")), quadratics()
    _, record = next(iter(run(method, engine, ("a", "b", "c"), method.init(ZERO), rounds=1)))
    assert engine.asked == [(0, ("a", "c"))]
    assert record.asked == record.answered == ("a", "c")


def test_a_method_may_not_ask_a_leaver():
    method, engine = EveryOther(whom=("a", "e", "d")), quadratics()
    with pytest.raises(AnswerError) as error:
        next(iter(run(method, engine, ("a", "b", "c"), method.init(ZERO), rounds=1)))
    assert (
        str(error.value)
        == "the method asked d, e, which do not take part; a method may ask only the remaining clients"
    )
    assert engine.asked == []


def test_asking_nobody_tells_an_empty_answer():
    """Even rounds ask two clients for 1 each, so -2; odd rounds add 1, ask nobody, and cost nothing."""
    engine = Scripted({t: [block_of({"a": [1.0], "b": [1.0]})] for t in (0, 2)})
    method = EveryOther()
    rounds = list(run(method, engine, ("a", "b"), method.init(torch.zeros(1, dtype=torch.float64)), rounds=4))
    assert [state.params.item() for state, _ in rounds] == [-2.0, -1.0, -3.0, -2.0]
    assert [t for t, _ in engine.asked] == [0, 2]
    _, silent = rounds[1]
    assert (silent.asked, silent.answered, silent.client_epochs) == ((), (), 0)
    assert (silent.bytes_down, silent.bytes_up, silent.client_seconds) == (0, 0, 0.0)
    assert silent.moved == 1.0


def test_work_that_needs_no_answer_goes_on_without_one():
    """Nobody answers the first round, and the method is told just that; in the third "a" does."""
    engine = Scripted({0: [], 2: [block_of({"a": [1.0]})]})
    method = EveryOther(whom=("a", "b"), needed=False)
    start = method.init(torch.zeros(1, dtype=torch.float64))
    rounds = list(run(method, engine, ("a", "b", "c"), start, rounds=3))
    assert [state.params.item() for state, _ in rounds] == [0.0, 1.0, 0.0]
    _, silent = rounds[0]
    assert (silent.asked, silent.answered) == (("a", "b"), ())
    assert (silent.bytes_down, silent.bytes_up, silent.client_epochs) == (16, 0, 0)
    with pytest.raises(AnswerError, match="none of the 2 clients asked in round 0 answered"):
        list(run(EveryOther(whom=("a", "b")), engine, ("a", "b", "c"), start, rounds=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("epochs", "passes"), [(3, 3), (1, 1), (0, 1)])
def test_what_a_record_counts(epochs: int, passes: int, dtype: torch.dtype):
    """Bytes are P x itemsize x clients, either way; a full-batch gradient is one pass over the data."""
    method = Retrain(0.1, epochs)
    clients = ("a", "b", "c", "d")
    start = method.init(ZERO.to(dtype))
    (state, record), *_ = run(method, quadratics(), clients, start, rounds=2)
    assert (record.round, record.asked, record.answered) == (0, clients, clients)
    assert record.bytes_down == record.bytes_up == 3 * dtype.itemsize * 4
    assert record.client_epochs == passes * 4
    assert record.moved == float((state.params.double() - start.params.double()).norm())
    assert (record.threshold, record.stopped, record.scores) == (None, None, {})
    assert record.client_seconds >= 0
    assert record.server_seconds >= 0


def test_who_did_not_answer_is_asked_but_not_counted_upwards():
    engine = Scripted({0: [block_of({"a": [1.0, 2.0]})]})
    method = Retrain(epochs=2)
    _, record = next(iter(run(method, engine, ("a", "b"), method.init(ZERO[:2]), rounds=1)))
    assert (record.asked, record.answered) == (("a", "b"), ("a",))
    assert (record.bytes_down, record.bytes_up, record.client_epochs) == (2 * 8 * 2, 2 * 8, 2)


def test_movement_is_measured_in_float64():
    """In float32 the square of a movement of 1e-30 is 0; the series that the stop rule sees must not be."""
    engine = Scripted({0: [Updates(("a",), torch.tensor([[1e-30]]), torch.ones(1))]})
    method = Retrain()
    _, record = next(iter(run(method, engine, ("a",), method.init(torch.zeros(1)), rounds=1)))
    assert record.moved == pytest.approx(1e-30, rel=1e-6)


def test_the_rule_ends_the_run_and_says_so():
    """Movements 10, 1, 1: σ = 3 sqrt 2 = 4.243 and 1 < 0.6 x 4.243 = 2.546."""
    engine = Scripted({t: [block_of({"a": [10.0 if t == 0 else 1.0]})] for t in range(9)})
    method, rule = Retrain(), dynamic_stop(0.6)
    rounds = run(method, engine, ("a",), method.init(ZERO[:1]), rounds=9, stop=rule)
    records = [record for _, record in rounds]
    assert [record.moved for record in records] == [10.0, 1.0, 1.0]
    assert [record.threshold for record in records][:2] == [None, None]
    assert records[-1].threshold == pytest.approx(0.6 * 18**0.5, rel=1e-14)
    assert str(records[-1].stopped) == "movement 1 fell below 0.6 x its standard deviation 4.24"
    assert [record.stopped for record in records[:2]] == [None, None]
    assert next(iter(rounds), None) is None
    assert len(engine.asked) == 3, "nobody was asked once the rule had spoken"


def test_a_run_that_had_stopped_does_not_go_on():
    engine, method = quadratics(), Retrain()
    rounds = run(
        method,
        engine,
        ("a",),
        method.init(ZERO),
        rounds=9,
        first=3,
        moved=[10.0, 1.0, 1.0],
        stop=dynamic_stop(0.6),
    )
    assert list(rounds) == []
    assert engine.asked == []


@pytest.mark.parametrize(("first", "rounds"), [(0, 0), (4, 4), (5, 4)])
def test_no_round_left_is_no_round_run(first: int, rounds: int):
    engine, method = quadratics(), Retrain()
    assert list(run(method, engine, ("a",), method.init(ZERO), rounds=rounds, first=first)) == []
    assert engine.asked == []


def test_the_run_is_lazy():
    """A round is run when it is asked for: who takes one round has paid for one."""
    engine, method = quadratics(), Retrain()
    rounds = iter(run(method, engine, ("a", "b"), method.init(ZERO), rounds=5))
    assert engine.asked == []
    next(rounds)
    assert len(engine.asked) == 1


def test_what_came_before_is_not_changed():
    """States are values: the first stays what it was while the run goes on."""
    method = FedUHB(0.5, 0.9, epochs=1)
    start = method.init(ZERO.clone())
    states = [state for state, _ in run(method, quadratics(), ("a", "b"), start, rounds=3)]
    kept = [state.params.clone() for state in states]
    list(run(method, quadratics(), ("a", "b"), states[-1], rounds=6, first=3))
    assert torch.equal(start.params, ZERO)
    assert all(torch.equal(state.params, copy) for state, copy in zip(states, kept, strict=True))


def test_a_model_that_blows_up_ends_the_run_in_words():
    """Gradient steps of 1e150 on a curvature of about 1: 1e150, then 1e300, which no norm can hold."""
    method = Retrain(step_size=1e150, epochs=0)
    rounds = run(method, quadratics(), ("a", "b"), method.init(ZERO + 1), rounds=9)
    next(iter(rounds))
    with pytest.raises(DivergedError) as error:
        list(rounds)
    words = "the model is not finite after round 1; lower "
    assert str(error.value) == words + "lr, step_size or momentum"


def test_a_client_listed_twice_is_one_client():
    engine, method = quadratics(), Retrain()
    (state, record), *_ = run(method, engine, ("a", "b", "a"), method.init(ZERO), rounds=1)
    (once, _), *_ = run(method, quadratics(), ("a", "b"), method.init(ZERO), rounds=1)
    assert record.asked == ("a", "b")
    assert torch.equal(state.params, once.params)
