"""Models in messages: the round trip keeps every bit, and malformed arrays are refused."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import feduhb
from federations import ragged, small_cnn
from feduhb import flower
from feduhb.core.flat import flatten
from feduhb.errors import ModelError
from feduhb.flower.wire import Layout, MalformedError, to_line
from toys import quick

WIDE = np.dtype(np.longdouble).itemsize > 8  # it is not everywhere
SHAPES = st.dictionaries(
    st.text(min_size=1, max_size=6), st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4
)


@quick
@given(SHAPES, st.sampled_from([np.float32, np.float64]), st.integers(0, 9))
def test_arrays_survive_the_round_trip(shapes, kind, seed):
    draw = np.random.default_rng(seed)
    arrays = ArrayRecord(
        {name: Array(draw.normal(size=shape).astype(kind)) for name, shape in shapes.items()}
    )
    layout = Layout.of(arrays)
    flat = layout.flatten(arrays)
    assert flat.shape == (sum(int(np.prod(shape)) for shape in shapes.values()),)
    again = layout.to_arrays(flat)
    assert list(again) == list(arrays)
    assert all(np.array_equal(a.numpy(), arrays[name].numpy()) for name, a in again.items())
    assert torch.equal(layout.flatten(again), flat)


def test_arrays_are_read_by_name_not_by_place():
    layout = Layout({"a": (1,), "b": (2,)}, torch.float32)
    given_ = {"b": Array(np.array([2.0, 3.0], np.float32)), "a": Array(np.array([1.0], np.float32))}
    assert layout.flatten(ArrayRecord(given_)).tolist() == [1.0, 2.0, 3.0]


def test_fresh_arrays_equal_the_fresh_model_of_the_federation():
    federation = ragged(seed=11)
    arrays = flower.fresh_arrays(federation.model, 11)
    assert torch.equal(Layout.of(arrays).flatten(arrays), flatten(federation.fresh_model()))
    assert list(arrays) == [name for name, _ in federation.fresh_model().named_parameters()]
    other = flower.fresh_arrays(federation.model, 12)
    assert not torch.equal(Layout.of(other).flatten(other), flatten(federation.fresh_model()))


def test_a_fresh_model_keeps_nothing_of_the_modules_weights():
    trained = small_cnn()
    with torch.no_grad():
        for p in trained.parameters():
            p.fill_(99.0)
    arrays = flower.fresh_arrays(trained, 3)
    assert all(abs(a.numpy()).max() < 2 for a in arrays.values())


def test_shared_weights_travel_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    arrays = flower.fresh_arrays(Tied, 0)
    assert list(arrays) == ["a.weight", "a.bias", "b.bias"]


def test_statistics_of_the_clients_data_are_refused():
    arrays = ArrayRecord(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict())
    with pytest.raises(
        ModelError, match=r"array 1.running_mean gathers statistics of the clients' data.*use GroupNorm"
    ):
        Layout.of(arrays)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "the initial arrays are empty; leave them out"),
        (
            {"a": np.zeros(2, np.int64)},
            r"the arrays have the types \['int64'\]; convert the model to one float type",
        ),
        ({"a": np.zeros(2, np.float32), "b": np.zeros(2)}, r"\['float32', 'float64'\]; convert"),
        *[({"a": np.zeros(2, np.longdouble)}, r"\['float\d+'\]; convert") for _ in range(WIDE)],
    ],
)
def test_arrays_that_are_not_a_model_are_refused(arrays, words):
    with pytest.raises(ModelError, match=words):
        Layout.of(ArrayRecord({name: Array(value) for name, value in arrays.items()}))


def test_another_precision_is_read_into_ours():
    layout = Layout({"a": (2,)}, torch.float64)
    read = layout.flatten(ArrayRecord({"a": Array(np.array([0.5, 0.25], np.float16))}))
    assert read.dtype == torch.float64
    assert read.tolist() == [0.5, 0.25]


@pytest.mark.parametrize("kind", [">f2", ">f4", ">f8"])
def test_floats_of_the_other_byte_order_are_read_into_ours(kind):
    arrays = ArrayRecord(
        {"a": Array(np.array([0.5, -3.0], kind)), "b": Array(np.array(2.0).astype(kind).reshape(1))}
    )
    layout = Layout.of(arrays)
    assert layout.flatten(arrays).tolist() == [0.5, -3.0, 2.0]
    assert layout.dtype == {2: torch.float16, 4: torch.float32, 8: torch.float64}[int(kind[-1])]


@quick
@given(st.text(max_size=60), st.integers(4, 40))
def test_foreign_text_becomes_one_short_line(said, most):
    line = to_line(said, most)
    assert len(line) <= most
    assert line.isprintable()
    assert set(line) <= set(said) | set(" .")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("not\ntoday", "not today"),
        ("a\x1b[2Jb\x00\u202ec\ud800d", "a [2Jb c d"),
        ("Größe 3 µm", "Größe 3 µm"),
        ("x" * 10**7, "x" * 497 + "..."),
        (ValueError("cannot\ninflate"), "cannot inflate"),
        (None, "None"),
        ("", ""),
    ],
)
def test_to_line(said, line):
    assert to_line(said) == line


def test_an_unknown_array_is_malformed():
    layout = Layout({"a": (1,)}, torch.float32)
    with pytest.raises(MalformedError, match="an unknown array 'b'"):
        layout.flatten(ArrayRecord({"a": Array(np.zeros(1)), "b": Array(np.zeros(1))}))


def test_the_package_lists_its_public_names():
    assert set(dir(flower)) == set(flower.__all__)
    assert all(getattr(flower, name).__doc__ for name in flower.__all__)
    with pytest.raises(
        AttributeError, match=r"feduhb\.flower has no 'FedHUB'; it has ExtraError, FedEraser, "
    ):
        _ = flower.FedHUB
    assert feduhb.flower is flower
