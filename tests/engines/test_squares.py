"""Squared gradients from one backward pass: against a pass for each example, for every layer that has a formula."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from feduhb.core.inputs import call_model
from feduhb.core.modules import list_trained
from feduhb.engines.squares import compute_squares, find_layers, is_exact
from feduhb.engines.stacked.networks import ignore_slow_maps
from feduhb.engines.tasks import square_gradients
from feduhb.models import paper_cnn
from independent import FAST, KINDS, make_examples, make_independent


def compare(model, loss, x, y, most=1 << 28):
    """Hold the sums to those of `square_gradients`, and the gradient of the batch to torch's, bit for bit."""
    layers = find_layers(model)
    assert layers is not None
    found = compute_squares(model, layers, loss, x.clone(), y, most)
    assert found is not None
    with ignore_slow_maps():
        expected = square_gradients(model, loss, x, y)
    tiny = 1e-20 * max(float(part.max()) for part in expected)  # the square of a gradient of 0, rounded
    for one, other in zip(found.sums, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=tiny)
    parameters = [p for _, p in list_trained(model)]
    value = loss(call_model(model, x.clone()), y)
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    for one, other in zip(found.gradients, gradients, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    assert all(not layer._forward_hooks for layer in layers)


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("kind", FAST)
def test_squares_are_those_of_a_pass_for_each_example(kind, size):
    model, loss = make_independent(kind)
    compare(model, loss, *make_examples(kind, size))


@pytest.mark.parametrize("kind", ["convolutions", "tokens", "space"])
def test_squares_of_groups_of_examples_add_up(kind):
    model, loss = make_independent(kind)
    compare(model, loss, *make_examples(kind, 7), most=0)
    compare(model, loss, *make_examples(kind, 7), most=9000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_knows_for_which_models_one_pass_is_enough(kind):
    model, loss = make_independent(kind)
    before = [p.detach().clone() for p in model.parameters()]
    assert is_exact(model, loss, *make_examples(kind, 3)) == KINDS[kind][-1]
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    "kind",
    [
        "tied words",
        "a layer called twice",
        "a weight lent",
        "a weight without its layer",
        "a table for places",
    ],
)
def test_a_parameter_that_is_used_outside_one_call_of_its_layer_is_noticed(kind):
    model, loss = make_independent(kind)
    layers = find_layers(model)
    assert layers is not None
    assert compute_squares(model, layers, loss, *make_examples(kind, 4)) is None


@given(
    groups=st.integers(1, 3),
    inside=st.integers(1, 2),
    outside=st.integers(1, 2),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    size=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_any_convolution(groups, inside, outside, kernel, stride, padding, dilation, bias, size):
    layer = nn.Conv2d(groups * inside, groups * outside, kernel, stride, padding, dilation, groups, bias=bias)
    draw = torch.Generator().manual_seed(size)
    model = nn.Sequential(layer, nn.Flatten()).double()
    x = torch.randn(size, groups * inside, 6, 7, generator=draw, dtype=torch.float64)
    like = model(x)
    compare(model, functional.mse_loss, x, torch.randn(like.shape, generator=draw, dtype=torch.float64))


@given(
    places=st.lists(st.integers(1, 3), max_size=2),
    words=st.integers(1, 4),
    padding=st.booleans(),
    size=st.integers(1, 4),
    norms=st.integers(1, 2),
)
@settings(max_examples=40, deadline=None)
def test_any_shape_of_tokens(places, words, padding, size, norms):
    draw = torch.Generator().manual_seed(size)
    table = nn.Embedding(words, 4, padding_idx=words - 1 if padding else None)
    norm = nn.LayerNorm([*places, 4][-norms:])
    nn.init.normal_(norm.weight, generator=draw)
    model = nn.Sequential(table, norm, nn.Linear(4, 2), nn.Flatten()).double()
    tokens = torch.randint(0, words, (size, *places), generator=draw)
    like = model(tokens)
    compare(
        model, functional.huber_loss, tokens, torch.randn(like.shape, generator=draw, dtype=torch.float64)
    )


def test_no_gradient_of_a_single_example_is_held():
    """Of the large layer, those of 64 examples would be 64 · 512 · 1024 numbers."""

    class Watching(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            numbers = [part.numel() for part in tree_leaves(found) if torch.is_tensor(part)]
            self.largest = max(self.largest, *numbers, 0)
            return found

    model, x = paper_cnn((1, 28, 28), 10), torch.randn(64, 1, 28, 28)
    layers = find_layers(model)
    assert layers is not None
    with Watching() as watching:
        compute_squares(model, layers, functional.cross_entropy, x, torch.arange(64) % 10)
    assert 64 * 64 * 25 * 32 <= watching.largest < 64 * 512 * 1024 / 5


class Mixing(nn.Sequential):
    """Subtracts the mean over the batch."""

    def forward(self, input):
        x = super().forward(input)
        return x - x.mean(0)


class Late(nn.Module):
    """Mixes its examples once a number that it learns is not 0 any more."""

    def __init__(self):
        super().__init__()
        self.body, self.gate = nn.Linear(6, 3), nn.Linear(6, 3)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x):
        return self.body(x) + self.gate(x).mean(0)


@pytest.mark.parametrize("make", [lambda: Mixing(nn.Linear(6, 3)), Late])
def test_a_model_that_mixes_its_examples_needs_a_pass_for_each(make):
    x, y = make_examples("softmax", 3)
    assert not is_exact(make().double(), functional.cross_entropy, x, y)


def test_an_axis_as_long_as_the_batch_is_not_taken_for_it():
    model, loss = make_independent("tokens before examples")
    x, y = make_examples("tokens before examples", 7)
    layers = find_layers(model)
    assert layers is not None
    assert compute_squares(model, layers, loss, x, y) is not None  # of 7 tokens and 7 examples each
    assert not is_exact(model, loss, x, y)


def test_a_bad_label_is_left_to_training():
    model, loss = make_independent("softmax")
    x, y = make_examples("softmax", 3)
    assert not is_exact(model, loss, x, y + 7)


def test_a_part_that_is_computed_twice_counts_once():
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(checkpoint(lambda x: self.body(x).tanh(), x, use_reentrant=False))

    x, y = make_examples("softmax", 4)
    model = Saving().double()
    found = compute_squares(model, [model.body, model.head], functional.cross_entropy, x, y)
    plain = nn.Sequential(model.body, nn.Tanh(), model.head)
    assert found is not None
    for one, other in zip(found.sums, square_gradients(plain, functional.cross_entropy, x, y), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=0)


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)])
def test_examples_without_weight(weights):
    """A class of weight 0 has no mean loss alone, and an example that is left out has none to change."""
    loss = functools.partial(functional.cross_entropy, weight=weights)
    model, _ = make_independent("softmax")
    x, _ = make_examples("softmax", 3)
    layers = find_layers(model)
    assert layers is not None
    for labels in ([0, 1, 2], [0, -100, 2], [-100] * 3):
        y = torch.tensor(labels)
        found = compute_squares(model, layers, loss, x, y)
        assert found is not None
        for one, other in zip(found.sums, square_gradients(model, loss, x, y), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, equal_nan=True)
