"""The paper's CNN, a multilayer perceptron, and softmax regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

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


MODELS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    "cnn": paper_cnn,
    "mlp": mlp,
    "softmax": softmax,
}


def make_model(name: str, shape: Sequence[int], classes: int) -> nn.Module:
    """Return a model by name, for inputs of a shape."""
    if name not in MODELS:
        raise ConfigError(
            f"there is no model {name!r}; choose one of {', '.join(MODELS)}, or bring your own module with feduhb.Federation"
        )
    return MODELS[name](shape, classes)
