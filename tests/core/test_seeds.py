"""Randomness has an address: the same in every process, another for every address, and nobody else's."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from feduhb.core.flat import draw_model, flatten
from feduhb.core.seeds import fixed_draws, generator, sample_clients, seed_for
from feduhb.errors import ConfigError
from feduhb.methods import FedUHB
from feduhb.runs.loop import run
from toys import quadratics, quick

addresses = st.lists(st.text(st.characters(codec="utf-8"), max_size=6) | st.integers(-5, 10**12), max_size=5)
rosters = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=2, max_size=10, unique=True)


def kinds(address: list[str | int]) -> list[tuple[type, str | int]]:
    return [(type(part), part) for part in address]


@pytest.mark.slow
@quick
@given(st.integers(-3, 2**63), addresses)
def test_seeds_have_63_bits(seed: int, address: list[str | int]):
    assert 0 <= seed_for(seed, *address) < 2**63
    generator(seed, *address)  # torch takes them all


@quick
@given(addresses, addresses)
def test_other_addresses_have_other_seeds(one: list[str | int], other: list[str | int]):
    assume(kinds(one) != kinds(other))
    assert seed_for(0, *one) != seed_for(0, *other)


def test_addresses_that_look_alike_when_written_down():
    alike = [
        ("1",),
        (1,),
        ("a", "bc"),
        ("ab", "c"),
        ("abc",),
        ("a", "b", "c"),
        ("a\x1fstr:1:b",),
        ("a", "b"),
        ("",),
        ("", ""),
        (),
        ("int:1:1",),
        (1, 1),
        (11,),
        ("a", 1),
        ("a1",),
        (1, "a"),
        (-1,),
        ("-1",),
    ]
    assert len({seed_for(7, *address) for address in alike}) == len(alike)
    assert seed_for(7, 1) != seed_for(71)
    assert seed_for(7) != seed_for(8)


def test_an_equal_client_id_has_an_equal_seed():
    """Ids out of a numpy array are str too: the same client must draw the same after a resume from JSON."""
    client = np.array(["ward-3"])[0]
    assert isinstance(client, str)
    assert seed_for(0, client) == seed_for(0, "ward-3")


@pytest.mark.slow
def test_another_process_gives_the_same_seed():
    program = "from feduhb.core.seeds import seed_for; print(seed_for(3, 'client', 'Zoë', 12, 0))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "1"},  # this process has another one
    )
    assert int(done.stdout) == seed_for(3, "client", "Zoë", 12, 0)


def test_generators_are_apart_and_repeat():
    first = torch.rand(4, generator=generator(0, "a", 1))
    assert torch.equal(first, torch.rand(4, generator=generator(0, "a", 1)))
    assert not torch.equal(first, torch.rand(4, generator=generator(0, "a", 2)))
    assert not torch.equal(first, torch.rand(4, generator=generator(1, "a", 1)))


@quick
@given(rosters, st.integers(0, 50), st.data())
def test_a_leaver_does_not_change_the_choice_among_the_others(
    clients: list[str], round: int, data: st.DataObject
):
    count = data.draw(st.integers(1, len(clients) - 1))
    leaver = data.draw(st.sampled_from(clients))
    before = sample_clients(5, round, clients, count)
    after = sample_clients(5, round, [c for c in clients if c != leaver], count)
    if leaver not in before:
        assert after == before
    else:
        assert after[: count - 1] == tuple(c for c in before if c != leaver)
        assert len(set(after) - set(before)) == 1


@quick
@given(rosters, st.integers(0, 50), st.data())
def test_the_choice_does_not_depend_on_the_order(clients: list[str], round: int, data: st.DataObject):
    count = data.draw(st.integers(1, len(clients)))
    shuffled = data.draw(st.permutations(clients))
    assert sample_clients(0, round, shuffled, count) == sample_clients(0, round, clients, count)


@quick
@given(rosters, st.integers(0, 50), st.data())
def test_the_choice_has_the_size_asked_for_and_no_strangers(
    clients: list[str], round: int, data: st.DataObject
):
    count = data.draw(st.integers(1, len(clients)))
    chosen = sample_clients(1, round, clients, count)
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= set(clients)


def test_every_client_gets_a_turn_and_about_its_share():
    """Over 600 rounds 2 of 6 are chosen 200 times each; five standard deviations of B(600, 1/3) are 58."""
    clients = list("abcdef")
    turns = [c for t in range(600) for c in sample_clients(0, t, clients, 2)]
    assert all(abs(turns.count(c) - 200) < 58 for c in clients)
    assert {sample_clients(0, t, clients, 2) for t in range(9)} != {
        sample_clients(1, t, clients, 2) for t in range(9)
    }


@pytest.mark.parametrize("count", [0, 4, -1])
def test_a_count_that_cannot_be(count: int):
    with pytest.raises(ConfigError) as error:
        sample_clients(0, 0, ["a", "b", "c"], count)
    assert str(error.value) == f"clients_per_round is {count}; give 1 to 3, the number of clients"


def test_fixed_draws_repeat_and_give_the_generator_back():
    before = torch.default_generator.get_state()
    with fixed_draws(1, "x"):
        first = torch.rand(3)
    with fixed_draws(1, "x"):
        assert torch.equal(torch.rand(3), first)
    with fixed_draws(1, "y"):
        assert not torch.equal(torch.rand(3), first)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_fixed_draws_nest():
    with fixed_draws(1, "x"):
        alone = torch.rand(3)
    with fixed_draws(1, "x"):
        with fixed_draws(2, "y"):
            torch.rand(5)
        assert torch.equal(torch.rand(3), alone)


def test_fixed_draws_give_the_generator_back_after_an_error():
    def draw_and_fail() -> None:
        with fixed_draws(1, "x"):
            torch.rand(3)
            raise KeyError

    before = torch.default_generator.get_state()
    with pytest.raises(KeyError):
        draw_and_fail()
    assert torch.equal(torch.default_generator.get_state(), before)


def test_no_call_of_the_library_touches_the_global_generators():
    source = torch.nn.Linear(2, 1)
    ours, python = torch.default_generator.get_state(), random.getstate()
    model = draw_model(source, seed=3)
    draw_model(lambda: torch.nn.Linear(2, 1), seed=3)
    sample_clients(0, 0, ["a", "b"], 1)
    torch.rand(2, generator=generator(0, "a"))
    method = FedUHB(epochs=1)
    list(run(method, quadratics(), ["a", "b"], method.init(flatten(model).double()), rounds=2))
    assert torch.equal(torch.default_generator.get_state(), ours)
    assert random.getstate() == python
