"""Median, trimmed mean and Krum against slow versions of themselves, and against hostile clients."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from feduhb.core.aggregate import Aggregate, geometric_median, krum, median, trimmed_mean
from feduhb.core.types import Updates
from feduhb.errors import AggregationError, ConfigError
from toys import block_of, quick, summed

ROBUST: list[Aggregate] = [median, trimmed_mean, krum, geometric_median]
cases = st.tuples(st.integers(0, 999), st.integers(3, 11), st.integers(1, 6))


def drawn(seed: int, clients: int, size: int, block: int = 4) -> tuple[np.ndarray, list[Updates]]:
    values = np.random.default_rng(seed).normal(size=(clients, size))
    rows = torch.from_numpy(values.copy())
    starts = range(0, clients, block)
    names = [f"c{i:02}" for i in range(clients)]
    blocks = [
        Updates(tuple(names[s : s + block]), rows[s : s + block], torch.ones(len(names[s : s + block])))
        for s in starts
    ]
    return values, blocks


@quick
@given(cases)
def test_median_is_numpys(case: tuple[int, int, int]):
    values, blocks = drawn(*case)
    np.testing.assert_allclose(median(blocks).numpy(), np.median(values, axis=0), rtol=1e-15)


def test_median_on_paper():
    odd = {"a": [1.0, -5.0], "b": [100.0, 0.0], "c": [2.0, 7.0]}
    assert median([block_of(odd)]).tolist() == [2.0, 0.0]
    assert median([block_of({**odd, "d": [3.0, 1.0]})]).tolist() == [2.5, 0.5]
    assert median([block_of({"a": [4.0]})]).tolist() == [4.0]


def test_median_counts_every_client_once_whatever_it_holds():
    assert median([block_of({"a": [1.0], "b": [2.0], "c": [9.0]}, [1, 1, 10_000])]).tolist() == [2.0]


@quick
@given(cases, st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.34, 0.4, 0.49]))
def test_trimmed_mean_is_scipys_wherever_that_trims(case: tuple[int, int, int], trim: float):
    """If the share is less than one client, scipy trims none, and trimmed_mean one at each end."""
    values, blocks = drawn(*case)
    share = trim if trim == 0 or int(trim * case[1]) else 1 / case[1]
    expected = stats.trim_mean(values, share + 1e-12 * (share != trim), axis=0)
    np.testing.assert_allclose(trimmed_mean(blocks, trim=trim).numpy(), expected, rtol=1e-12, atol=1e-15)


def test_trimmed_mean_on_paper():
    """0, 1, 2, 3, 1000 without one at each end: 2; two clients are too few to trim; 0 is the plain mean."""
    five = block_of({"a": [0.0], "b": [1.0], "c": [1000.0], "d": [2.0], "e": [3.0]})
    assert trimmed_mean([five], trim=0.2).tolist() == [2.0]
    assert trimmed_mean([five]).tolist() == [2.0]
    assert trimmed_mean([five], trim=0.4).tolist() == [2.0]
    assert trimmed_mean([five], trim=0.0).tolist() == [201.2]
    assert trimmed_mean([block_of({"a": [0.0], "b": [10.0]})], trim=0.4).tolist() == [5.0]


@pytest.mark.parametrize("trim", [-0.1, 0.5, 0.7, float("nan")])
def test_trim_that_cannot_be(trim: float):
    with pytest.raises(ConfigError) as error:
        trimmed_mean([block_of({"a": [1.0]})], trim=trim)
    assert str(error.value) == f"trimmed_mean's trim is {trim}; give a share of at least 0 and below 0.5"


def naive_krum(values: np.ndarray, hostile: int) -> int:
    """Return the row with the smallest sum of squared distances to its C - f - 2 nearest rows, by plain loops."""
    count = len(values)
    scores = []
    for i in range(count):
        apart = sorted(
            sum((values[i][p] - values[j][p]) ** 2 for p in range(values.shape[1]))
            for j in range(count)
            if j != i
        )
        scores.append(sum(apart[: count - hostile - 2]))
    return int(np.argmin(scores))


@quick
@given(cases, st.data())
def test_krum_is_the_naive_one(case: tuple[int, int, int], data: st.DataObject):
    values, blocks = drawn(*case)
    most = (case[1] - 3) // 2
    hostile = data.draw(st.none() | st.integers(0, most))
    chosen = values[naive_krum(values, most if hostile is None else hostile)]
    np.testing.assert_array_equal(krum(blocks, hostile=hostile).numpy(), chosen)


def test_krum_on_paper():
    """-2, 0, 1, 3, 100 with f = 1 look at 2 neighbours: 13, 1+4=5, 1+4=5, 13, far: the first of the tie."""
    rows = block_of({"a": [-2.0], "b": [0.0], "c": [1.0], "d": [3.0], "e": [100.0]})
    assert krum([rows], hostile=1).tolist() == [0.0]


@quick
@given(st.integers(0, 99), st.integers(1, 4), st.integers(1, 5))
def test_krum_picks_an_honest_update_when_the_hostile_are_far_off(seed: int, hostile: int, size: int):
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(hostile + 3, size))
    values = np.concatenate([honest, 1e4 * rng.normal(size=(hostile, size)) + 1e3])[
        rng.permutation(2 * hostile + 3)
    ]
    block = Updates(tuple(map(str, range(len(values)))), torch.from_numpy(values), torch.ones(len(values)))
    chosen = krum([block], hostile=hostile).numpy()
    assert any(np.array_equal(chosen, row) for row in honest)


def test_krum_gives_a_copy():
    rows = block_of({"a": [1.0], "b": [1.0], "c": [1.0]})
    krum([rows]).zero_()
    assert rows.values.tolist() == [[1.0], [1.0], [1.0]]


@pytest.mark.parametrize(
    ("clients", "hostile", "words"),
    [
        (2, None, "krum needs 3 updates for 0 hostile clients, but received 2; use more clients, or median"),
        (6, 2, "krum needs 7 updates for 2 hostile clients, but received 6; use more clients, or median"),
    ],
)
def test_krum_with_too_few_answers(clients: int, hostile: int | None, words: str):
    with pytest.raises(AggregationError) as error:
        krum([block_of({str(i): [float(i)] for i in range(clients)})], hostile=hostile)
    assert str(error.value) == words


def test_krum_with_a_negative_number_of_hostile_clients_says_so():
    """Ten answers came, and three would do: the fault is the setting, so the words must name it."""
    with pytest.raises((ConfigError, AggregationError), match=r"-1"):
        krum([block_of({str(i): [float(i)] for i in range(10)})], hostile=-1)


@pytest.mark.parametrize("rule", ROBUST)
def test_robust_rules_refuse_a_presummed_answer_in_words(rule: Aggregate):
    total = summed([block_of({"a": [1.0], "b": [2.0], "c": [3.0]})])
    with pytest.raises(AggregationError) as error:
        rule([total])
    name = getattr(rule, "__name__", "")
    assert str(error.value) == (
        f"{name} needs every client's update, but received only their sum; "
        "use weighted_mean under secure aggregation"
    )


@pytest.mark.parametrize("rule", ROBUST)
def test_robust_rules_say_when_nobody_answered(rule: Aggregate):
    with pytest.raises(AggregationError) as error:
        rule([])
    name = getattr(rule, "__name__", "")
    assert str(error.value) == f"{name} received no update to combine; check which clients take part"


@pytest.mark.parametrize("rule", ROBUST)
def test_robust_rules_take_an_empty_block_for_nobody(rule: Aggregate):
    with pytest.raises(AggregationError):
        rule([Updates((), torch.zeros(0, 2), torch.zeros(0))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "rule", [*ROBUST, functools.partial(trimmed_mean, trim=0.3), functools.partial(krum, hostile=1)]
)
def test_robust_rules_change_nothing_and_keep_the_type(rule: Aggregate, dtype: torch.dtype):
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3))).to(dtype)
    block = Updates(tuple("abcdef"), values.clone(), torch.arange(1.0, 7.0))
    result = rule([block])
    assert torch.equal(block.values, values)
    assert torch.equal(block.weights, torch.arange(1.0, 7.0))
    assert (result.dtype, result.shape) == (dtype, (3,))


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("block", [1, 2, 7])
def test_robust_rules_do_not_see_blocks(rule: Aggregate, block: int):
    _, blocks = drawn(5, 7, 4, block)
    _, whole = drawn(5, 7, 4, 7)
    assert torch.equal(rule(blocks), rule(whole))
