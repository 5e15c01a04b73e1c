"""Accuracy and loss of a model on some examples."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from feduhb.core.flat import channels_last, with_params
from feduhb.core.types import Loss
from feduhb.data.federation import Examples, Federation
from feduhb.evaluate.backdoor import triggered

CHUNK = 250  # examples a forward pass holds at once, few enough to stay in cache


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Give the model's outputs for all inputs, a chunk at a time, images in channels-last order."""
    layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    with torch.no_grad():
        return torch.cat([model(part.contiguous(memory_format=layout)) for part in x.split(CHUNK)])


def accuracy(given: Tensor, y: Tensor) -> float:
    """Give the share of examples whose largest output is their label."""
    return float((given.argmax(dim=1) == y).double().mean())


def scores(model: nn.Module, examples: Examples, loss: Loss) -> tuple[float, float]:
    """Give the loss and, where targets are labels, the accuracy (else NaN) on some examples."""
    x, y = examples.all()
    given = outputs(model, x)
    labels = y.dim() == 1 and not y.is_floating_point() and given.dim() == 2
    return float(loss(given, y)), accuracy(given, y) if labels else float("nan")


def evaluator(federation: Federation) -> Callable[[Tensor], dict[str, float]]:
    """Make the function that scores a round's model: test loss and accuracy, and the backdoor's success if there is one."""
    module = federation.fresh_model()
    bait = triggered(federation)

    def evaluate(params: Tensor) -> dict[str, float]:
        model = channels_last(with_params(module, params.cpu()))
        test_loss, test_accuracy = scores(model, federation.test, federation.loss)
        found = {"test_loss": test_loss, "test_accuracy": test_accuracy}
        if bait is not None:
            found["backdoor"] = accuracy(outputs(model, bait[0]), bait[1])
        return {key: value for key, value in found.items() if math.isfinite(value)}

    return evaluate
