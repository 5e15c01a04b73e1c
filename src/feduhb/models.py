"""The paper's CNN, a multilayer perceptron, softmax and logistic regression, and ResNet-18 for small images."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from feduhb.errors import ConfigError


def paper_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """Return the CNN of the paper: two 5 x 5 convolutions with ReLU and 2 x 2 pooling, and a layer of 512 units.

    It has 582,026 parameters on MNIST. The paper's "1600 units" are the flattened width on CIFAR-10; on MNIST it is 1024.
    """
    channels, height, width = shape
    down, across = (((side - 4) // 2 - 4) // 2 for side in (height, width))  # after both convolutions
    if across < 1 or down < 1:
        raise ConfigError(f"the cnn needs images of 16 x 16 or more, not {height} x {width}; use 'mlp'")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * across * down, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


def mlp(shape: Sequence[int], classes: int, hidden: int = 64) -> nn.Module:
    """Return a perceptron with one hidden layer."""
    first, last = nn.Linear(math.prod(shape), hidden), nn.Linear(hidden, classes)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)


def softmax(shape: Sequence[int], classes: int) -> nn.Module:
    """Return softmax regression, whose loss is convex, and strongly convex with l2."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


class TwoLogits(nn.Module):
    """Return the logits (0, z) of two classes for one logit z: their cross-entropy is the logistic loss."""

    def forward(self, z: Tensor) -> Tensor:
        """Return (0, z)."""
        return nn.functional.pad(z, (1, 0))


def logistic(shape: Sequence[int], classes: int) -> nn.Module:
    """Return logistic regression of two classes, with one weight for each input: convex, and strongly convex with l2."""
    if classes != 2:
        raise ConfigError(f"the logistic model is for two classes, not {classes}; use 'softmax'")
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1), TwoLogits())


class ResidualBlock(nn.Module):
    """y = relu(x + f(x)), where f is two 3 x 3 convolutions with normalisation; x is projected if the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), norm(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), norm(outside),
        )  # fmt: skip
        changes = stride > 1 or inside != outside
        projected = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), norm(outside))
        self.shortcut = projected if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return y."""
        return self.relu(self.inner(x) + self.shortcut(x))


def resnet18(shape: Sequence[int], classes: int, *, norm: str = "batch", width: int = 64) -> nn.Module:
    """Return ResNet-18 for small images: a 3 x 3 convolution first, and no pooling before the four stages.

    It has 11,173,962 parameters on CIFAR-10. Reference: He et al., "Deep Residual Learning for Image Recognition", 2016.

    Args:
        norm: "batch" for BatchNorm, "group" for GroupNorm with groups of 16 channels, which keeps no statistics.
        width: channels of the first stage.
    """
    if norm not in {"batch", "group"}:
        raise ConfigError(f"there is no norm {norm!r}; choose batch or group")
    make = (
        nn.BatchNorm2d if norm == "batch" else lambda channels: nn.GroupNorm(max(1, channels // 16), channels)
    )
    layers: list[nn.Module] = [nn.Conv2d(shape[0], width, 3, 1, 1, bias=False), make(width), nn.ReLU()]
    inside = width
    for stage in range(4):
        for stride in (1 if stage == 0 else 2, 1):
            layers.append(ResidualBlock(inside, width << stage, stride, make))
            inside = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


MODELS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    "cnn": paper_cnn,
    "mlp": mlp,
    "softmax": softmax,
    "logistic": logistic,
    "resnet18": resnet18,
    "resnet18-group": functools.partial(resnet18, norm="group"),
}


def make_model(name: str, shape: Sequence[int], classes: int) -> nn.Module:
    """Return a model by name, for inputs of a shape."""
    if name not in MODELS:
        raise ConfigError(
            f"there is no model {name!r}; choose one of {', '.join(MODELS)}, or bring your own module with feduhb.Federation"
        )
    if len(shape) != 3 and name not in {"mlp", "softmax", "logistic"}:
        raise ConfigError(
            f"the model {name!r} reads images, not inputs of the shape {list(shape)}; use 'mlp'"
        )
    return MODELS[name](shape, classes)
