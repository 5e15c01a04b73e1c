"""Convolutions by points equal direct ones up to rounding, and are used only where they are cheaper."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d

import feduhb
from feduhb.core.flat import flatten
from feduhb.engines import points
from feduhb.engines.points import ByPoints, convolve, is_cheaper, make_axis, use_points
from feduhb.models import make_model

SECOND = (64, 32, 12, 12), (64, 32, 5, 5)  # the paper's second convolution on MNIST


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    draw = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()


def differentiate(outputs: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return outputs, and the gradients of their weighted sum."""
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    return [outputs, *torch.autograd.grad((outputs * weights).sum(), inputs)]


@pytest.mark.parametrize("n", [3, 4, 5, 6, 11, 12, 28, 63])
def test_one_axis_slides_the_taps_over_the_inputs(n):
    for r in {1, 2, 3, n // 2, n}:
        turn, x, w = make_axis(n, r, torch.float64), draw(n), draw(r)
        expected = torch.stack([(x[i : i + r] * w).sum() for i in range(n - r + 1)])
        found = turn.outputs @ ((turn.taps @ w) * (turn.inputs @ x))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "count"), [(3, 3), (4, 4), (5, 6), (12, 16), (14, 19), (28, 40)])
def test_an_axis_takes_as_many_products_as_are_counted(n, count):
    """Three products for each pair of points on the circle, one for each other point."""
    assert points._count_points(n) == count
    assert make_axis(n, 2, torch.float64).inputs.shape == (count, n)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    count=st.integers(1, 3),
    channels=st.integers(1, 3),
    kept=st.integers(1, 3),
    sides=st.tuples(st.integers(3, 13), st.integers(3, 13)),
    taps=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    biased=st.booleans(),
    last=st.booleans(),
)
def test_images_and_gradients_are_those_of_a_direct_convolution(
    count, channels, kept, sides, taps, biased, last
):
    taps = tuple(map(min, taps, sides))
    images, filters = draw(count, channels, *sides), draw(kept, channels, *taps)
    if last:
        images = images.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    bias = draw(kept) if biased else None
    inputs = [images, filters] if bias is None else [images, filters, bias]
    expected = differentiate(conv2d(images, filters, bias), inputs)
    found = differentiate(convolve(images, filters, bias), inputs)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


def test_second_derivatives_are_right_too():
    """A loss may hold gradients itself."""
    given = draw(2, 1, 4, 5), draw(2, 1, 3, 2), draw(2)
    assert torch.autograd.gradgradcheck(convolve, given)


@pytest.mark.parametrize("side", [12, 14, 28])
def test_rounding_in_float32_is_about_that_of_a_direct_convolution(side):
    images, filters = draw(4, 32, side, side), draw(16, 32, 5, 5)
    inputs = [images, filters]
    exact = differentiate(conv2d(images, filters), inputs)
    rounded = [tensor.detach().float().requires_grad_() for tensor in inputs]
    direct = differentiate(conv2d(rounded[0], rounded[1]), rounded)
    found = differentiate(convolve(rounded[0], rounded[1], None), rounded)
    for mine, theirs, truth in zip(found, direct, exact, strict=True):
        assert (mine - truth).norm() < 4 * (theirs - truth).norm()
        assert (mine - truth).norm() < 2e-6 * truth.norm()


def test_it_is_cheaper_for_the_papers_second_convolution_and_a_full_batch():
    images, filters = SECOND
    assert is_cheaper(images, filters)
    assert is_cheaper((64, 32, 14, 14), filters)
    assert is_cheaper((64, 32, 8, 8), filters, (2, 2))
    assert not is_cheaper((1, *images[1:]), filters)
    assert not is_cheaper((64, 1, 28, 28), (32, 1, 5, 5))
    assert not is_cheaper(images, (64, 32, 3, 3))
    assert not is_cheaper(images, (64, 32, 1, 1))
    assert not is_cheaper(images, (64, 32, 13, 13))


@pytest.mark.parametrize("padding", [0, 2, (0, 3)])
def test_a_layer_that_goes_by_points_stays_what_it_was(padding):
    """Its parameters, its hooks, its outputs to rounding; in an order that the next layer reads fast."""
    plain = nn.Sequential(nn.Conv2d(32, 64, 5, padding=padding), nn.ReLU()).double()
    seen: list[object] = []
    changed = copy.deepcopy(plain)
    changed[0].register_forward_hook(lambda *_: seen.append(_))
    assert use_points(changed) is changed
    assert type(changed[0]) is ByPoints
    images = draw(16, 32, 12, 12)
    found = changed(images)
    assert len(seen) == 1
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, plain(images), rtol=0, atol=1e-10)
    assert torch.equal(flatten(changed), flatten(plain))
    assert not torch.equal(found, plain(images)), "it did not go by points"


@pytest.mark.parametrize("shape", [(2, 32, 12, 12), (32, 12, 12)], ids=["few", "one without a batch"])
def test_what_is_not_cheaper_is_convolved_directly(shape):
    plain = nn.Conv2d(32, 64, 5)
    changed = use_points(copy.deepcopy(plain))
    images = draw(*shape, dtype=torch.float32)
    assert torch.equal(changed(images), plain(images))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(32, 64, 5, stride=2),
        nn.Conv2d(32, 64, 5, stride=(1, 2)),
        nn.Conv2d(32, 64, 5, dilation=2),
        nn.Conv2d(32, 64, 5, groups=2),
        nn.Conv2d(32, 64, 5, padding=2, padding_mode="reflect"),
        nn.Conv2d(32, 64, 5, padding="same"),
        nn.Conv2d(32, 64, 5, dtype=torch.bfloat16),
        nn.ConvTranspose2d(32, 64, 5),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(32, 64, 5)),
    ],
    ids=["stride", "one stride", "dilation", "groups", "reflected", "same", "bfloat16", "transposed", "own kind"],
)  # fmt: skip
def test_other_convolutions_are_left_alone(layer):
    kind = type(layer)
    assert type(use_points(layer)) is kind


def test_filters_that_do_not_fit_are_refused_as_ever():
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        use_points(nn.Conv2d(32, 64, 13))(torch.zeros(64, 32, 12, 12))


def test_a_layer_that_stands_in_two_places_goes_by_points_in_both():
    shared = nn.Conv2d(32, 32, 5, padding=2)
    model = use_points(nn.Sequential(shared, nn.ReLU(), shared))
    assert [type(model.get_submodule(name)) for name in "012"] == [ByPoints, nn.ReLU, ByPoints]
    assert len(list(model.parameters())) == 2


def in_float64(images: int) -> feduhb.Federation:
    known = feduhb.load("mnist-5k", clients=2, per_client=images, held_out=0.0)
    clients = {
        client: (examples.all()[0].double(), examples.targets) for client, examples in known.clients.items()
    }
    return feduhb.Federation(clients, clients["c00"], make_model("cnn", (1, 28, 28), 10).double())


@pytest.mark.parametrize("epochs", [0, 1])
def test_the_papers_cnn_trains_by_points_as_in_the_loop(epochs, monkeypatch):
    """A batch of 64, which goes by points, and one of 4, which does not; and a gradient of all."""
    federation, seen = in_float64(68), list[tuple[int, ...]]()
    work = feduhb.Work(flatten(federation.fresh_model()), epochs)

    def watched(images, filters, bias):
        seen.append((len(images), len(filters)))
        return convolve(images, filters, bias)

    monkeypatch.setattr(points, "convolve", watched)
    local = feduhb.Local(lr=0.1)
    slow, fast = (
        torch.cat([block.values for block in engine(federation, local).train(work, ("c00", "c01"), 0)])
        for engine in (feduhb.Loop, feduhb.Pool)
    )
    assert seen == [(68 if epochs == 0 else 64, 64)] * 2
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
    assert slow.norm() > 1e-3


def test_two_runs_of_the_pool_give_the_same_bits():
    federation = feduhb.load("mnist-5k", clients=2, per_client=64, held_out=0.0)
    work = feduhb.Work(flatten(federation.fresh_model()), 2)
    first, again = (
        torch.cat([block.values for block in feduhb.Pool(federation).train(work, ("c00", "c01"), 0)])
        for _ in range(2)
    )
    assert torch.equal(first, again)
