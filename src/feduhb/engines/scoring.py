"""Score a model: its loss and scores on some examples, and how often a planted trigger still works."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence

import torch
from torch import Tensor, nn

from feduhb.core.flat import channels_last, unflatten
from feduhb.core.inputs import Inputs, call_model, count_rows, map_tensors
from feduhb.core.local import Loss
from feduhb.core.scores import (
    Score,
    average_by_weight,
    check_scores,
    choose_scores,
    compute_accuracy,
    compute_score,
    find_kind,
)
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.engines.loop import limit_threads
from feduhb.errors import DataError

CPU_CHUNK = 250  # examples in one forward pass, few enough to stay in the cache
GPU_CHUNK = 2500


def compute_outputs(model: nn.Module, x: Inputs) -> Tensor:
    """Return the model's outputs for all inputs, on the CPU; compute them on the model's device in full precision.

    The model computes as it does in use: without dropout, and with the statistics that it has.
    """
    device = next(model.parameters()).device
    size = GPU_CHUNK if device.type == "cuda" else CPU_CHUNK
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with (
        torch.no_grad(),
        _evaluation_mode(model),
        exact if device.type == "cuda" else contextlib.nullcontext(),
    ):
        return torch.cat([call_model(model, part) for part in _split(x, size, device)]).cpu()


def _split(x: Inputs, size: int, device: torch.device) -> Iterator[Inputs]:
    """Yield inputs in chunks on a device; images are laid out channels-last."""
    for begin in range(0, max(1, count_rows(x)), size):

        def move(part: Tensor, begin: int = begin) -> Tensor:
            layout = torch.channels_last if part.dim() == 4 else torch.contiguous_format
            return part[begin : begin + size].to(device).contiguous(memory_format=layout)

        yield map_tensors(move, x)


@contextlib.contextmanager
def _evaluation_mode(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode inside the block; restore the mode of every layer afterwards."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def score_model(model: nn.Module, examples: Examples, loss: Loss) -> tuple[float, float]:
    """Return a model's loss on some examples, and its accuracy: NaN if their targets are not labels."""
    x, y = examples.all()
    return score_outputs(compute_outputs(model, x), y, loss)


def score_outputs(outputs: Tensor, y: Tensor, loss: Loss) -> tuple[float, float]:
    """Return the loss of some outputs, and their accuracy: NaN if the targets are not labels."""
    has_labels = find_kind(outputs, y, loss) == "labels"
    return float(loss(outputs, y)), compute_accuracy(outputs, y) if has_labels else float("nan")


def try_scores(federation: Federation, model: nn.Module) -> tuple[Score, ...]:
    """Return a federation's scores after a trial on some test examples; raise ConfigError if one cannot be computed.

    A federation that was given none has the accuracy, where there is one.
    """
    count = len(federation.test)
    x, y = federation.test.batch(torch.linspace(0, count - 1, min(CPU_CHUNK, count)).long())
    outputs = compute_outputs(model, x)
    if federation.scores is None:
        return choose_scores(outputs, y, federation.loss)
    check_scores(federation.scores, outputs, y, federation.loss)
    return federation.scores


def choose_score(model: nn.Module, examples: Examples, loss: Loss) -> Score | None:
    """Return the main score of examples for which none was given: the accuracy, where there is one."""
    x, y = examples.batch(torch.arange(min(CPU_CHUNK, len(examples))))
    return next(iter(choose_scores(compute_outputs(model, x), y, loss)), None)


def make_evaluator(federation: Federation, device: str = "cpu") -> Callable[[Tensor], dict[str, float]]:
    """Return the function that scores the parameters [P] of a round.

    It returns the test loss, the federation's scores and, if there is a backdoor, how often that works. All scores are
    tried first, on the fresh model.

    Args:
        device: where to compute; "cuda" keeps the test data there.
    """
    model = channels_last(federation.fresh_model()).to(device)
    scores = try_scores(federation, model)
    triggered = stamp_test_set(federation)
    x, y = federation.test.all()
    stamped = None if triggered is None else triggered[0].to(device)
    x = map_tensors(lambda part: part.to(device), x)

    def evaluate(params: Tensor) -> dict[str, float]:
        unflatten(params, model)
        outputs = compute_outputs(model, x)
        found = {"test_loss": float(federation.loss(outputs, y))}
        found |= {f"test_{score.name}": compute_score(score, outputs, y) for score in scores}
        if triggered is not None and stamped is not None:
            found["backdoor"] = compute_accuracy(compute_outputs(model, stamped), triggered[1])
        return {key: value for key, value in found.items() if math.isfinite(value)}

    return evaluate


def make_held_out_evaluator(
    federation: Federation, score: Score | None, device: str = "cpu"
) -> Callable[[Tensor, Sequence[ClientId]], dict[str, float]]:
    """Return the function that scores parameters [P] on the held-out data of some clients; empty if they have none."""
    model = channels_last(federation.fresh_model()).to(device)
    held = {client: examples for client, examples in federation.held_out.items() if len(examples)}

    def evaluate(params: Tensor, clients: Sequence[ClientId]) -> dict[str, float]:
        unflatten(params, model)
        there = [client for client in clients if client in held]
        found = {client: score_held_out(model, held[client], federation.loss, score) for client in there}
        weights = {client: float(len(held[client])) for client in there}
        names = ["loss", *([] if score is None else [score.name])]
        given = {name: {c: scores[name] for c, scores in found.items() if name in scores} for name in names}
        return {name: average_by_weight(weights, values) for name, values in given.items() if values}

    return evaluate


def score_held_out(model: nn.Module, examples: Examples, loss: Loss, score: Score | None) -> dict[str, float]:
    """Return the loss and a score of a model on a client's held-out examples, as far as they are finite.

    It computes with one thread, because a stop rule may decide by these bits.
    """
    x, y = examples.all()
    with limit_threads(1):
        outputs = compute_outputs(model, x)
        found = {"loss": float(loss(outputs, y))}
        if score is not None:
            found[score.name] = compute_score(score, outputs, y)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def stamp_test_set(federation: Federation) -> tuple[Tensor, Tensor] | None:
    """Return the test images whose true label is not the backdoor's target, stamped, with the target as their label.

    The share of them that a model takes for the target is the success of the backdoor. A model that never saw
    the trigger has a success above zero too: read the two side by side. None if there is no backdoor.
    """
    if federation.backdoor is None:
        return None
    x, y = federation.test.all()
    if not isinstance(x, Tensor):
        raise DataError(
            "a backdoor is a trigger in images, but the inputs are several tensors; leave backdoor out"
        )
    others = y != federation.backdoor.target
    return federation.backdoor.stamp(x[others]), torch.full_like(y[others], federation.backdoor.target)
