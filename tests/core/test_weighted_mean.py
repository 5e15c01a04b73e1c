"""The weighted mean folds a stream: the formula, whatever the blocks, and nothing it was given is changed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.types import Updates
from feduhb.errors import AggregationError
from toys import block_of, quick, summed


def drawn(seed: int, clients: int, size: int, dtype: torch.dtype = torch.float32) -> Updates:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(clients, size, generator=draw, dtype=torch.float64).to(dtype)
    weights = torch.randint(1, 1000, (clients,), generator=draw).to(dtype)
    return Updates(tuple(f"c{i:02}" for i in range(clients)), values, weights)


def cut(whole: Updates, sizes: Sequence[int]) -> list[Updates]:
    """Cut into consecutive blocks of the sizes given, over and over."""
    blocks, start, turn = [], 0, 0
    while start < len(whole.clients):
        end = start + sizes[turn % len(sizes)]
        blocks.append(Updates(whole.clients[start:end], whole.values[start:end], whole.weights[start:end]))
        start, turn = end, turn + 1
    return blocks


def formula(whole: Updates) -> Tensor:
    n, u = whole.weights.double(), whole.values.double()
    return (n[:, None] * u).sum(dim=0) / n.sum()


@quick
@given(
    st.integers(0, 99),
    st.integers(1, 12),
    st.integers(1, 40),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_blocks_do_not_change_a_bit(seed: int, clients: int, size: int, sizes: list[int]):
    whole = drawn(seed, clients, size)
    assert torch.equal(weighted_mean(cut(whole, sizes)), weighted_mean([whole]))


@quick
@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 40))
def test_memory_layout_does_not_change_a_bit(seed: int, clients: int, size: int):
    """Rows of a transposed matrix have strides; summed on another path they would differ in the last bits."""
    whole = drawn(seed, clients, size)
    strided = Updates(whole.clients, whole.values.T.contiguous().T, whole.weights)
    assert torch.equal(weighted_mean([strided]), weighted_mean([whole]))


@quick
@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 20))
def test_it_is_the_formula(seed: int, clients: int, size: int):
    whole = drawn(seed, clients, size, torch.float64)
    torch.testing.assert_close(weighted_mean([whole]), formula(whole), rtol=1e-12, atol=1e-14)


def test_on_paper():
    """1 example says (4, 0), 3 examples say (8, 4): (4 + 24) / 4 = 7 and (0 + 12) / 4 = 3."""
    assert weighted_mean([block_of({"a": [4, 0], "b": [8, 4]}, [1, 3])]).tolist() == [7.0, 3.0]


def test_it_reads_a_stream_once():
    assert weighted_mean(block for block in [block_of({"a": [2.0]}), block_of({"b": [4.0]})]).tolist() == [
        3.0
    ]


@quick
@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 12))
def test_a_presummed_answer_has_the_same_mean(seed: int, clients: int, split: int):
    """Means of parts, weighted by the parts' totals, are the mean of the whole."""
    whole = drawn(seed, clients, 5, torch.float64)
    parts = [summed([part]) for part in cut(whole, [split])]
    torch.testing.assert_close(weighted_mean(parts), formula(whole), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_type_is_kept_whatever_the_type_of_the_weights(dtype: torch.dtype):
    whole = drawn(1, 4, 3, dtype)
    for weights in (whole.weights.to(torch.int64), whole.weights.double(), whole.weights.float()):
        assert weighted_mean([Updates(whole.clients, whole.values, weights)]).dtype is dtype


@pytest.mark.parametrize("blocks", [1, 3])
def test_what_was_given_is_not_changed(blocks: int):
    whole = drawn(3, 6, 4)
    values, weights = whole.values.clone(), whole.weights.clone()
    result = weighted_mean(cut(whole, [6 // blocks]))
    assert torch.equal(whole.values, values)
    assert torch.equal(whole.weights, weights)
    result.zero_()
    assert torch.equal(whole.values, values), "the mean is a tensor of its own"


def test_one_client_alone_is_its_own_mean_and_a_copy():
    alone = block_of({"a": [1.0, 2.0]}, [1])
    result = weighted_mean([alone])
    result += 5
    assert alone.values.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([], id="nobody"),
        pytest.param([Updates((), torch.zeros(0, 3), torch.zeros(0))], id="an empty block"),
        pytest.param([block_of({"a": [1.0]}, [0.0])], id="no examples"),
    ],
)
def test_nothing_to_average(answers: list[Updates]):
    with pytest.raises(AggregationError) as error:
        weighted_mean(answers)
    expected = "no client sent an update to average; check which clients take part"
    assert str(error.value) == expected
