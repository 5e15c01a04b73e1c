"""Losses, augmentations and models are recognised by their settings, wherever these are kept."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from feduhb.core.describe import describe_as_recorded, describe_function, digest_layers, name_function


class Focal:
    """A loss with a setting."""

    def __init__(self, gamma: Any) -> None:
        self.gamma = gamma

    def __call__(self, outputs: Any, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) * self.gamma

    def apply(self, outputs: Any, y: Tensor) -> Tensor:
        return self(outputs, y)


class Wrapped(nn.Module):
    """A loss with another one as a part."""

    def __init__(self, smoothing: float, weight: float = 1.0) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(weight=torch.tensor([1.0, weight]), label_smoothing=smoothing)


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
    "an object's tuple": (Focal((1.0, torch.ones(2))), Focal((1.0, torch.zeros(2)))),
    "a closure in a closure": (capture(capture(1.0)), capture(capture(2.0))),
    "a partial of a module": (
        functools.partial(nn.HuberLoss(delta=1.0)),
        functools.partial(nn.HuberLoss(delta=2.0)),
    ),
    "a method": (Focal(1.0).apply, Focal(2.0).apply),
    "a module": (nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0)),
    "a module in a module": (Wrapped(0.1), Wrapped(0.1, 2.0)),
    "a setting of a module in a module": (Wrapped(0.1), Wrapped(0.2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_other_settings_have_another_description(name):
    first, second = PAIRS[name]
    assert describe_function(first) != describe_function(second)
    assert describe_function(first) == describe_function(first)
    assert name_function(first) == name_function(second)


def test_descriptions_are_words():
    """Runs on disk hold these texts."""
    assert describe_function(F.mse_loss) == "mse_loss()"
    assert describe_function(torch.sin) == "sin()"
    assert describe_function(nn.HuberLoss(delta=0.5)) == "HuberLoss(delta=0.5, reduction='mean')"
    smoothed = functools.partial(F.cross_entropy, label_smoothing=0.1)
    assert describe_function(smoothed) == "cross_entropy(label_smoothing=0.1)"
    assert describe_function(capture(2.0)) == "loss(scale=2.0)"
    assert describe_function(capture(np.float64(2.0))) == "loss(scale=2.0)"
    assert describe_function(capture(np.array(["a"]))) == "loss()"
    assert describe_function(Focal(capture(2.0))) == "Focal(gamma=loss(scale=2.0))"
    assert re.fullmatch(r"Focal\(settings [0-9a-f]{12}\)", describe_function(Focal(tuple(range(1000)))))


def test_logs_texts_and_data_are_no_settings():
    """They may differ although the function is the same."""
    frame = pandas.DataFrame({"a": [1.0]})
    for some in ([1.0], {"a": 1}, "a/path", Path("a"), frame, object(), {1}, CountingItems()):
        assert describe_function(capture(some)) == "loss()"
        assert describe_function(Focal(some)) == "Focal()"


class CountingItems:
    """Data that must not be read for a description."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> float:
        raise AssertionError(place)


def test_functions_that_contain_themselves():
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) if len(y) else loss(outputs, y)

    assert describe_function(loss) == "loss(loss=loss)"
    module, focal = Wrapped(0.1), Focal(1.0)
    module.again = functools.partial(module.forward, 3)  # pyright: ignore[reportArgumentType]
    focal.gamma = functools.partial(focal.apply, 3)
    for one in (module, focal, functools.partial(module.forward, 3), functools.partial(focal.apply, 3)):
        assert describe_function(one) == describe_function(one)


def test_a_name_that_has_no_value_yet():
    def make() -> Callable[..., Any]:
        def loss(outputs: Tensor) -> Tensor:
            return outputs * later

        found = describe_function(loss)
        later = 1.0
        assert found == "loss()"
        assert describe_function(loss) == f"loss(later={later})"
        return loss

    make()


@pytest.mark.parametrize(
    ("function", "recorded"),
    [
        (capture(0.1), "loss"),
        (Focal(0.1), "Focal"),
        (nn.HuberLoss(), "HuberLoss(delta=1.0, reduction='mean')"),
        (functools.partial(F.cross_entropy, label_smoothing=0.1), "cross_entropy(label_smoothing=0.1)"),
        (functools.partial(nn.CrossEntropyLoss()), "CrossEntropyLoss"),
    ],
)
def test_what_earlier_versions_recorded_is_recognised(function, recorded):
    assert describe_as_recorded(function, recorded) == recorded
    assert describe_as_recorded(function, f"{recorded}x") == describe_function(function)
    assert describe_as_recorded(function, None) == describe_function(function)


def stack(*layers: nn.Module) -> nn.Sequential:
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


def test_what_users_add_to_layers_does_not_count():
    net = stack(nn.ReLU())
    before = digest_layers(net)
    net.calls = 3  # pyright: ignore[reportArgumentType]
    net[0].source = "somewhere/else"  # pyright: ignore[reportArgumentType]
    assert digest_layers(net) == before

    class Net(nn.Sequential):
        pass

    assert digest_layers(Net(*net)) == before
