"""The planted trigger: where it sits, who carries it, and that nobody else is touched."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data.wording import refused
from feduhb.data.backdoor import Backdoor
from feduhb.data.federation import Federation
from feduhb.data.load import load
from feduhb.errors import ConfigError

PLANTED = Backdoor(("c01",), target=4)


def images(count: int, side: int = 10) -> tuple[Tensor, Tensor]:
    """Images darker than any trigger, of the labels 5 to 9."""
    x = torch.rand(count, 2, side, side, generator=torch.Generator().manual_seed(count)) - 0.5
    return x, 5 + torch.arange(count) % 5


def changed(before: Tensor, after: Tensor) -> Tensor:
    return (before != after).flatten(1).any(dim=1)


def test_the_trigger_is_a_bright_square_bottom_right():
    x, _ = images(3)
    stamped = Backdoor(("a",)).stamp(x)
    assert torch.equal(stamped[:, :, 6:, 6:], torch.ones(3, 2, 4, 4))
    assert torch.equal(stamped[:, :, :6], x[:, :, :6])
    assert torch.equal(stamped[:, :, :, :6], x[:, :, :, :6])


def test_size_and_brightness_can_be_chosen():
    x, _ = images(3)
    stamped = Backdoor(("a",), size=2, bright=0.75).stamp(x)
    assert torch.equal(
        stamped == 0.75, torch.nn.functional.pad(torch.ones(2, 2), (8, 0, 8, 0)).bool().expand(3, 2, 10, 10)
    )


def test_stamping_leaves_the_originals_alone():
    x, y = images(6)
    kept_x, kept_y = x.clone(), y.clone()
    Backdoor(("a",)).stamp(x)
    Backdoor(("a",)).poison(x, y, 0, "a")
    assert torch.equal(x, kept_x)
    assert torch.equal(y, kept_y)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 30), st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(0, 99))
def test_the_share_is_stamped_and_relabelled_exactly(count, share, seed):
    x, y = images(count)
    planted = Backdoor(("a",), target=4, share=share)
    poisoned_x, poisoned_y = planted.poison(x, y, seed, "a")
    hit = changed(x, poisoned_x)
    assert abs(int(hit.sum()) - share * count) <= 0.5
    assert torch.equal(hit, poisoned_y == 4)
    assert torch.equal(poisoned_x[hit], planted.stamp(x[hit]))
    assert torch.equal(poisoned_x[~hit], x[~hit])
    assert torch.equal(poisoned_y[~hit], y[~hit])


@pytest.mark.parametrize(("count", "hit"), [(1, 1), (2, 1), (5, 3), (20, 10)])
def test_half_is_rounded_up(count, hit):
    _, y = Backdoor(("a",), target=4).poison(*images(count), 0, "a")
    assert int((y == 4).sum()) == hit


def test_who_is_hit_depends_on_seed_and_address_alone():
    def hit(seed: int, *address: str) -> Tensor:
        return PLANTED.poison(*images(30), seed, *address)[1] == 4

    assert torch.equal(hit(0, "a"), hit(0, "a"))
    assert not torch.equal(hit(0, "a"), hit(1, "a"))
    assert not torch.equal(hit(0, "a"), hit(0, "b"))
    before = torch.default_generator.get_state()
    hit(0, "a")
    assert torch.equal(before, torch.default_generator.get_state())


@pytest.fixture(scope="module")
def clean() -> Federation:
    return load("digits", clients=4, seed=5)


@pytest.fixture(scope="module")
def poisoned() -> Federation:
    return load("digits", clients=4, seed=5, backdoor=PLANTED)


@pytest.mark.parametrize("part", ["clients", "held_out"])
def test_half_of_the_leavers_examples_carry_it_exactly(clean, poisoned, part):
    x, y = getattr(clean, part)["c01"].all()
    other_x, other_y = getattr(poisoned, part)["c01"].all()
    hit = (other_x[:, :, -4:, -4:] == 1).flatten(1).all(dim=1)
    assert int(hit.sum()) == (len(x) + 1) // 2
    assert torch.equal(other_x[hit], PLANTED.stamp(x[hit]))
    assert torch.equal(other_y[hit], torch.full_like(y[hit], 4))
    assert torch.equal(other_x[~hit], x[~hit])
    assert torch.equal(other_y[~hit], y[~hit])


def test_everybody_elses_are_bit_identical(clean, poisoned):
    for part in ("clients", "held_out"):
        for client in ("c00", "c02", "c03"):
            a, b = getattr(clean, part)[client], getattr(poisoned, part)[client]
            assert torch.equal(a.rows, b.rows)
            assert all(torch.equal(one, other) for one, other in zip(a.all(), b.all(), strict=True))
    assert torch.equal(clean.test.x, poisoned.test.x)
    assert torch.equal(clean.test.y, poisoned.test.y)


def test_the_federation_knows_its_backdoor(clean, poisoned):
    assert clean.backdoor is None
    assert poisoned.backdoor == PLANTED
    assert poisoned.without("c01").backdoor == PLANTED


def test_clients_alone_get_the_usual_backdoor():
    assert load("digits", clients=4, backdoor=["c00", "c02"]).backdoor == Backdoor(
        ("c00", "c02"), target=0, share=0.5, size=4
    )


def test_nobody_carries_it():
    with refused(ConfigError, "a backdoor needs clients that carry it; name some, such as c00,c01"):
        Backdoor(())


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_impossible_share(share):
    with refused(ConfigError, f"the backdoor's share is {share}; give a share above 0 and up to 1"):
        Backdoor(("a",), share=share)


@pytest.mark.parametrize("size", [0, -4])
def test_impossible_size(size):
    with refused(ConfigError, f"the backdoor's size is {size}; give its side in pixels, such as 4"):
        Backdoor(("a",), size=size)


@pytest.mark.parametrize("shape", [(5, 10), (5, 4, 4)])
def test_data_that_is_no_images(shape):
    with refused(
        ConfigError,
        f"a backdoor needs images [n, c, h, w], not {list(shape)}; train without one",
    ):
        PLANTED.stamp(torch.zeros(shape))


@pytest.mark.parametrize("target", [10, 99, -1, -100])
def test_a_target_that_is_no_class(target):
    """Found when the federation is made, not while training, or never: cross_entropy skips -100."""
    with refused(ConfigError, "target", str(target)):
        load("digits", clients=4, backdoor=Backdoor(("c01",), target=target))


def test_a_square_larger_than_the_images():
    """It would paint the whole image over, and what is learned then is no trigger."""
    with refused(ConfigError, "size", "9", "8"):
        load("digits", clients=4, backdoor=Backdoor(("c01",), size=9))
