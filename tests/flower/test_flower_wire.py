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
from feduhb.flower.wire import Layout, MalformedError, get_carried, to_line
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


def make_normed():
    """Return a module whose statistics stand between its parameters in the state dict, with a frozen layer and a table."""
    module = nn.Sequential(
        nn.BatchNorm1d(3), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2)
    )
    module[1].requires_grad_(False)
    module[4].requires_grad_(False)
    module.register_buffer("table", torch.arange(3.0))
    return module


def test_statistics_travel_after_the_parameters_and_carried_parts_never():
    module = make_normed()
    layout = Layout.of_module(module)
    trained = ["0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias"]
    gathered = ["0.running_mean", "0.running_var", "2.running_mean", "2.running_var"]
    assert list(layout.shapes) == trained + gathered
    assert layout.statistics == 14
    arrays = flower.fresh_arrays(module, given=True)
    assert list(arrays) == trained + gathered
    assert torch.equal(layout.flatten(arrays), flatten(module))
    names = get_carried(arrays)[0]
    assert names == ["1.bias", "1.weight", "4.bias", "4.running_mean", "4.running_var", "4.weight", "table"]


def test_arrays_in_any_order_have_the_layout_of_the_module():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = {name: value for name, value in module.state_dict().items() if value.dim()}  # without counters
    assert list(state)[2] == "0.running_mean"
    backwards = dict(sorted(state.items(), key=lambda pair: "running_mean" in pair[0]))
    for given_ in (state, backwards):
        layout = Layout.of(ArrayRecord(given_))
        assert layout == Layout.of_module(module)
        assert list(layout.shapes) == list(Layout.of_module(module).shapes)
        assert layout.statistics == 14
        assert torch.equal(layout.flatten(ArrayRecord(given_)), flatten(module))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"0.num_batches_tracked": torch.tensor(0)},
            "array 0.num_batches_tracked is not a weight; leave counters of batches",
        ),
        (
            {"0.running_var": None},
            r"the statistics 0.running_mean and 0.running_var do not fit: \[3\] and missing; give both",
        ),
        ({"0.running_mean": torch.zeros(2)}, r"do not fit: \[2\] and \[3\]"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(change, words):
    state = {name: value for name, value in nn.BatchNorm1d(3).state_dict().items() if value.dim()}
    arrays = {**{f"0.{name}": value for name, value in state.items()}, **change}
    with pytest.raises(ModelError, match=words):
        Layout.of(ArrayRecord({name: value for name, value in arrays.items() if value is not None}))


def test_a_parameter_with_the_name_of_a_statistic_is_refused():
    module = nn.Linear(2, 2)
    module.running_mean = nn.Parameter(torch.zeros(2))
    with pytest.raises(ModelError, match=r"parameter running_mean has the name of a statistic.*; rename it"):
        flower.fresh_arrays(module, given=True)


def test_a_counter_in_an_answer_is_malformed_and_the_reason_helps():
    module = nn.BatchNorm1d(2)
    with pytest.raises(
        MalformedError, match=r"an unknown array 'num_batches_tracked'; leave counters of batches"
    ):
        Layout.of_module(module).flatten(ArrayRecord(module.state_dict()))


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
        AttributeError, match=r"feduhb\.flower has no 'FedHUB'; it has PGA, ExtraError, FedAF, "
    ):
        _ = flower.FedHUB
    assert feduhb.flower is flower
