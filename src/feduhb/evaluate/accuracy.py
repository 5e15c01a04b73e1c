"""Accuracy and loss of a model on some examples."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from feduhb.core.flat import channels_last, with_params
from feduhb.core.types import Loss
from feduhb.data.federation import Examples, Federation
from feduhb.evaluate.backdoor import triggered

CHUNK = 250  # examples a forward pass holds at once, few enough to stay in cache
ON_GPU = 2500  # the same, where there is no such cache


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Give the model's outputs for all inputs, on the CPU; computed where the model is, a chunk at a time, in full precision."""
    layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    device = next(model.parameters()).device
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with torch.no_grad(), exact if device.type == "cuda" else contextlib.nullcontext():
        chunks = x.split(ON_GPU if device.type == "cuda" else CHUNK)
        parts = (part.to(device).contiguous(memory_format=layout) for part in chunks)
        return torch.cat([model(part) for part in parts]).cpu()


def accuracy(given: Tensor, y: Tensor) -> float:
    """Give the share of examples whose largest output is their label."""
    return float((given.argmax(dim=1) == y).double().mean())


def scores(model: nn.Module, examples: Examples, loss: Loss) -> tuple[float, float]:
    """Give the loss and, where targets are labels, the accuracy (else NaN) on some examples."""
    x, y = examples.all()
    return scored(outputs(model, x), y, loss)


def scored(given: Tensor, y: Tensor, loss: Loss) -> tuple[float, float]:
    """Give the loss and, where targets are labels, the accuracy (else NaN) of some outputs."""
    labels = y.dim() == 1 and not y.is_floating_point() and given.dim() == 2
    return float(loss(given, y)), accuracy(given, y) if labels else float("nan")


def evaluator(federation: Federation, device: str = "cpu") -> Callable[[Tensor], dict[str, float]]:
    """Make the function that scores a round's model: test loss and accuracy, and the backdoor's success if there is one.

    Args:
        device: where to compute: "cuda" keeps the test data there.
    """
    module = federation.fresh_model()
    bait = triggered(federation)
    x, y = federation.test.all()
    stamped = None if bait is None else bait[0].to(device)
    x = x.to(device)

    def evaluate(params: Tensor) -> dict[str, float]:
        model = channels_last(with_params(module, params.cpu())).to(device)
        test_loss, test_accuracy = scored(outputs(model, x), y, federation.loss)
        found = {"test_loss": test_loss, "test_accuracy": test_accuracy}
        if bait is not None and stamped is not None:
            found["backdoor"] = accuracy(outputs(model, stamped), bait[1])
        return {key: value for key, value in found.items() if math.isfinite(value)}

    return evaluate
