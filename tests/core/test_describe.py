"""Losses, augmentations and models are recognised by their settings, wherever these are kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from feduhb.core.describe import describe_function, digest_layers, name_function


class Focal:
    """A loss with a setting."""

    def __init__(self, gamma: Any) -> None:
        self.gamma = gamma

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) * self.gamma

    def apply(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self(outputs, y)


class Wrapped(nn.Module):
    """A loss that keeps another one in a list, and a third as a part."""

    def __init__(self, smoothing: float, weight: float = 1.0) -> None:
        super().__init__()
        self.others = [nn.CrossEntropyLoss(label_smoothing=smoothing)]
        self.inner = nn.CrossEntropyLoss(weight=torch.tensor([1.0, weight]))


def capture(scale: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) * scale

    return loss


def weigh(weight: Any, outputs: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, weight=weight)


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "arguments by place": (functools.partial(weigh, torch.ones(3)), functools.partial(weigh, torch.zeros(3))),
    "arguments by name": (functools.partial(weigh, weight=1), functools.partial(weigh, weight=2)),
    "a partial of a partial": (
        functools.partial(functools.partial(weigh, 1), 2),
        functools.partial(functools.partial(weigh, 3), 2),
    ),
    "captured": (capture(1.0), capture(2.0)),
    "a captured array": (capture(np.ones(2)), capture(np.zeros(2))),
    "a captured module": (capture(nn.HuberLoss(delta=1.0)), capture(nn.HuberLoss(delta=2.0))),
    "an object": (Focal(1.0), Focal(2.0)),
    "an object's list": (Focal([1.0, 2.0]), Focal([1.0, 3.0])),
    "an object's dictionary": (Focal({"a": 1}), Focal({"a": 2})),
    "a method": (Focal(1.0).apply, Focal(2.0).apply),
    "a module": (nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0)),
    "a module in a module": (Wrapped(0.1), Wrapped(0.1, 2.0)),
    "a module in a list": (Wrapped(0.1), Wrapped(0.2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_other_settings_have_another_description(name):
    first, second = PAIRS[name]
    assert describe_function(first) != describe_function(second)
    assert describe_function(first) == describe_function(first)
    assert name_function(first) == name_function(second)


def test_descriptions_are_words():
    """Runs on disk hold these texts."""
    assert describe_function(F.mse_loss) == "mse_loss"
    assert describe_function(torch.sin) == "sin"
    assert describe_function(nn.HuberLoss(delta=0.5)) == "HuberLoss(delta=0.5, reduction='mean')"
    assert (
        describe_function(functools.partial(F.cross_entropy, label_smoothing=0.1))
        == "cross_entropy(label_smoothing=0.1)"
    )
    assert describe_function(capture(2.0)) == "loss(scale=2.0)"
    assert describe_function(capture(np.array(["a"]))) == "loss(scale=ndarray)"
    assert describe_function(Focal(capture(2.0))) == "Focal(gamma=loss)"


def test_a_function_that_captures_itself():
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) if len(y) else loss(outputs, y)

    assert describe_function(loss) == "loss(loss=loss)"


def stack(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (stack(nn.Dropout(0.1)), stack(nn.Dropout(0.9))),
        (stack(nn.BatchNorm1d(4)), stack(nn.BatchNorm1d(4, momentum=0.9))),
        (stack(nn.ReLU()), stack(nn.Tanh())),
        (stack(nn.GELU()), stack(nn.GELU(approximate="tanh"))),
        (stack(nn.ReLU()), stack(nn.ReLU(), nn.ReLU())),
        (nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3, stride=(2, 1))),
    ],
)
def test_layers_differ_by_what_no_tensor_shows(first, second):
    assert digest_layers(first) != digest_layers(second)


def test_layers_are_the_same_whatever_their_tensors_and_modes():
    made = stack(nn.Dropout(0.1), nn.BatchNorm1d(4))
    again = stack(nn.Dropout(0.1), nn.BatchNorm1d(4)).eval()
    again.requires_grad_(False)
    assert digest_layers(made) == digest_layers(again)


def test_texts_of_own_layers_may_be_paths():
    net = stack(nn.ReLU())
    before = digest_layers(net)
    net.source = "somewhere/else"  # pyright: ignore[reportArgumentType]
    assert digest_layers(net) != before  # Sequential is one of torch's own

    class Net(nn.Linear):
        pass

    own = Net(2, 2)
    before = digest_layers(own)
    own.source = "somewhere/else"  # pyright: ignore[reportArgumentType]
    assert digest_layers(own) == before
