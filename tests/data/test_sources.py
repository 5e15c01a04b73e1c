"""The data sets that come with the installation: their sizes, their range, their division for good."""

from __future__ import annotations

from hashlib import sha256

import pytest
import torch
from torch import Tensor

from data.wording import refused
from feduhb.data.sources import Dataset, dataset_named
from feduhb.errors import DataError

# SHA-256 over the pixels as bytes (train, test), then the labels as bytes (train, test). A change means that
# every number published so far is of another split: never adapt it to a change that nobody asked for.
SPLITS = {
    "mnist-5k": (255, "f273cacfc300ddd350f1301078a9703b11c8b0128e3674e847b998474d87814f"),
    "digits": (16, "b30b9e0fab91ffcbc7f371c93b817c88a1535f4102009f609579ef6c91cc745d"),
}
SHAPES = {"mnist-5k": (4000, 1000, 28), "digits": (1437, 360, 8)}


@pytest.fixture(scope="module", params=["mnist-5k", "digits"])
def named(request: pytest.FixtureRequest) -> tuple[str, Dataset]:
    return request.param, dataset_named(request.param)


def pixels(x: Tensor, white: int) -> Tensor:
    return ((x + 1) * (white / 2)).round().byte()


def test_shapes_and_types(named):
    name, data = named
    train, test, side = SHAPES[name]
    assert data.x.shape == (train, 1, side, side)
    assert data.test_x.shape == (test, 1, side, side)
    assert data.y.shape == (train,)
    assert data.test_y.shape == (test,)
    assert data.x.dtype == data.test_x.dtype == torch.float32
    assert data.y.dtype == data.test_y.dtype == torch.int64


def test_inputs_fill_the_range_exactly(named):
    _, data = named
    for x in (data.x, data.test_x):
        assert (float(x.min()), float(x.max())) == (-1.0, 1.0)


def test_scaling_is_by_constants_of_the_format(named):
    """Pixel p is 2 p / white - 1, to rounding in float32, whatever the other pixels are."""
    name, data = named
    white, _ = SPLITS[name]
    assert torch.allclose(
        data.x, pixels(data.x, white).double().mul(2 / white).sub(1).float(), rtol=0, atol=2e-7
    )


def test_the_division_never_changes(named):
    name, data = named
    white, golden = SPLITS[name]
    digest = sha256()
    for part in (pixels(data.x, white), pixels(data.test_x, white), data.y.byte(), data.test_y.byte()):
        digest.update(part.numpy().tobytes())
    assert digest.hexdigest() == golden


def test_classes_are_roughly_balanced(named):
    _, data = named
    assert data.classes == 10
    for y in (data.y, data.test_y):
        share = torch.bincount(y, minlength=10).double() / len(y)
        assert len(share) == 10
        assert float(share.min()) > 0.07
        assert float(share.max()) < 0.13


def test_no_test_image_is_trained_on(named):
    _, data = named
    train = {bytes(image) for image in data.x.numpy()}
    assert train.isdisjoint(bytes(image) for image in data.test_x.numpy())


def test_the_same_again():
    once, again = dataset_named("digits"), dataset_named("digits")
    for part in ("x", "y", "test_x", "test_y"):
        assert torch.equal(getattr(once, part), getattr(again, part))


def test_unknown_name():
    choice = "choose one of mnist-5k, digits, mnist, cifar10, or bring your own with feduhb.Federation"
    with refused(DataError, f"there is no data set 'cifar'; {choice}"):
        dataset_named("cifar")
