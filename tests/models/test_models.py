"""The models: the paper's numbers, and shapes that fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from data.wording import refused
from feduhb.errors import ConfigError
from feduhb.models import MODELS, make_model, mlp, paper_cnn, resnet18, softmax

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def linear_widths(model: nn.Module) -> list[tuple[int, int]]:
    return [
        (layer.in_features, layer.out_features) for layer in model.modules() if isinstance(layer, nn.Linear)
    ]


@pytest.mark.parametrize(("shape", "count", "width"), [(MNIST, 582_026, 1024), (CIFAR, 878_538, 1600)])
def test_the_papers_cnn(shape, count, width):
    """By hand, c channels: 32 (25 c + 1) + 64 (25 * 32 + 1) + 512 (width + 1) + 10 (512 + 1)."""
    model = paper_cnn(shape, 10)
    assert parameters(model) == count == 32 * (25 * shape[0] + 1) + 64 * 801 + 512 * (width + 1) + 10 * 513
    assert linear_widths(model) == [(width, 512), (512, 10)]
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_cnns_layers_in_order():
    kinds = [type(layer).__name__ for layer in paper_cnn(MNIST, 10).children()]
    convolve = ["Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == [*convolve, *convolve, "Flatten", "Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 17, 30), (2, 28, 16), (3, 40, 24)])
def test_the_cnn_fits_images_that_are_not_square(shape):
    assert paper_cnn(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (15, 15), (15, 28), (28, 15), (3, 3), (1, 1)])
def test_images_too_small_for_the_cnn(height, width):
    with refused(
        ConfigError,
        f"the cnn needs images of 16 x 16 or more, not {height} x {width}; use 'mlp'",
    ):
        paper_cnn((1, height, width), 10)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8)])
def test_the_mlp_has_one_hidden_layer(shape):
    model = mlp(shape, 10)
    assert linear_widths(model) == [(64, 64), (64, 10)]
    assert parameters(model) == 64 * 65 + 10 * 65
    assert model(torch.zeros(3, *shape)).shape == (3, 10)
    assert linear_widths(mlp(shape, 3, hidden=5)) == [(64, 5), (5, 3)]


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8)])
def test_softmax_regression_is_linear(shape):
    model = softmax(shape, 10)
    assert linear_widths(model) == [(64, 10)]
    assert parameters(model) == 650
    x = torch.rand(3, *shape)
    zero = model(torch.zeros(3, *shape))
    assert torch.allclose(model(2 * x) - zero, 2 * (model(x) - zero), atol=1e-5)


@pytest.mark.parametrize("name", list(MODELS))
def test_by_name(name):
    classes = 2 if name == "logistic" else 4
    assert make_model(name, MNIST, classes)(torch.zeros(2, *MNIST)).shape == (2, classes)


def test_the_cross_entropy_of_the_logistic_model_is_the_logistic_loss():
    model, x, y = make_model("logistic", (3,), 2), torch.rand(5, 3), torch.tensor([0, 1, 1, 0, 1])
    assert isinstance(model, nn.Sequential)
    z = model[1](x)[:, 0]
    expected = functional.binary_cross_entropy_with_logits(z, y.float())
    assert torch.allclose(functional.cross_entropy(model(x), y), expected)
    assert sum(p.numel() for p in model.parameters()) == 4


def test_the_logistic_model_is_for_two_classes():
    with refused(ConfigError, "the logistic model is for two classes, not 10; use 'softmax'"):
        make_model("logistic", MNIST, 10)


@pytest.mark.parametrize("name", ["resnet", "", "CNN"])
def test_unknown_name(name):
    choice = "choose one of cnn, mlp, softmax, logistic, resnet18, resnet18-group, or bring your own module with feduhb.Federation"
    with refused(ConfigError, f"there is no model {name!r}; {choice}"):
        make_model(name, MNIST, 10)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet18_has_its_parameters_and_stages(norm):
    with torch.device("meta"):
        model = resnet18((3, 32, 32), 10, norm=norm)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
        stages = nn.Sequential(*list(model.children())[:-3])
        assert stages(torch.zeros(2, 3, 32, 32)).shape == (2, 512, 4, 4)
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
