"""Random numbers inside a training step: uniform, at an address, the same whatever else is in the batch."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from feduhb.core.draws import augment_batch, draw_at, draw_uniform, key_dropout, make_key
from feduhb.core.local import NUMBERS
from feduhb.core.seeds import seed_for
from toys import quick

CPU = torch.device("cpu")
WHOLE = (1 << 64) - 1


def draw(key: int, *shape: int, layer: str = "drop", before: int = 0) -> Tensor:
    """The numbers of a layer at a step's key, after some earlier draws of that layer in the step."""
    with draw_at(key):
        for _ in range(before):
            draw_uniform(layer, (1,), CPU)
        return draw_uniform(layer, shape, CPU)


def mix(z: int) -> int:
    """SplitMix64's mixing function, in whole numbers modulo 2^64, with the constants as published."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WHOLE
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WHOLE
    return z ^ (z >> 31)


def number_at(key: int, layer: str, call: int, *place: int) -> float:
    """The number at a place of a draw, by the definition."""
    z = mix(key ^ seed_for(call, layer))
    for axis, index in enumerate(place):
        z += index * (seed_for(axis, "axis") | 1)
    return (mix(z & WHOLE) >> 40) / 2**24


@quick
@given(
    key=st.integers(0, 2**63 - 1),
    layer=st.text(max_size=5),
    call=st.integers(0, 3),
    place=st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2)),
)
def test_the_numbers_are_those_of_splitmix64(key, layer, call, place):
    assert float(draw(key, 4, 5, 3, layer=layer, before=call)[place]) == number_at(key, layer, call, *place)


def test_the_mixing_function_has_the_published_values():
    """The first three outputs of SplitMix64 with seed 1234567, from its reference implementation in C."""
    golden = 0x9E3779B97F4A7C15
    outputs = [mix((1234567 + i * golden) & WHOLE) for i in (1, 2, 3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("key", [0, 1, make_key(0, "ant", 0, 0, 0), make_key(9, "bee", 3, 1, 2)])
def test_the_numbers_are_uniform(key):
    """χ² of 100,000 numbers in 256 bins has mean 255 and deviation √510; rows and columns are even, too."""
    found = draw(key, 400, 250)
    assert found.dtype is torch.float32
    assert float(found.min()) >= 0
    assert float(found.max()) < 1
    for some in (
        found,
        found[:, :1],
        found[:1],
        found[:, 1:] - found[:, :-1] + (found[:, 1:] < found[:, :-1]),
    ):
        bins, count = (256, 255.0) if some.numel() > 10_000 else (16, 15.0)
        counts = torch.histc(some, bins, 0, 1)
        chi = float(((counts - some.numel() / bins) ** 2).sum() / (some.numel() / bins))
        assert abs(chi - count) < 5 * math.sqrt(2 * count)


def correlate(a: Tensor, b: Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]))


def test_every_part_of_the_address_gives_other_numbers_that_do_not_go_together():
    """The correlation of n independent numbers has the deviation 1/√n."""
    home = make_key(0, "ant", 0, 0, 0)
    others = {
        "seed": make_key(1, "ant", 0, 0, 0), "client": make_key(0, "bee", 0, 0, 0), "round": make_key(0, "ant", 1, 0, 0),
        "epoch": make_key(0, "ant", 0, 1, 0), "step": make_key(0, "ant", 0, 0, 1),
    }  # fmt: skip
    base = draw(home, 100, 100)
    found = {name: draw(key, 100, 100) for name, key in others.items()}
    found |= {"layer": draw(home, 100, 100, layer="other"), "call": draw(home, 100, 100, before=1)}
    found |= {"turned": base.T, "next row": base.roll(1, 0), "next column": base.roll(1, 1)}
    for name, some in found.items():
        assert correlate(base, some) < 0.05, name
    assert len({*others.values(), home}) == 6


def test_an_address_gives_the_same_numbers_again():
    key = make_key(3, "ant", 1, 2, 0)
    first = draw(key, 5, 4)
    torch.rand(3)
    draw(key + 1, 9)
    assert torch.equal(draw(key, 5, 4), first)


@quick
@given(rows=st.integers(1, 9), more=st.integers(0, 9), wider=st.integers(0, 5))
def test_a_row_has_the_same_numbers_in_a_padded_batch(rows, more, wider):
    assert torch.equal(draw(7, rows + more, 6 + wider)[:rows, :6], draw(7, rows, 6))


def test_other_layers_do_not_move_a_layers_numbers():
    with draw_at(5):
        draw_uniform("first", (9,), CPU)
        after = draw_uniform("second", (4,), CPU)
    assert torch.equal(after, draw(5, 4, layer="second"))


def test_layers_of_a_step_inside_another_have_their_own():
    with draw_at(1):
        outer = draw_uniform("drop", (4,), CPU)
        with draw_at(2):
            inner = draw_uniform("drop", (4,), CPU)
        again = draw_uniform("drop", (4,), CPU)
    assert torch.equal(outer, draw(1, 4))
    assert torch.equal(inner, draw(2, 4))
    assert torch.equal(again, draw(1, 4, before=1))


def test_no_global_generator_is_used():
    before = torch.default_generator.get_state()
    keyed = key_dropout(nn.Sequential(nn.Dropout(0.5)))
    with draw_at(3):
        keyed(torch.ones(4, 4))
    assert torch.equal(before, torch.default_generator.get_state())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_dropout_keeps_the_mean(p):
    """n numbers, kept with 1 - p and divided by it, have the mean 1 and the deviation √(p / (1 - p) / n)."""
    keyed, ones = key_dropout(nn.Dropout(p)), torch.ones(200, 300)
    with draw_at(make_key(0, "ant", 0, 0, 0)):
        out = keyed(ones)
    assert {*out.unique().tolist()} == {0.0, float(torch.tensor(1.0) / (1 - p))}
    assert abs(float(out.mean()) - 1) < 4 * math.sqrt(p / (1 - p) / ones.numel())


def test_dropout_drops_where_the_number_is_below_p():
    keyed = key_dropout(nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.3)))[1]  # pyright: ignore[reportIndexIssue]
    with draw_at(11):
        out = keyed(torch.ones(5, 6))
    assert torch.equal(out != 0, draw(11, 5, 6, layer="1") >= 0.3)


def test_dropout_of_channels_drops_whole_ones():
    for kind, size in ((nn.Dropout1d, (5,)), (nn.Dropout2d, (4, 3)), (nn.Dropout3d, (2, 3, 2))):
        with draw_at(4):
            out = key_dropout(kind(0.5))(torch.ones(40, 10, *size)).flatten(2)
        assert torch.equal(out.amin(2), out.amax(2))
        assert {*out.unique().tolist()} == {0.0, 2.0}
        assert torch.equal(out[..., 0] != 0, draw(4, 40, 10, layer="") >= 0.5)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(p):
    x = torch.randn(3, 4)
    with draw_at(1):
        assert torch.equal(key_dropout(nn.Dropout(p))(x), x * (1 - p))


def test_in_evaluation_dropout_does_nothing():
    x = torch.randn(3, 4)
    with draw_at(1):
        assert torch.equal(key_dropout(nn.Dropout(0.5)).eval()(x), x)


def test_the_types_of_numbers_are_kept():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        with draw_at(1):
            assert key_dropout(nn.Dropout(0.5))(torch.ones(4, 4, dtype=dtype)).dtype is dtype


def test_masks_are_the_same_when_clients_are_mapped_at_once():
    """`torch.vmap` over clients, each with its own key, their batches padded to one size."""
    keyed = key_dropout(nn.Sequential(nn.Dropout(0.4), nn.Dropout2d(0.4)))
    x, keys = torch.randn(3, 6, 4, 2, 2), [make_key(0, client, 1, 0, 0) for client in "abc"]

    def step(key: Tensor, x: Tensor) -> Tensor:
        with draw_at(key):
            return keyed(x)

    mapped = torch.vmap(step)(torch.tensor(keys), x)
    for client, key in enumerate(keys):
        with draw_at(key):
            alone = keyed(x[client, :5])
        assert torch.equal(mapped[client, :5], alone)


def test_a_layer_that_is_used_twice_draws_twice():
    keyed = key_dropout(nn.Dropout(0.5))
    with draw_at(1):
        first, second = keyed(torch.ones(6, 6)), keyed(torch.ones(6, 6))
    assert not torch.equal(first, second)


def test_copies_of_a_keyed_module_draw_the_same():
    keyed = key_dropout(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    x = torch.ones(6, 4)
    with draw_at(1):
        first = keyed(x)
    with draw_at(1):
        assert torch.equal(copy.deepcopy(keyed)(x), first)


def test_an_augmentation_gets_the_numbers_of_its_step():
    seen: list[Tensor] = []

    def augment(x: Tensor, numbers: Tensor) -> Tensor:
        seen.append(numbers)
        return x + numbers[:, :1]

    x = torch.zeros(5, 2)
    with draw_at(8):
        out = augment_batch(augment, x)  # pyright: ignore[reportArgumentType]
    assert torch.equal(seen[0], draw(8, 5, NUMBERS, layer="augment"))
    assert torch.equal(out, seen[0][:, :1].expand(5, 2))  # pyright: ignore[reportArgumentType]
    assert augment_batch(None, x) is x


def test_dropout_in_place_changes_its_input():
    for layer in (nn.Dropout(0.5), nn.Dropout2d(0.5), nn.Dropout(1.0)):
        changing = copy.deepcopy(layer)
        changing.inplace = True
        x = torch.rand(3, 4, 2, 2)
        with draw_at(1):
            expected = key_dropout(layer)(x)
        with draw_at(1):
            found = key_dropout(changing)(x)
        assert torch.equal(found, expected)
        assert found is x
