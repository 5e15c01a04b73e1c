"""Score a model: its loss and scores on some examples, and how often a planted trigger still works."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from feduhb.core.flat import channels_last, unflatten
from feduhb.core.inputs import Inputs, call_model, count_rows, join_inputs, map_tensors
from feduhb.core.local import Loss
from feduhb.core.loss import find_counted, is_defined
from feduhb.core.modules import is_large
from feduhb.core.own_code import describe_error
from feduhb.core.scores import (
    SCORES,
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
from feduhb.engines.precision import fix_precision
from feduhb.errors import DataError, ModelError

CPU_CHUNK = 250  # examples in one forward pass, few enough to stay in the cache
GPU_CHUNK = 2500


def compute_outputs(model: nn.Module, x: Inputs) -> Tensor:
    """Return the model's outputs for all inputs, on the CPU; compute them on the model's device in full precision.

    The model computes as it does in use: without dropout, and with the statistics that it has.
    """
    device = next(model.parameters()).device
    size = GPU_CHUNK if device.type == "cuda" else CPU_CHUNK
    with torch.no_grad(), _evaluation_mode(model), fix_precision(device):
        found, end = torch.empty(0), 0
        for part in _split(x, size, device):
            made = call_model(model, part)
            # One tensor for all: many small ones would keep the memory between them from being used again.
            if not end:
                rows = len(made) * count_rows(x) // max(1, count_rows(part))
                is_last = made.dim() == 4 and made.is_contiguous(memory_format=torch.channels_last)
                layout = torch.channels_last if is_last else torch.contiguous_format
                found = torch.empty(
                    rows, *made.shape[1:], dtype=made.dtype, device=device, memory_format=layout
                )
            found[end : end + len(made)] = made
            end += len(made)
        return found.cpu()


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
    accuracy = compute_score(SCORES["accuracy"], outputs, y, loss) if has_labels else math.nan
    return float(loss(outputs, y)), accuracy


def try_scores(federation: Federation, model: nn.Module) -> tuple[Score, ...]:
    """Return a federation's scores after a trial on some test examples; raise an error if one cannot be computed.

    A federation that was given none has the accuracy, where there is one.
    """
    count = len(federation.test)
    x, y = federation.test.batch(torch.linspace(0, count - 1, min(CPU_CHUNK, count)).long())
    try:
        outputs = compute_outputs(model, x)
    except Exception as error:
        where = next(model.parameters()).device.type
        raise ModelError(
            f"the model cannot compute in evaluation mode on {where} ({describe_error(error)}); look at what its forward does when "
            "self.training is False, and make new tensors there on the device of the inputs"
        ) from error
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
    make_model = _share_model(federation, device)
    scores = try_scores(federation, make_model())
    triggered = stamp_test_set(federation)
    (x, y), loss = federation.test.all(), federation.loss
    stamped = None if triggered is None else triggered[0].to(device)
    x = map_tensors(lambda part: part.to(device), x)

    def evaluate(params: Tensor) -> dict[str, float]:
        model = make_model()
        unflatten(params, model)
        outputs = compute_outputs(model, x)
        found = {"test_loss": float(loss(outputs, y))}
        found |= {f"test_{score.name}": compute_score(score, outputs, y, loss) for score in scores}
        if triggered is not None and stamped is not None:
            found["backdoor"] = compute_accuracy(compute_outputs(model, stamped), triggered[1])
        return {key: value for key, value in found.items() if math.isfinite(value)}

    return evaluate


def _share_model(federation: Federation, device: str) -> Callable[[], nn.Module]:
    """Return the function that returns a federation's model on a device, to be filled and used at once.

    It is the same module each time, but a new one if the model is large and on the CPU: so it takes no memory while
    clients train.
    """

    def make() -> nn.Module:
        return channels_last(federation.fresh_model()).to(device)

    model = make()
    return make if device == "cpu" and is_large(model) else lambda: model


def make_held_out_evaluator(
    federation: Federation, score: Score | None, device: str = "cpu"
) -> Callable[[Tensor, Sequence[ClientId]], dict[str, float]]:
    """Return the function that scores parameters [P] on the held-out data of some clients; empty if they have none.

    It leaves out a mean that is not finite because the value of some client is not.

    Args:
        device: where to compute; "cuda" keeps the held-out data there, because copying it takes longer than scoring, and
            computes it for all clients together, because many small batches take longer than a few large ones.
    """
    make_model = _share_model(federation, device)
    held = {client: examples for client, examples in sorted(federation.held_out.items()) if len(examples)}
    counts = {client: float(count_scored(examples, federation.loss)) for client, examples in held.items()}
    compute = _compute_each if device == "cpu" or not held else _Together(held, device).compute

    def evaluate(params: Tensor, clients: Sequence[ClientId]) -> dict[str, float]:
        model = make_model()
        unflatten(params, model)
        there = {client: held[client] for client in clients if client in held}
        with limit_threads(1):
            found = {
                client: _score_held_out(outputs, there[client].targets, federation.loss, score)
                for client, outputs in compute(model, there)
            }
        weights = {client: counts[client] for client in there}
        names = ["loss", *([] if score is None else [score.name])]
        given = {name: {c: scores[name] for c, scores in found.items() if name in scores} for name in names}
        means = {name: average_by_weight(weights, values) for name, values in given.items() if values}
        return {name: mean for name, mean in means.items() if math.isfinite(mean)}

    return evaluate


def _compute_each(model: nn.Module, there: Mapping[ClientId, Examples]) -> Iterator[tuple[ClientId, Tensor]]:
    """Yield each client with the model's outputs on its examples."""
    for client, examples in there.items():
        yield client, compute_outputs(model, examples.all()[0])


class _Together:
    """Held-out inputs of all clients on a device, one client after another."""

    def __init__(self, held: Mapping[ClientId, Examples], device: str) -> None:
        ends = list(itertools.accumulate(map(len, held.values())))
        self.places = {
            client: range(end - len(held[client]), end) for client, end in zip(held, ends, strict=True)
        }
        whole = join_inputs([examples.all()[0] for examples in held.values()])
        self.x = map_tensors(lambda part: part.to(device), whole)

    def compute(
        self, model: nn.Module, there: Mapping[ClientId, Examples]
    ) -> Iterator[tuple[ClientId, Tensor]]:
        """Yield each client with the model's outputs on its examples."""
        if not there:
            return
        x = self.x
        if [*there] != [*self.places]:
            rows = torch.tensor([row for client in there for row in self.places[client]])
            x = map_tensors(lambda part: part[rows.to(part.device)], x)
        sizes = [len(examples) for examples in there.values()]
        yield from zip(there, compute_outputs(model, x).split(sizes), strict=True)


def count_scored(examples: Examples, loss: Loss) -> int:
    """Return the weight of a client's held-out values: its examples that the loss counts, or 1 if it counts none."""
    return max(1, int(find_counted(loss, examples.targets).sum()))


def score_held_out(
    model: nn.Module, x: Inputs, y: Tensor, loss: Loss, score: Score | None
) -> dict[str, float]:
    """Return the loss and a score of a model on a client's held-out examples, as far as they are defined for these.

    A value that is not finite although it is defined shows that the model has diverged. It computes with one thread, because
    a stop rule may decide by these bits.
    """
    with limit_threads(1):
        return _score_held_out(compute_outputs(model, x), y, loss, score)


def _score_held_out(outputs: Tensor, y: Tensor, loss: Loss, score: Score | None) -> dict[str, float]:
    found = {"loss": float(loss(outputs, y))}
    if score is not None:
        found[score.name] = compute_score(score, outputs, y, loss)
    undefined = [
        name for name, value in found.items() if math.isnan(value) and _is_undefined(name, outputs, y, loss)
    ]
    return {name: value for name, value in found.items() if name not in undefined}


def _is_undefined(name: str, outputs: Tensor, y: Tensor, loss: Loss) -> bool:
    """Return whether a value is NaN because it is not defined for these examples, and not because of the outputs."""
    is_score_of_finite = name != "loss" and bool(outputs.isfinite().all())
    return is_score_of_finite or not is_defined(loss, outputs, y)


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
