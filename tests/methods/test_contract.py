"""The contract that every method signs. Adding a method is one line in SIGNED."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from feduhb.core.aggregate import median
from feduhb.core.types import Method, Updates
from feduhb.errors import AggregationError
from feduhb.methods import (
    METHODS,
    PGA,
    Crab,
    FedAdam,
    FedAF,
    FedEraser,
    FedExP,
    FedNadam,
    FedRecover,
    FedRecovery,
    FedUHB,
    FedYogi,
    FineTune,
    Nesterov,
    NoT,
    RapidRetrain,
    Retrain,
    Rollback,
    WuDistillation,
)
from feduhb.methods.binding import bind, get_leavers, unbind
from feduhb.runs.checkpoint import load_state, save_state
from feduhb.runs.folder import Round
from feduhb.runs.loop import run
from runs.remembering import Remembered, remember
from toys import quadratics

Make = Callable[[], Method[Any]]

CLIENTS = ("a", "b", "c", "d", "e")
EVERYONE = (*CLIENTS, "leaver")
ROUNDS = 6
LAYOUT = (("weight", (1, 2)), ("bias", (1,)))
LOSSES = (9.0, 8.5, 6.0, 5.9, 5.8, 5.7, 5.6, 5.5)  # two windows: rounds 0 to 2, then 3 to 7


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor([1.0, -2.0, 0.5], dtype=dtype)


@functools.cache
def history_in(dtype: torch.dtype) -> Remembered:
    """A training of everyone and one who left, with rounds to spare, for methods that use one."""
    return remember(quadratics(EVERYONE), EVERYONE, start(dtype), rounds=ROUNDS + 2)


def halve(student: Tensor, teacher: Tensor, epoch: int, **_: object) -> Tensor:  # noqa: ARG001
    """A distillation that brings the student half of the way to its teacher."""
    return (student + teacher) / 2


def given(
    method: Method[Any], clients: Sequence[str] = CLIENTS, dtype: torch.dtype = torch.float64
) -> Method[Any]:
    """Return a method bound to an old training of this precision, its leaver and the remaining clients, as it uses them."""
    history = history_in(dtype)
    old = {
        "history": history, "clients": tuple(clients), "leavers": ("leaver",), "model": history.final, "layout": LAYOUT,
        "losses": LOSSES, "seed": 5, "distil": halve,
    }  # fmt: skip
    return bind(pickle.loads(pickle.dumps(unbind(method))), old)  # noqa: S301 (as in a worker process)


SIGNED = [
    pytest.param(lambda: FedUHB(step_size=0.5, momentum=0.8, epochs=2), id="feduhb"),
    pytest.param(lambda: FedUHB(step_size=0.2, momentum=0.9, epochs=0), id="feduhb-gradients"),
    pytest.param(lambda: FedUHB(step_size=0.5, momentum=0.8, epochs=2, aggregate=median), id="feduhb-median"),
    pytest.param(lambda: Retrain(epochs=2), id="retrain"),
    pytest.param(lambda: given(FedEraser(interval=1, epochs=1)), id="federaser"),
    pytest.param(
        lambda: given(FedRecover(warmup=2, buffer=1, correction=2, final=0, abnormal=0.0, epochs=1)),
        id="fedrecover",
    ),
    pytest.param(
        lambda: given(FedRecover(warmup=3, buffer=2, correction=0, final=1, abnormal=0.3, epochs=1)),
        id="fedrecover-abnormal",
    ),
    pytest.param(lambda: Nesterov(step_size=0.5, momentum=0.8, epochs=2), id="nesterov"),
    pytest.param(lambda: Nesterov(step_size=0.2, epochs=0, aggregate=median), id="nesterov-median"),
    pytest.param(lambda: FedAdam(lr=0.1, epochs=2), id="fedadam"),
    pytest.param(lambda: FedAdam(lr=0.1, epochs=0, aggregate=median), id="fedadam-median"),
    pytest.param(lambda: FedYogi(lr=0.1, b2=0.9, tau=0.1, epochs=2), id="fedyogi"),
    pytest.param(lambda: FedNadam(lr=0.1, epochs=2), id="fednadam"),
    pytest.param(lambda: FedExP(eps=1e-6, epochs=2), id="fedexp"),
    pytest.param(lambda: Rollback(epochs=2), id="rollback"),
    pytest.param(lambda: given(FineTune(epochs=2)), id="finetune"),
    pytest.param(lambda: given(FineTune(epochs=0, step_size=0.5, aggregate=median)), id="finetune-median"),
    pytest.param(lambda: given(NoT(epochs=2)), id="not"),
    pytest.param(lambda: given(FedRecovery(distance=0.01)), id="fedrecovery"),
    pytest.param(lambda: given(WuDistillation(passes=2, after=3, epochs=2)), id="wu"),
    pytest.param(lambda: given(Crab(epochs=2)), id="crab"),
    pytest.param(
        lambda: given(Crab(rounds_kept=1.0, clients_kept=1.0, tolerance=0.0, epochs=2)), id="crab-whole"
    ),
    pytest.param(lambda: RapidRetrain(epochs=2), id="rapidretrain"),
    pytest.param(lambda: given(PGA(epochs=2, after=4)), id="pga"),
    pytest.param(lambda: given(FedAF(epochs=2, overwriting=2, after=4)), id="fedaf"),
]

every_method = pytest.mark.parametrize("make", SIGNED)


def states_of(
    make: Make, *, clients: Sequence[str] = CLIENTS, dtype: torch.dtype = torch.float64
) -> list[Any]:
    """Return the state before each round and after the last one."""
    method = given(make(), clients, dtype)
    first = method.init(start(dtype))
    return [first, *(state for state, _ in run_all(method, quadratics(EVERYONE), clients, first))]


def run_all(
    method: Method[Any], engine: Any, clients: Sequence[str], state: Any, **more: Any
) -> Iterator[tuple[Any, Round]]:
    return run(method, engine, clients, state, **{"rounds": ROUNDS, "leavers": get_leavers(method), **more})


def answers_to(method: Method[Any], state: Any, round: int) -> list[Updates]:
    work = method.ask(state)
    return [] if work is None else list(quadratics(EVERYONE).train(work, work.clients or CLIENTS, round))


def same(one: Any, other: Any) -> bool:
    """Whether two states have the same kind, fields, types and bits."""
    return type(one) is type(other) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


def test_everyone_has_signed():
    assert {param.values[0]().name for param in SIGNED} == set(METHODS)  # pyright: ignore[reportCallIssue]


@every_method
def test_it_says_what_it_is(make: Make):
    method = make()
    assert method.name in METHODS
    assert method.needs in {"sum", "each"}
    assert method.exact in {True, False}
    assert method.rounds is None or method.rounds > 0


@every_method
def test_it_is_a_frozen_value(make: Make):
    method: Any = make()
    assert dataclasses.is_dataclass(method)
    for setting in dataclasses.fields(method):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, setting.name, None)
    with pytest.raises((AttributeError, TypeError)):
        setattr(method, "memory", 1)  # noqa: B010 (keeps nothing to itself, whatever pyright says)
    assert make() == make()


@every_method
def test_init_keeps_the_parameters(make: Make):
    """Methods that start from the old training begin where that says, whatever fresh model they are given."""
    method, params = make(), start()
    state = method.init(params)
    begins = not method.needs_model and method.name != "crab"
    assert torch.equal(state.params, params if begins else method.init(params + 1).params)
    assert isinstance(state, tuple)
    assert "params" in type(state)._fields  # pyright: ignore[reportAttributeAccessIssue]


@every_method
def test_a_state_is_tensors_and_ints(make: Make):
    for state in states_of(make):
        assert all(isinstance(value, Tensor | int) for value in state)


@every_method
def test_tell_changes_none_of_its_inputs(make: Make):
    method = make()
    for t, state in enumerate(states_of(make)[:-1]):
        answers = answers_to(method, state, t)
        kept_state, kept = (
            copy.deepcopy(state),
            [(b.clients, b.values.clone(), b.weights.clone()) for b in answers],
        )
        method.tell(state, answers)
        assert same(state, kept_state)
        for block, (clients, values, weights) in zip(answers, kept, strict=True):
            assert block.clients == clients
            assert torch.equal(block.values, values)
            assert torch.equal(block.weights, weights)


@every_method
def test_a_new_state_shares_no_memory_with_the_answers(make: Make):
    method = make()
    state = method.init(start())
    answers = answers_to(method, state, 0)
    told = method.tell(state, answers)
    kept = copy.deepcopy(told)
    for block in answers:
        block.values.fill_(99.0)
    assert same(told, kept)


@every_method
def test_told_twice_it_says_the_same(make: Make):
    """Pure: no counter, no cache, no random draw."""
    method, other = make(), make()
    for t, state in enumerate(states_of(make)[:-1]):
        answers = answers_to(method, state, t)
        first = method.tell(state, answers)
        assert same(first, method.tell(state, answers))
        assert same(first, other.tell(state, iter(answers)))


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_type_and_device_are_kept(make: Make, dtype: torch.dtype):
    for state in states_of(make, dtype=dtype):
        assert state.params.dtype is dtype
        assert state.params.device.type == "cpu"
        assert state.params.shape == (3,)


@every_method
def test_ask_asks_from_where_the_model_is(make: Make):
    method = make()
    for state in states_of(make):
        work = method.ask(state)
        assert work is None or torch.equal(work.params, state.params)


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_survives_the_disk_bit_for_bit(make: Make, dtype: torch.dtype, tmp_path: Path):
    like = given(make(), dtype=dtype).init(torch.zeros(3, dtype=dtype))
    for t, state in enumerate(states_of(make, dtype=dtype)):
        save_state(tmp_path / "state.safetensors", state, t)
        loaded, rounds_done = load_state(tmp_path / "state.safetensors", like)
        assert same(loaded, state)
        assert rounds_done == t


@every_method
@pytest.mark.parametrize("stop_after", range(1, ROUNDS))
def test_stopped_and_resumed_is_never_stopped_bit_for_bit(make: Make, stop_after: int, tmp_path: Path):
    method = make()
    engine = quadratics(EVERYONE)
    whole = list(run_all(method, engine, CLIENTS, method.init(start())))
    half = list(run_all(method, engine, CLIENTS, method.init(start()), rounds=stop_after))
    save_state(tmp_path / "state.safetensors", half[-1][0], stop_after)

    again = make()
    state, first = load_state(tmp_path / "state.safetensors", again.init(torch.zeros(3, dtype=torch.float64)))
    moved = [record.moved for _, record in half]
    rest = list(run_all(again, quadratics(EVERYONE), CLIENTS, state, first=first, moved=moved))
    assert [record.round for _, record in rest] == list(range(stop_after, ROUNDS))
    for (resumed, one), (straight, other) in zip(rest, whole[stop_after:], strict=True):
        assert same(resumed, straight)
        assert (one.moved, one.asked, one.answered) == (other.moved, other.asked, other.answered)


@every_method
def test_nobody_outside_those_who_remain_is_asked(make: Make):
    """Leavers are asked only by methods that declare it, and the records say in which rounds."""
    remaining = ("b", "d", "e")
    engine, method = quadratics(EVERYONE), given(make(), remaining)
    records = [record for _, record in run_all(method, engine, remaining, method.init(start()))]
    may = {*remaining, "leaver"} if method.asks_leaver else {*remaining}
    assert {client for _, asked in engine.asked for client in asked} <= may
    assert {client for record in records for client in (*record.asked, *record.answered)} <= may
    assert any(record.leavers for record in records) == method.asks_leaver
    for record in records:
        assert record.leavers == (record.asked if "leaver" in record.asked else ())


@every_method
def test_the_tasks_that_it_asks_are_those_that_it_declares(make: Make):
    method = make()
    asked = [work.task for state in states_of(make) if (work := method.ask(state)) is not None]
    assert {type(task) for task in asked if task is not None} == set(method.tasks)


@every_method
def test_needs_says_whether_a_sum_is_enough(make: Make):
    """What secure aggregation tells a "sum" method leads, to rounding, to the same model; others refuse."""
    method = make()
    alone = run_all(method, quadratics(EVERYONE, presummed=True), CLIENTS, method.init(start()))
    if method.needs == "each" and method.name not in (
        "fedrecovery",
        "wu",
    ):  # which read each update from disk
        with pytest.raises(
            AggregationError, match=r"needs every client's update, but received only their sum"
        ):
            list(alone)
        return
    for (state, record), each in zip(alone, states_of(make)[1:], strict=True):
        torch.testing.assert_close(state.params, each.params, rtol=1e-12, atol=1e-12)
        assert record.answered == record.asked


@every_method
@pytest.mark.parametrize("block", [1, 3, 5])
def test_blocks_do_not_change_a_bit(make: Make, block: int):
    method = make()
    ours = run_all(method, quadratics(EVERYONE, block=block), CLIENTS, method.init(start()))
    for (state, _), other in zip(ours, states_of(make)[1:], strict=True):
        assert same(state, other)
