"""The paper's CNN, a multilayer perceptron, and softmax regression (the theorem's)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from feduhb.errors import ConfigError


def paper_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """Two 5 x 5 convolutions (32, 64), each with ReLU and 2 x 2 pooling, then 512 units: 582,026 parameters on MNIST.

    The paper's "1600 units" are the flattened width on CIFAR-10; on MNIST it is 1024.
    """
    channels, height, width = shape
    across, down = _after(width), _after(height)
    if across < 1 or down < 1:
        raise ConfigError(
            f"the cnn needs images of at least 16 x 16 pixels, not {height} x {width}; use model = 'mlp'"
        )
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * across * down, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


def _after(side: int) -> int:
    """The side of an image after two unpadded 5 x 5 convolutions, each halved by pooling."""
    return ((side - 4) // 2 - 4) // 2


def mlp(shape: Sequence[int], classes: int, hidden: int = 64) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def softmax(shape: Sequence[int], classes: int) -> nn.Module:
    """Softmax regression: convex, and strongly so with l2."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


MODELS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    "cnn": paper_cnn,
    "mlp": mlp,
    "softmax": softmax,
}


def model_named(name: str, shape: Sequence[int], classes: int) -> nn.Module:
    """Make a model by name for inputs of a shape."""
    if name not in MODELS:
        raise ConfigError(
            f"there is no model {name!r}; choose one of {', '.join(MODELS)}, or bring your own module with feduhb.Federation"
        )
    return MODELS[name](shape, classes)
