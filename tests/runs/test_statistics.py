"""Statistics of normalisation layers: the weighted mean of what clients answer, beside any method, fresh at the start."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import feduhb
from feduhb.core.aggregate import median, weighted_mean
from feduhb.core.types import Method, Updates, Work
from feduhb.methods import (
    Crab,
    FedAdam,
    FedEraser,
    FedExP,
    FedNadam,
    FedRecover,
    FedUHB,
    FedYogi,
    FineTune,
    Nesterov,
    NoT,
    Retrain,
)
from feduhb.methods.binding import bind, uses_old_run
from feduhb.runs.checkpoint import load_state, save_state
from feduhb.runs.history import HistoryOnDevice
from feduhb.runs.loop import carry_statistics, run
from feduhb.runs.statistics import WithStatistics
from runs.remembering import remember
from toys import Quadratics, Scripted, block_of, quadratics, summed

START = torch.tensor([1.0, 2.0, 10.0, 20.0]).double()  # two parameters, two statistics
# Answers are w - w_c and b - b_c, with weights 1 and 3.
FIRST = block_of({"a": [1.0, 0.0, 4.0, -8.0], "b": [0.0, 1.0, 8.0, 4.0]}, [1.0, 3.0])
SECOND = block_of({"a": [2.0, 2.0, -1.0, 3.0], "b": [0.0, 0.0, 1.0, 1.0]}, [1.0, 3.0])


def states(method: Method[Any], script: dict[int, Sequence[Updates]], **how: Any) -> list[Any]:
    """The parameters and statistics after each round, and its record."""
    begun = WithStatistics(method, 2).init(START)
    rounds = run(method, Scripted(script), ["a", "b", "c"], begun, rounds=len(script), statistics=2, **how)
    return [(state.params[:2].tolist(), state.params[2:].tolist(), record) for state, record in rounds]


def test_the_weighted_mean_on_paper():
    """b <- b - (1 * 4 + 3 * 8) / 4 = 10 - 7, and so on; the parameters likewise, by FedAvg."""
    (w1, b1, _), (w2, b2, _) = states(Retrain(epochs=1), {0: [FIRST], 1: [SECOND]})
    assert (w1, b1) == ([1 - 0.25, 2 - 0.75], [10 - 7.0, 20 - 1.0])
    assert (w2, b2) == ([0.75 - 0.5, 1.25 - 0.5], [3 - 0.5, 19 - 1.5])


def test_neither_step_size_nor_momentum_reach_the_statistics():
    plain = states(Retrain(epochs=1), {0: [FIRST], 1: [SECOND]})
    heavy = states(FedUHB(epochs=1, step_size=0.5, momentum=0.9), {0: [FIRST], 1: [SECOND]})
    assert [b for _, b, _ in plain] == [b for _, b, _ in heavy]
    (w1, _, _), (w2, _, _) = heavy
    assert w1 == [1 - 0.125, 2 - 0.375]
    assert w2 == pytest.approx([0.875 - 0.25 + 0.9 * -0.125, 1.625 - 0.25 + 0.9 * -0.375])


def test_a_robust_rule_on_the_parameters_leaves_the_statistics_a_weighted_mean():
    answers = block_of({"a": [0, 0, 1, 0], "b": [1, 1, 3, 0], "c": [99, 99, 5, 8]}, [1, 1, 2])
    (w, b, _), *_ = states(Retrain(epochs=1, aggregate=median), {0: [answers]})
    assert w == [0.0, 1.0]
    assert b == [10 - 3.5, 20 - 4.0]


def test_movement_is_of_the_parameters_alone():
    records = [record for *_, record in states(Retrain(epochs=1), {0: [FIRST], 1: [SECOND]})]
    assert [each.moved for each in records] == pytest.approx([(0.25**2 + 0.75**2) ** 0.5, 0.5**0.5])
    still = block_of({"a": [0, 0, 5, 5], "b": [0, 0, 5, 5]})
    assert [record.moved for *_, record in states(Retrain(epochs=1), {0: [still]})] == [0.0]


def test_clients_receive_and_return_the_statistics_too():
    *_, record = states(Retrain(epochs=1), {0: [FIRST]})[0]
    assert (record.bytes_down, record.bytes_up) == (3 * 4 * 8, 2 * 4 * 8)


def test_a_sum_of_all_clients_is_enough():
    each, total = (states(Retrain(epochs=1), {0: [some]}) for some in (FIRST, summed([FIRST])))
    assert each[0][:2] == total[0][:2]


def test_blocks_do_not_change_a_bit():
    draw = torch.Generator().manual_seed(0)
    values, weights = torch.rand(7, 5, generator=draw), torch.rand(7, generator=draw).double() * 50
    clients = tuple("abcdefg")
    found = []
    for size in (1, 2, 3, 7):
        blocks = [
            Updates(clients[i : i + size], values[i : i + size], weights[i : i + size])
            for i in range(0, 7, size)
        ]
        method = WithStatistics(Retrain(epochs=1), 3)
        found.append(
            method.tell(method.init(torch.rand(5, generator=torch.Generator().manual_seed(1))), blocks)
        )
    assert all(torch.equal(found[0].params, other.params) for other in found)


def test_an_answer_that_is_dropped_does_not_count():
    bad = block_of({"b": [0.0, 0.0, float("nan"), 0.0]}, [3.0])
    good = block_of({"a": [1.0, 0.0, 4.0, -8.0]}, [1.0])
    (_, b, record), *_ = states(Retrain(epochs=1), {0: [good, bad]}, on_bad="drop")
    assert b == [6.0, 28.0]
    assert record.answered == ("a",)


def test_a_variance_of_nothing_does_not_round_to_a_negative_one():
    """b - Σ n_c (b - b_c) / N would: its rounding is relative to b, which may be large."""
    method, generator = carry_statistics(Retrain(epochs=1), 1), torch.Generator().manual_seed(0)
    for _ in range(200):
        start = torch.cat([torch.zeros(1), torch.rand(1, generator=generator) * 1e6])
        weights = torch.randint(1, 999, (7,), generator=generator).double()
        changes = start[None].expand(7, 2).clone()  # every client has a variance of 0
        answers = Updates(tuple("abcdefg"), changes, weights)
        assert method.tell(method.init(start), [answers]).params[1] == 0


class Stepped(NamedTuple):
    """A model and the number of rounds done."""

    params: Tensor
    step: int


@dataclass(frozen=True)
class Resting(Method[Stepped]):
    """Asks nobody in odd rounds, in which it moves by 1."""

    name: ClassVar[str] = "resting"
    exact: ClassVar[bool] = True

    def init(self, params: Tensor) -> Stepped:
        return Stepped(params, 0)

    def ask(self, state: Stepped) -> Work | None:
        return None if state.step % 2 else Work(state.params, 1)

    def tell(self, state: Stepped, answers: Iterable[Updates]) -> Stepped:
        step = 1.0 if state.step % 2 else weighted_mean(answers)
        return Stepped(state.params - step, state.step + 1)


def test_in_a_round_that_asks_nobody_they_stay_as_they_are():
    (_, b1, _), (w2, b2, _), (_, b3, _) = states(Resting(), {0: [FIRST], 1: [], 2: [SECOND]})
    assert (b1, b2, b3) == ([3.0, 19.0], [3.0, 19.0], [2.5, 17.5])
    assert w2 == [0.75 - 1, 1.25 - 1]


def test_a_model_without_statistics_is_not_wrapped():
    method = Retrain(epochs=1)
    assert carry_statistics(method, 0) is method
    assert isinstance(carry_statistics(method, 2), WithStatistics)


CLIENTS = ("a", "b", "c", "d")
BEGIN = torch.tensor([1.0, -2.0, 0.5]).double()  # two parameters, one statistic


def apart(size: int = 3, **how: Any) -> Quadratics:
    """A federation in which the statistic and the parameters do not touch: A_c has a block of each."""
    made = quadratics((*CLIENTS, "leaver"), **how)
    for client in made.curvature:
        made.curvature[client][:2, 2] = made.curvature[client][2, :2] = 0
        made.curvature[client] = made.curvature[client][:size, :size]
        made.centre[client] = made.centre[client][:size]
    return made


def with_history(method: Method[Any], size: int = 3) -> Method[Any]:
    """Return a replaying method with the history of everyone, whose statistics it does not see."""
    if not uses_old_run(method):
        return method
    stored = remember(apart(size), (*CLIENTS, "leaver"), BEGIN[:size], rounds=6)
    history = HistoryOnDevice(stored, torch.device("cpu"), stored.rounds, size - 2)
    assert stored.final is not None
    old = {"history": history, "clients": CLIENTS, "model": stored.final[:2], "layout": (("weight", (1, 2)),)}
    return bind(method, {**old, "losses": (6.0, 5.0, 4.0, 3.0, 2.0, 1.0)})


SIGNED: list[Callable[[], Method[Any]]] = [
    lambda: Retrain(epochs=2),
    lambda: FedUHB(step_size=0.5, momentum=0.8, epochs=2),
    lambda: FedUHB(epochs=1, aggregate=median),
    lambda: FedEraser(interval=1, epochs=1),
    lambda: FedRecover(warmup=2, buffer=1, correction=2, final=0, abnormal=0.0, epochs=1),
    lambda: Nesterov(step_size=0.5, momentum=0.8, epochs=2),
    lambda: FedAdam(lr=0.1, epochs=2),
    lambda: FedYogi(lr=0.1, epochs=2),
    lambda: FedNadam(lr=0.1, epochs=2),
    lambda: FedExP(eps=1e-6, epochs=2),
    lambda: FineTune(epochs=2),
    lambda: NoT(epochs=2),
    lambda: Crab(epochs=2),
]
NAMES = [
    "retrain", "feduhb", "feduhb-median", "federaser", "fedrecover", "nesterov", "fedadam", "fedyogi", "fednadam", "fedexp",
    "finetune", "not", "crab",
]  # fmt: skip
every_method = pytest.mark.parametrize("make", SIGNED, ids=NAMES)


def follow(method: Method[Any], engine: Quadratics, begin: Tensor = BEGIN, **how: Any) -> list[Any]:
    count = len(begin) - 2
    first = how.pop("state", None) or carry_statistics(method, count).init(begin)
    rounds = run(method, engine, CLIENTS, first, rounds=6, statistics=count, **how)
    return [first, *(state for state, _ in rounds)]


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and all(
        torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, Tensor) else a == b
        for a, b in zip(one, other, strict=True)
    )


@every_method
def test_a_method_sees_the_parameters_alone(make):
    """Beside statistics it does what it does without them, in another precision of the sums at most."""
    beside = follow(with_history(make()), apart())
    alone = follow(with_history(make(), 2), apart(2), BEGIN[:2])
    for one, other in zip(beside, alone, strict=True):
        torch.testing.assert_close(one.params[:2], other.params, rtol=1e-12, atol=1e-12)
    assert beside[-1].params[2] != BEGIN[2]


@every_method
def test_the_contract_beside_statistics(make):
    """Nothing that is given to tell changes, nothing is shared, and it says the same again."""
    method = WithStatistics(with_history(make()), 1)
    if not uses_old_run(method.method) or method.method.name in ("federaser", "fedrecover"):
        assert torch.equal(method.init(BEGIN).params, BEGIN)
    for t, state in enumerate(follow(method.method, apart())[:-1]):
        work = method.ask(state)
        assert work is None or torch.equal(work.params, state.params)
        answers = [] if work is None else list(apart().train(work, work.clients or CLIENTS, t))
        before = copy.deepcopy((state, [block.values for block in answers]))
        told = method.tell(state, answers)
        kept = copy.deepcopy(told)
        assert same(state, before[0])
        assert all(map(torch.equal, (block.values for block in answers), before[1]))
        assert same(told, method.tell(state, iter(answers)))
        for block in answers:
            block.values.fill_(99.0)
        assert same(told, kept)


@every_method
@pytest.mark.parametrize("stop_after", [1, 4])
def test_stopped_and_resumed_is_never_stopped_bit_for_bit(make, stop_after, tmp_path: Path):
    method = with_history(make())
    whole = follow(method, apart())
    save_state(tmp_path / "state.safetensors", whole[stop_after], stop_after)
    like = WithStatistics(with_history(make()), 1).init(torch.zeros(3).double())
    state, first = load_state(tmp_path / "state.safetensors", like)
    assert same(state, whole[stop_after])
    rest = follow(method, apart(block=3), state=state, first=first, moved=[1.0] * first)
    assert all(map(same, rest, whole[stop_after:]))


@pytest.mark.parametrize("method", ["finetune", "not"])
def test_a_method_that_starts_from_the_old_model_starts_from_its_statistics(method, tmp_path: Path):
    data = {c: (torch.randn(6, 2).double() * 3 + 1, torch.arange(6) % 2) for c in ("ant", "bee")}
    federation = feduhb.Federation(data, data["ant"], norm_first)
    old = feduhb.train(federation, 2, epochs=1, batch_size=6, show=None)
    new = feduhb.unlearn(old, "ant", method=method, rounds=0, out=tmp_path / "new", show=None)
    assert torch.equal(new.params[-4:], old.params[-4:])
    assert torch.equal(new.params, old.params) is (method == "finetune")
    assert torch.equal(feduhb.open_run(tmp_path / "new", federation).params, new.params)


def norm_first() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)).double()


@pytest.mark.parametrize("engine", ["loop", "pool"])
def test_batch_norm_by_hand_over_rounds(engine):
    """A client of one batch answers b_c = 0.9 b + 0.1 s_c, so after t rounds b = 0.9^t b[0] + (1 - 0.9^t) Σ n_c s_c / N."""
    draw = torch.Generator().manual_seed(0)
    sizes = {"ant": 3, "bee": 6}
    data = {
        c: (torch.randn(n, 2, generator=draw).double() * 3 + 1, torch.arange(n) % 2) for c, n in sizes.items()
    }
    federation = feduhb.Federation(data, data["ant"], norm_first)
    found = feduhb.train(federation, 4, epochs=1, batch_size=6, lr=0.05, engine=engine, show=None)
    means = sum(n * data[c][0].mean(0) for c, n in sizes.items()) / 9
    variances = sum(n * data[c][0].var(0) for c, n in sizes.items()) / 9  # torch's, over n - 1
    left = 0.9**4
    expected = torch.cat([(1 - left) * means, left + (1 - left) * variances])  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(found.params[-4:], expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found.model().get_buffer("0.running_var"), found.params[-2:])


def test_a_replay_keeps_the_statistics_in_rounds_that_ask_nobody(tmp_path: Path):
    """FedEraser's first kept round asks nobody: the statistics are fresh after it."""
    draw = torch.Generator().manual_seed(0)
    data = {c: (torch.randn(5, 2, generator=draw).double() + 3, torch.arange(5) % 2) for c in "abc"}
    federation = feduhb.Federation(data, data["a"], norm_first)
    trained = feduhb.train(
        federation, 2, epochs=1, batch_size=5, out=tmp_path / "run", keep_history=True, show=None
    )
    first = feduhb.unlearn(
        trained, "a", method=FedEraser(interval=2, epochs=1), erase_history=False, show=None
    )
    assert first.params[-4:].tolist() == [0.0, 0.0, 1.0, 1.0]
    both = feduhb.unlearn(trained, "a", method=FedEraser(interval=1, epochs=1), show=None)
    means = (data["b"][0].mean(0) + data["c"][0].mean(0)) / 2
    torch.testing.assert_close(both.params[-4:-2], 0.1 * means, rtol=1e-12, atol=1e-12)
