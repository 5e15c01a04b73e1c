"""Sharing out that cannot be, told in words."""

from __future__ import annotations

import pytest
import torch

from data.wording import refused
from feduhb.data import partition as module
from feduhb.data.partition import partition
from feduhb.errors import ConfigError, DataError

Y = torch.arange(100) % 10


@pytest.mark.parametrize("spec", ["foo", "", "IID", "iid:3", "iid:", "foo:2"])
def test_unknown_partition(spec):
    with refused(ConfigError, f"there is no partition {spec!r}; write iid, dirichlet:0.5 or shards:2"):
        partition(Y, spec, 4)


NUMBERLESS = [
    "dirichlet", "dirichlet:", "dirichlet:x", "dirichlet:-1", "dirichlet:0", "dirichlet:nan", "dirichlet:inf",
    "shards", "shards:", "shards:-2", "shards:0", "shards:two",
]  # fmt: skip


@pytest.mark.parametrize("spec", NUMBERLESS)
def test_a_number_is_needed(spec):
    with refused(ConfigError, f"partition {spec!r} needs a positive number; write dirichlet:0.5 or shards:2"):
        partition(Y, spec, 4)


@pytest.mark.parametrize("k", ["1.5", "0.5", "99", "11"])
def test_shards_need_a_whole_number_of_classes(k):
    with refused(ConfigError, f"shards:{k} asks for {k} classes a client; give a whole number of 1 to 10"):
        partition(Y, f"shards:{k}", 4)


@pytest.mark.parametrize("clients", [0, -3])
def test_no_clients(clients):
    with refused(ConfigError, f"clients is {clients}; give 1 or more"):
        partition(Y, "iid", clients)


@pytest.mark.parametrize("size", [0, -3])
def test_no_examples_each(size):
    with refused(ConfigError, f"per_client is {size}; give 1 or more"):
        partition(Y, "iid", 4, per_client=size)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.5", "shards:2"])
def test_more_clients_than_examples(spec):
    with refused(
        DataError, "101 clients with 1 examples each need 101, but the data set has 100; ask for fewer"
    ):
        partition(Y, spec, 101)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.5", "shards:2"])
def test_per_client_too_large(spec):
    with refused(
        DataError, "4 clients with 26 examples each need 104, but the data set has 100; ask for fewer"
    ):
        partition(Y, spec, 4, per_client=26)


def test_a_class_too_small_for_its_quota():
    with refused(
        DataError, "20 examples for everyone need 20 of class ", "but there are 10; lower per_client"
    ):
        partition(Y, "shards:1", 5, per_client=20)


def test_a_class_too_small_for_its_holders():
    y = torch.tensor([0] + [1] * 20)
    with refused(DataError, "class 0 has 1 examples for 4 clients; use fewer clients or fewer classes each"):
        partition(y, "shards:2", 4)


def test_fewer_examples_each_than_classes_each():
    """Two examples cannot be of three classes: better refused than shared out as shards:2."""
    with refused(ConfigError, "shards:3", "per_client"):
        partition(Y, "shards:3", 4, per_client=2)


def test_draws_that_always_leave_somebody_empty(monkeypatch):
    monkeypatch.setattr(module, "TRIES", 5)
    with refused(
        DataError,
        "dirichlet:0.001 left a client empty in 5 draws; use a larger A, fewer clients, or per_client",
    ):
        partition(torch.zeros(100, dtype=torch.int64), "dirichlet:0.001", 20)
