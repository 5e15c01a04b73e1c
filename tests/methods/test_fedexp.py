"""FedExP by hand, on sums, and with the same bits on any number of cores."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feduhb.core.aggregate import krum, median, weighted_mean
from feduhb.core.types import Updates
from feduhb.errors import AggregationError, AnswerError, ConfigError
from feduhb.methods import FedExP, Retrain
from feduhb.methods.fedexp import CHUNK, square_length
from feduhb.runs.loop import run
from feduhb.runs.statistics import WithStatistics
from methods.test_heavy_ball import drawn_rounds
from toys import Scripted, block_of, quick, summed

BLOCK = block_of({"a": [3.0, 4.0], "b": [-2.0, 0.0]}, [1, 3])


def step(method: FedExP, *blocks: Updates) -> list[float]:
    return method.tell(method.init(torch.zeros(2).double()), blocks).params.tolist()


def test_two_clients_on_paper():
    """p = 1/4, 3/4; g = (3/4 - 6/4, 1) = (-0.75, 1), ‖g‖² = 1.5625; Σ p ‖u‖² = 25/4 + 3 · 4/4 = 9.25.

    ε = 1: 9.25 / (2 · 2.5625) = 1.80487...; the step is that times g.
    """
    factor = 9.25 / (2 * 2.5625)
    assert step(FedExP(eps=1.0), BLOCK) == pytest.approx([0.75 * factor, -factor], rel=1e-15)
    one_by_one = [BLOCK.select([0]), BLOCK.select([1])]
    assert step(FedExP(eps=1.0), *one_by_one) == step(FedExP(eps=1.0), BLOCK)


def test_the_step_is_never_shorter_than_fedavgs():
    """Equal updates: Σ p ‖u‖² = ‖g‖², so the factor is below 1/2 and the step is g; so it is for a large ε."""
    same = block_of({"a": [3.0, 4.0], "b": [3.0, 4.0]}, [1, 3])
    assert step(FedExP(), same) == [-3.0, -4.0]
    assert step(FedExP(eps=1e6), BLOCK) == [0.75, -1.0]


@quick
@given(st.integers(0, 999))
def test_with_a_large_eps_it_is_retrain_bit_for_bit(seed: int):
    method, plain = FedExP(eps=1e9), Retrain()
    for answers in drawn_rounds(seed, 3, 5):
        start = torch.ones(5).double()
        one = method.tell(method.init(start), answers).params
        assert torch.equal(one, plain.tell(plain.init(start), answers).params)


def test_updates_that_cancel_move_nothing():
    """g = 0 is extrapolated by Σ p ‖u‖² / (2 ε), and stays 0."""
    assert step(FedExP(), block_of({"a": [1.0, 0.0], "b": [-1.0, 0.0]})) == [0.0, 0.0]


def test_a_sum_with_the_mean_square_is_enough():
    assert FedExP().needs == "sum"
    whole, groups = summed([BLOCK]), [summed([BLOCK]), summed([BLOCK])]
    assert whole.mean_square == 9.25
    for blocks in ([whole], groups, [BLOCK, whole]):
        assert step(FedExP(eps=1.0), *blocks) == pytest.approx(step(FedExP(eps=1.0), BLOCK), rel=1e-15)


def test_a_sum_without_it_is_refused():
    with pytest.raises(AggregationError) as error:
        step(FedExP(), replace(summed([BLOCK]), mean_square=None))
    assert str(error.value) == (
        "fedexp needs the mean squared length of the updates beside their sum; let the engine fill in Updates.mean_square, "
        "or use nesterov, which needs only the sum"
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_mean_square_that_cannot_be_is_a_bad_answer(bad: float):
    engine = Scripted({0: [replace(summed([BLOCK]), mean_square=bad)]})
    method = FedExP()
    with pytest.raises(
        AnswerError, match=rf"with a mean squared length of {bad:g}; that round was discarded"
    ):
        list(run(method, engine, ["a", "b"], method.init(torch.zeros(2).double()), rounds=1))


def test_statistics_do_not_count_as_length():
    """The last number of each update is a statistic: the step is that of the first number alone."""
    method, begin = FedExP(eps=1e-3), torch.zeros(2).double()
    found = WithStatistics(method, 1).tell(method.init(begin), [BLOCK]).params
    alone = method.tell(method.init(begin[:1]), [replace(BLOCK, values=BLOCK.values[:, :1])]).params
    assert torch.equal(found[:1], alone)
    kept = WithStatistics(method, 1).tell(method.init(begin), [replace(summed([BLOCK]), mean_square=5.25)])
    torch.testing.assert_close(kept.params, found)  # 9/4 + 3 · 4/4 = 5.25


def test_lengths_are_the_same_on_any_number_of_cores():
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(3, 40 * CHUNK + 7, generator=draw)
    block = Updates(("a", "b", "c"), values, torch.tensor([1.0, 2.0, 3.0]))
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        found.append(FedExP().tell(FedExP().init(values[0]), [block]).params)
    torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert square_length(values[0]) == pytest.approx(float(values[0].double().square().sum()), rel=1e-12)


@pytest.mark.parametrize(
    ("rule", "name"), [(median, "median"), (functools.partial(krum, hostile=1), "krum:1")]
)
def test_a_robust_rule_is_refused(rule, name: str):
    with pytest.raises(ConfigError) as error:
        FedExP(aggregate=rule)
    assert str(error.value) == (
        f"fedexp cannot use {name}, because one client could still set the length of its step; use weighted_mean, or another "
        "method, such as nesterov"
    )
    assert FedExP(aggregate=weighted_mean) == FedExP()


@pytest.mark.parametrize("eps", [0, -1.0, float("nan"), "1", None])
def test_an_eps_that_cannot_be(eps):
    with pytest.raises(ConfigError, match=rf"^eps is {eps!r}; give a positive number, such as 0\.001$"):
        FedExP(eps=eps)
