"""Partitions: no row twice, no client empty, the same shares for the same seed; and refusals in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from data.wording import refused
from feduhb.data import partition as module
from feduhb.data.partition import make_client_ids, partition_rows
from feduhb.errors import ConfigError, DataError

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
    shares = partition_rows(y, spec, clients, seed=seed)
    assert all_rows(shares) == list(range(len(y)))
    assert min(map(len, shares.values())) > 0


@quick
@given(labels(), st.integers(1, 8), seeds)
def test_iid_sizes_differ_by_one_at_most(y, clients, seed):
    sizes = [len(rows) for rows in partition_rows(y, "iid", clients, seed=seed).values()]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(labels(), st.integers(1, 5), st.integers(1, 8), seeds)
def test_shards_give_everyone_exactly_k_classes_and_all_their_rows(y, k, clients, seed):
    assume(k <= len(y.unique()))
    shares = partition_rows(y, f"shards:{k}", clients, seed=seed)
    held = [set(y[rows].tolist()) for rows in shares.values()]
    assert {len(classes) for classes in held} == {k}
    assert (
        all_rows(shares) == torch.isin(y, torch.tensor(sorted(set.union(*held)))).nonzero().flatten().tolist()
    )


@quick
@given(labels(), st.integers(1, 3), st.integers(1, 8), seeds)
def test_shards_deal_the_classes_evenly(y, k, clients, seed):
    assume(k <= len(y.unique()))
    shares = partition_rows(y, f"shards:{k}", clients, seed=seed)
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
    shares = partition_rows(y, spec, clients, per_client=size, seed=seed)
    assert [len(rows) for rows in shares.values()] == [size] * clients
    rows = all_rows(shares)
    assert len(set(rows)) == len(rows)


@quick
@given(labels(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 8), seeds)
def test_shards_with_per_client_give_equal_sizes_of_exactly_k_classes(y, k, clients, size, seed):
    assume(k <= min(size, len(y.unique())) and clients * -(-size // k) <= int(y.bincount().min()))
    shares = partition_rows(y, f"shards:{k}", clients, per_client=size, seed=seed)
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
    once, again, other = (partition_rows(y, spec, 5, per_client=per_client, seed=s) for s in (7, 7, 8))
    assert same(once, again)
    assert not same(once, other)


@pytest.mark.parametrize("spec", SPECS)
def test_torchs_and_numpys_global_generators_are_left_alone(spec):
    before = torch.default_generator.get_state()
    partition_rows(torch.arange(60) % 6, spec, 4)
    assert torch.equal(before, torch.default_generator.get_state())


@pytest.mark.parametrize("per_client", [None, 40])
def test_smaller_a_is_more_skewed(per_client):
    y = torch.arange(1000) % 10

    def mean_entropy(alpha: float) -> float:
        shares = [
            partition_rows(y, f"dirichlet:{alpha}", 10, per_client=per_client, seed=s) for s in range(5)
        ]
        return sum(entropy(y, rows) for share in shares for rows in share.values()) / 50

    skewed, middling, even = mean_entropy(0.1), mean_entropy(1.0), mean_entropy(100.0)
    assert skewed + 0.3 < middling
    assert middling + 0.3 < even


@pytest.mark.parametrize("spec", SPECS)
def test_rows_are_sorted_positions(spec):
    for rows in partition_rows(torch.arange(60) % 6, spec, 4).values():
        assert rows.dtype == torch.int64
        assert torch.equal(rows, rows.sort().values)


def test_where_a_class_has_run_out_the_fullest_fills_in():
    y = torch.tensor([0] * 2 + [1] * 18)
    shares = partition_rows(y, "dirichlet:0.01", 4, per_client=5)
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
    names = make_client_ids(count)
    assert (names[0], names[-1], len(names)) == (first, last, count)
    assert names == sorted(set(names))


def test_clients_are_named_in_order():
    assert list(partition_rows(torch.arange(6) % 2, "iid", 3)) == ["c00", "c01", "c02"]


def test_one_client_gets_everything():
    y = torch.arange(12) % 3
    for spec in ("iid", "dirichlet:0.1", "shards:3"):
        assert partition_rows(y, spec, 1)["c00"].tolist() == list(range(12))


Y = torch.arange(100) % 10


@pytest.mark.parametrize("spec", ["foo", "", "IID", "iid:3", "iid:", "foo:2"])
def test_unknown_partition(spec):
    with refused(ConfigError, f"there is no partition {spec!r}; write iid, dirichlet:0.5 or shards:2"):
        partition_rows(Y, spec, 4)


NUMBERLESS = [
    "dirichlet", "dirichlet:", "dirichlet:x", "dirichlet:-1", "dirichlet:0", "dirichlet:nan", "dirichlet:inf",
    "shards", "shards:", "shards:-2", "shards:0", "shards:two",
]  # fmt: skip


@pytest.mark.parametrize("spec", NUMBERLESS)
def test_a_number_is_needed(spec):
    with refused(ConfigError, f"partition {spec!r} needs a positive number; write dirichlet:0.5 or shards:2"):
        partition_rows(Y, spec, 4)


@pytest.mark.parametrize("k", ["1.5", "0.5", "99", "11"])
def test_shards_need_a_whole_number_of_classes(k):
    with refused(
        ConfigError, f"shards:{k} cannot give each client {k} classes; write a whole number from 1 to 10"
    ):
        partition_rows(Y, f"shards:{k}", 4)


@pytest.mark.parametrize("clients", [0, -3])
def test_no_clients(clients):
    with refused(ConfigError, f"clients is {clients}; give 1 or more"):
        partition_rows(Y, "iid", clients)


@pytest.mark.parametrize("size", [0, -3])
def test_no_examples_each(size):
    with refused(ConfigError, f"per_client is {size}; give 1 or more"):
        partition_rows(Y, "iid", 4, per_client=size)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.5", "shards:2"])
def test_more_clients_than_examples(spec):
    with refused(
        DataError,
        "101 clients with 1 examples each need 101 examples, but the data set has 100; lower clients or per_client",
    ):
        partition_rows(Y, spec, 101)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.5", "shards:2"])
def test_per_client_too_large(spec):
    with refused(
        DataError,
        "4 clients with 26 examples each need 104 examples, but the data set has 100; lower clients or per_client",
    ):
        partition_rows(Y, spec, 4, per_client=26)


def test_a_class_too_small_for_its_quota():
    with refused(
        DataError, "per_client = 20 needs 20 examples of class ", "but there are 10; lower per_client"
    ):
        partition_rows(Y, "shards:1", 5, per_client=20)


def test_a_class_too_small_for_its_holders():
    y = torch.tensor([0] + [1] * 20)
    with refused(DataError, "class 0 has 1 examples for 4 clients; use fewer clients or classes"):
        partition_rows(y, "shards:2", 4)


def test_fewer_examples_each_than_classes_each():
    """Two examples cannot be of three classes: better refused than shared out as shards:2."""
    with refused(ConfigError, "shards:3", "per_client"):
        partition_rows(Y, "shards:3", 4, per_client=2)


def test_draws_that_always_leave_somebody_empty(monkeypatch):
    monkeypatch.setattr(module, "MOST_DRAWS", 5)
    with refused(
        DataError,
        "dirichlet:0.001 leaves a client without examples; use a larger number, fewer clients, or per_client",
    ):
        partition_rows(torch.zeros(100, dtype=torch.int64), "dirichlet:0.001", 20)
