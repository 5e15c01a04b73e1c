"""What every way of sharing out must keep: no row twice, nobody empty, the same again for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from feduhb.data.partition import client_names, partition

SPECS = ["iid", "dirichlet:0.5", "dirichlet:100", "shards:1", "shards:2"]
quick = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**31)


@st.composite
def labels(draw: Callable[..., int]) -> Tensor:
    """Labels of 2 to 5 classes with 8 to 20 examples each, in no order."""
    sizes = [draw(st.integers(8, 20)) for _ in range(draw(st.integers(2, 5)))]
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(draw(seeds)))]


def all_rows(shares: Mapping[str, Tensor]) -> list[int]:
    return sorted(torch.cat(list(shares.values())).tolist())


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[c], b[c]) for c in a)


def entropy(y: Tensor, rows: Tensor) -> float:
    """Of a client's classes, in nats."""
    p = torch.bincount(y[rows]).double() / len(rows)
    return float(-(p[p > 0] * p[p > 0].log()).sum())


@quick
@given(labels(), st.sampled_from(["iid", "dirichlet:0.5", "dirichlet:100"]), st.integers(1, 4), seeds)
def test_all_rows_are_shared_out_once(y, spec, clients, seed):
    shares = partition(y, spec, clients, seed=seed)
    assert all_rows(shares) == list(range(len(y)))
    assert min(map(len, shares.values())) > 0


@quick
@given(labels(), st.integers(1, 8), seeds)
def test_iid_sizes_differ_by_one_at_most(y, clients, seed):
    sizes = [len(rows) for rows in partition(y, "iid", clients, seed=seed).values()]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(labels(), st.integers(1, 5), st.integers(1, 8), seeds)
def test_shards_give_everyone_exactly_k_classes_and_all_their_rows(y, k, clients, seed):
    assume(k <= len(y.unique()))
    shares = partition(y, f"shards:{k}", clients, seed=seed)
    held = [set(y[rows].tolist()) for rows in shares.values()]
    assert {len(classes) for classes in held} == {k}
    assert (
        all_rows(shares) == torch.isin(y, torch.tensor(sorted(set.union(*held)))).nonzero().flatten().tolist()
    )


@quick
@given(labels(), st.integers(1, 3), st.integers(1, 8), seeds)
def test_shards_deal_the_classes_evenly(y, k, clients, seed):
    assume(k <= len(y.unique()))
    shares = partition(y, f"shards:{k}", clients, seed=seed)
    holders = [sum(int((y[rows] == c).any()) for rows in shares.values()) for c in y.unique()]
    assert max(holders) - min(holders) <= 1


@quick
@given(
    labels(),
    st.sampled_from(["iid", "dirichlet:0.01", "dirichlet:0.5", "dirichlet:100"]),
    st.integers(1, 8),
    seeds,
    st.data(),
)
def test_per_client_gives_equal_sizes_and_no_row_twice(y, spec, clients, seed, data):
    size = data.draw(st.integers(1, len(y) // clients))
    shares = partition(y, spec, clients, per_client=size, seed=seed)
    assert [len(rows) for rows in shares.values()] == [size] * clients
    rows = all_rows(shares)
    assert len(set(rows)) == len(rows)


@quick
@given(labels(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 8), seeds)
def test_shards_with_per_client_give_equal_sizes_of_exactly_k_classes(y, k, clients, size, seed):
    assume(k <= min(size, len(y.unique())) and clients * -(-size // k) <= int(y.bincount().min()))
    shares = partition(y, f"shards:{k}", clients, per_client=size, seed=seed)
    assert [len(rows) for rows in shares.values()] == [size] * clients
    for rows in shares.values():
        counts = y[rows].bincount()
        assert int((counts > 0).sum()) == k
        assert int(counts.max() - counts[counts > 0].min()) <= 1
    rows = all_rows(shares)
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("per_client", [None, 6])
@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_shares_other_seed_others(spec, per_client):
    y = torch.arange(120) % 6
    once, again, other = (partition(y, spec, 5, per_client=per_client, seed=s) for s in (7, 7, 8))
    assert same(once, again)
    assert not same(once, other)


@pytest.mark.parametrize("spec", SPECS)
def test_torchs_and_numpys_global_generators_are_left_alone(spec):
    before = torch.default_generator.get_state()
    partition(torch.arange(60) % 6, spec, 4)
    assert torch.equal(before, torch.default_generator.get_state())


@pytest.mark.parametrize("per_client", [None, 40])
def test_smaller_a_is_more_skewed(per_client):
    y = torch.arange(1000) % 10

    def mean_entropy(alpha: float) -> float:
        shares = [partition(y, f"dirichlet:{alpha}", 10, per_client=per_client, seed=s) for s in range(5)]
        return sum(entropy(y, rows) for share in shares for rows in share.values()) / 50

    skewed, middling, even = mean_entropy(0.1), mean_entropy(1.0), mean_entropy(100.0)
    assert skewed + 0.3 < middling
    assert middling + 0.3 < even


@pytest.mark.parametrize("spec", SPECS)
def test_rows_are_sorted_positions(spec):
    for rows in partition(torch.arange(60) % 6, spec, 4).values():
        assert rows.dtype == torch.int64
        assert torch.equal(rows, rows.sort().values)


def test_where_a_class_has_run_out_the_fullest_fills_in():
    y = torch.tensor([0] * 2 + [1] * 18)
    shares = partition(y, "dirichlet:0.01", 4, per_client=5)
    assert all_rows(shares) == list(range(20))


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [
        (1, "c00", "c00"),
        (20, "c00", "c19"),
        (100, "c00", "c99"),
        (101, "c000", "c100"),
        (1001, "c0000", "c1000"),
    ],
)
def test_names_are_as_wide_as_the_last_needs_and_sort_in_order(count, first, last):
    names = client_names(count)
    assert (names[0], names[-1], len(names)) == (first, last, count)
    assert names == sorted(set(names))


def test_clients_are_named_in_order():
    assert list(partition(torch.arange(6) % 2, "iid", 3)) == ["c00", "c01", "c02"]


def test_one_client_gets_everything():
    y = torch.arange(12) % 3
    for spec in ("iid", "dirichlet:0.1", "shards:3"):
        assert partition(y, spec, 1)["c00"].tolist() == list(range(12))
