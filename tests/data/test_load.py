"""From a name to a federation: the held-out part, the seeds, the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from data.wording import refused
from feduhb.core.flat import flatten
from feduhb.data import load as module
from feduhb.data.federation import Federation, fingerprint
from feduhb.data.load import FederationSettings, build_federation, load
from feduhb.errors import ConfigError, DataError, RequestError


def digits(**more: Any) -> Federation:
    return load("digits", **{"clients": 5, **more})


def rows(made: Federation) -> dict[str, tuple[list[int], list[int]]]:
    return {c: (made.clients[c].rows.tolist(), made.held_out[c].rows.tolist()) for c in made.clients}


def test_the_usual():
    made = load()
    assert list(made.clients) == [f"c{i:02d}" for i in range(20)]
    assert {len(e) for e in made.clients.values()} == {150}
    assert {len(e) for e in made.held_out.values()} == {50}
    assert len(made.test) == 1000
    assert (made.seed, made.backdoor, made.about) == (0, None, FederationSettings())
    assert sum(p.numel() for p in made.fresh_model().parameters()) == 582_026


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5", "shards:2"])
def test_held_out_rows_are_never_trained_on_and_nobody_elses(partition):
    made = digits(partition=partition, seed=2)
    every = [row for trained, held in rows(made).values() for row in (*trained, *held)]
    assert len(set(every)) == len(every) == 1437


@pytest.mark.parametrize(
    ("share", "held"), [(0.0, 0), (0.25, 25), (0.5, 50), (0.999, 99), (0.29, 29), (0.57, 57)]
)
def test_the_held_out_share(share, held):
    made = digits(per_client=100, held_out=share)
    assert {len(e) for e in made.held_out.values()} == {held}
    assert {len(e) for e in made.clients.values()} == {100 - held}


def test_everybody_keeps_something_to_train_on():
    made = digits(clients=300, held_out=0.9)
    assert min(map(len, made.clients.values())) >= 1


def test_per_client_includes_the_held_out_part():
    made = digits(per_client=40, partition="dirichlet:0.1")
    assert {len(made.clients[c]) + len(made.held_out[c]) for c in made.clients} == {40}


@pytest.mark.parametrize("share", [1.0, 1.5, -0.1, float("nan")])
def test_impossible_held_out_share(share):
    with refused(ConfigError, f"held_out is {share}; give a share of at least 0 and below 1"):
        digits(held_out=share)


def test_same_seed_same_federation_other_seed_another():
    assert rows(digits(seed=3)) == rows(digits(seed=3))
    assert rows(digits(seed=3)) != rows(digits(seed=4))


def test_another_clients_presence_does_not_matter_for_the_held_out_draw(monkeypatch):
    """c01 holds the same rows in two federations, once next to others: the same of them are held out."""

    def dealt(*names: str) -> Federation:
        deal = {"c00": torch.arange(0, 40), "c01": torch.arange(40, 80), "c02": torch.arange(80, 200)}

        def share_out(*_: object, **__: object) -> dict[str, Tensor]:
            return {name: deal[name] for name in names}

        monkeypatch.setattr(module, "partition_rows", share_out)
        return digits(seed=1)

    alone = rows(dealt("c01"))["c01"]
    assert alone == rows(dealt("c00", "c01", "c02"))["c01"] == rows(dealt("c02", "c01"))["c01"]
    assert len(alone[1]) == 10


def test_the_held_out_draw_is_the_clients_own(monkeypatch):
    """Two clients with the same rows hold other rows out: the draw has their name in its address."""
    monkeypatch.setattr(
        module, "partition_rows", lambda *_, **__: {"c00": torch.arange(40), "c01": torch.arange(40)}
    )
    found = rows(digits())
    assert found["c00"][1] != found["c01"][1]


def test_the_held_out_draw_follows_the_seed(monkeypatch):
    """Not only through the partition, which is the same here."""
    monkeypatch.setattr(module, "partition_rows", lambda *_, **__: {"c00": torch.arange(40)})
    assert rows(digits(seed=1)) == rows(digits(seed=1))
    assert rows(digits(seed=1)) != rows(digits(seed=2))


def test_tensors_are_shared_by_everyone():
    made = digits()
    parts = [*made.clients.values(), *made.held_out.values()]
    assert len({e.x.data_ptr() for e in parts}) == 1


def test_the_global_generator_is_left_alone():
    made = nn.Linear(64, 10)
    before = torch.default_generator.get_state()
    digits(model=nn.Sequential(nn.Flatten(), made), backdoor=None)
    assert torch.equal(before, torch.default_generator.get_state())


def test_it_describes_itself_for_a_config():
    made = digits(partition="shards:2", per_client=20, held_out=0.5, model="softmax", backdoor=["c03"])
    assert isinstance(made.about, FederationSettings)
    again = module.build_federation(made.about, made.seed)
    assert rows(again) == rows(made)
    assert torch.equal(again.clients["c03"].x, made.clients["c03"].x)


def test_small_digits_get_the_mlp():
    assert [type(layer) for layer in digits().fresh_model().children()] == [
        nn.Flatten,
        nn.Linear,
        nn.ReLU,
        nn.Linear,
    ]


def test_a_model_of_your_own_cannot_be_described():
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    made = digits(model=own)
    assert made.model is own
    assert made.about is None


def test_a_factory_is_not_passed_over_in_silence():
    """`Federation` takes one; here it may be used or refused, but not be traded for another model."""
    factory: Any = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # noqa: E731
    try:
        made = digits(model=factory)
    except (ConfigError, TypeError):
        return
    assert made.model is factory


def test_the_cnn_cannot_read_small_digits():
    with refused(ConfigError, "the cnn needs images of 16 x 16 or more, not 8 x 8; use 'mlp'"):
        digits(model="cnn")


def test_unknown_names():
    with refused(DataError, "there is no data set 'foo'"):
        load("foo")
    with refused(ConfigError, "there is no model 'foo'"):
        digits(model="foo")
    with refused(ConfigError, "there is no partition 'foo'"):
        digits(partition="foo")


@pytest.mark.parametrize("backdoor", [["c09"], ["c00", "c09"]])
def test_a_backdoor_in_an_unknown_client(backdoor):
    with refused(
        RequestError,
        "the backdoor names client 'c09', which is not in this federation of 5 clients; use ids such as c00",
    ):
        digits(backdoor=backdoor)


def test_a_backdoor_in_nobody():
    with refused(ConfigError, "a backdoor needs clients that carry it"):
        digits(backdoor=[])


def test_a_federation_with_another_seed_is_described_and_made_again_with_the_same_data():
    first = digits(partition="dirichlet:0.5", seed=2, backdoor=["c00"], canaries=["c01"])
    later = first.reseed(5).reseed(7)
    assert isinstance(first.about, FederationSettings)
    assert isinstance(later.about, FederationSettings)
    assert later.about == replace(first.about, seed=2)
    again = build_federation(later.about, 7)
    assert (again.seed, again.about) == (7, later.about)
    assert again.fingerprints() == later.fingerprints() == first.fingerprints()
    for client, held in first.held_out.items():
        assert fingerprint(again.held_out[client]) == fingerprint(held)
    assert torch.equal(flatten(again.fresh_model()), flatten(later.fresh_model()))
    assert again.fingerprints() != digits(partition="dirichlet:0.5", seed=7).fingerprints()


def test_public_examples_are_taken_from_the_training_set_before_it_is_shared_out():
    held = load("digits", clients=4, seed=3, public=300)
    assert load("digits", clients=4, seed=3).public is None
    assert read_public(held).shape == (300, 1, 8, 8)
    everyone = [e for part in (held.clients, held.held_out) for e in part.values()]
    assert sum(map(len, everyone)) == 1437 - 300
    rows = torch.cat([e.rows for e in everyone])
    assert len(rows.unique()) == len(rows)
    source = read_tensor(next(iter(held.clients.values())).x)
    rest = torch.tensor([row for row in range(1437) if row not in {*rows.tolist()}])
    assert torch.equal(read_public(held), source[rest])
    assert torch.equal(read_public(held.without(["c00"])), read_public(held))
    other = load("digits", clients=4, seed=4, public=300)
    assert not torch.equal(read_public(other), read_public(held))


def read_tensor(inputs: object) -> torch.Tensor:
    assert isinstance(inputs, torch.Tensor)
    return inputs


def read_public(federation: Federation) -> torch.Tensor:
    return read_tensor(federation.public)


@pytest.mark.parametrize(
    ("public", "says"),
    [(0, "public is 0; give 1 or more"), (1437, "public is 1437, but the data set has 1437")],
)
def test_too_many_or_no_public_examples_are_refused(public, says):
    with pytest.raises(ConfigError, match=says):
        load("digits", clients=4, public=public)
