"""A trial on a few examples, stacked and plain: can torch.func map the module, and is the loss a mean over examples?"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.core.draws import augment_batch, draw_at
from feduhb.core.flat import flatten
from feduhb.core.inputs import Inputs, call_model, map_tensors
from feduhb.core.local import Local, Loss, move_loss
from feduhb.core.loss import WeightedEntropy, find_ignored
from feduhb.core.modules import has_batch_norm, list_statistics, list_trained
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples
from feduhb.engines.stacked.data import sample_examples, sample_targets
from feduhb.engines.stacked.networks import MappedNetwork, compute_losses, ignore_slow_maps, weigh_shares
from feduhb.engines.stacked.norms import mask_norms
from feduhb.errors import ConfigError

FEW = 8  # examples for the module
KEY = 1  # of the random draws
TOLERANCE = 1e-3  # of gradients and statistics, relative
VALUES = 4096  # targets for the loss, at most
NUMBERS = 1 << 24  # numbers in their outputs, at most
CHUNK, PART = 256, 1 << 20  # the same two limits for one batch
OTHERS = "use engine 'pool' or 'loop'"
NO_MEAN = f"the loss is not the mean over the examples of a batch, or the model mixes them; {OTHERS}"


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial."""

    idle: frozenset[str]  # parameters that the module does not use
    outputs: int  # numbers in the outputs of all layers for one example, which `backward` needs
    classes: int | None  # number of classes, if the loss is cross-entropy and targets are labels
    ignored: int  # the label that torch's cross-entropy leaves out
    weighs: bool  # whether the loss of clients that are mapped leaves it out, too
    refusal: str | None = None  # why clients cannot be trained together, in words; None if they can

    def find_ignored(self, *, alone: bool) -> int | None:
        """Return the label that is left out and need not be a class; None if there is none.

        Args:
            alone: whether each client trains alone, by torch's own loss.
        """
        return self.ignored if alone or self.weighs else None


def run_trial(module: nn.Module, local: Local, clients: Mapping[ClientId, Examples]) -> Trial:
    """Try the module on some examples, and the loss on all targets; return also why they cannot be stacked.

    The trial leaves out targets that the loss rejects. Training names the clients that hold them.

    Args:
        module: in training mode (`prepare_training`), on the CPU.

    Raises:
        ConfigError: the targets of the clients do not fit into one tensor.
    """
    _check_alike(clients)
    local = replace(local, loss=move_loss(local.loss, torch.device("cpu")))
    x, y = sample_examples(clients, FEW)
    with torch.no_grad():
        outputs = _compute_outputs(module, local, x)
    good = [i for i in range(len(y)) if _is_finite(local.loss, outputs[i : i + 1], y[i : i + 1])]
    if len(good) > has_batch_norm(module):  # which needs two
        x, y, outputs = map_tensors(lambda part: part[good], x), y[good], outputs[good]
    labels = _count_classes(local.loss, outputs, y), find_ignored(local.loss)
    weighs = WeightedEntropy.of(local.loss, y) is not None
    try:
        idle, inner = _compare_gradients(module, local, x, y)
        size = max(1, outputs[0].numel(), y[0].numel())
        if not weighs:
            check_mean(local.loss, outputs, sample_targets(clients, max(FEW, min(VALUES, NUMBERS // size))))
    except ConfigError as error:
        return Trial(frozenset(), 0, *labels, weighs, refusal=str(error))
    return Trial(idle, inner, *labels, weighs)


def _compute_outputs(module: nn.Module, local: Local, x: Inputs) -> Tensor:
    """Return the outputs of a module in training; its statistics stay as they are."""
    kept = [(value, value.clone()) for _, value in list_statistics(module)]
    try:
        return _call(module, local, x)
    finally:
        for value, before in kept:
            value.copy_(before)


def _compare_gradients(module: nn.Module, local: Local, x: Inputs, y: Tensor) -> tuple[frozenset[str], int]:
    """Compare the gradients and statistics of a small batch [B, ...]; return the unused parameters, and `Trial.outputs`.

    BatchNorm of a few examples can enlarge rounding a thousand times in each layer. It is tried in float64, if the module
    and its loss can compute in that.
    """
    statistics = bool(list_statistics(module))
    tolerance = TOLERANCE
    if statistics and (wide := _widen(module, local, x, y)) is not None:
        module, local, x, y = wide
    elif statistics:
        tolerance = 50 * TOLERANCE
    plain = copy.deepcopy(module) if statistics else module
    gradients, idle, inner = _differentiate(plain, local, x, y)
    masked = mask_norms(copy.deepcopy(module)) if statistics else module
    mapped = MappedNetwork(
        masked, replace(local, optimizer="sgd", momentum=0.0), 0, torch.device("cpu"), idle
    )
    share = torch.full((1, len(y) + 1), 1 / len(y), dtype=gradients.dtype)
    share[0, -1] = 0  # one more example, as padding
    more_x = map_tensors(lambda part: torch.cat([part, part[:1]]).unsqueeze(0), x)
    more_y = torch.cat([y, y[:1]]).unsqueeze(0)
    factor = weigh_shares(local.loss, more_y, share)
    with _mapping_errors():
        found = mapped.gradients(flatten(module), more_x, more_y, share, factor, torch.tensor([KEY]))
    expected = gradients, flatten(plain)[len(gradients) :]
    for one, (other,) in zip(expected, found, strict=True):
        if one.isfinite().all() and not (other - one).norm() <= tolerance * one.norm():
            raise ConfigError(NO_MEAN)
    return idle, inner


def _differentiate(
    module: nn.Module, local: Local, x: Inputs, y: Tensor
) -> tuple[Tensor, frozenset[str], int]:
    """Return the flat gradient of a batch [B, ...], the unused parameters and `Trial.outputs`; statistics change."""
    names, own = zip(*list_trained(module), strict=True)
    counted: list[int] = []
    hooks = [
        layer.register_forward_hook(lambda _layer, _in, out: counted.append(_numbers(out)))
        for layer in module.modules()
        if not list(layer.children())
    ]
    try:
        loss = local.loss(_call(module, local, x), y)
        found = torch.autograd.grad(loss, own, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    idle = frozenset(name for name, g in zip(names, found, strict=True) if g is None)
    parts = (torch.zeros_like(p) if g is None else g for p, g in zip(own, found, strict=True))
    return torch.cat([part.flatten() for part in parts]), idle, sum(counted) // len(y)


def _widen(
    module: nn.Module, local: Local, x: Inputs, y: Tensor
) -> tuple[nn.Module, Local, Inputs, Tensor] | None:
    """Return a copy of everything in float64; None if the module or the loss cannot compute in that."""

    def widen(part: Tensor) -> Tensor:
        return part.double() if part.is_floating_point() else part

    wide = copy.deepcopy(module).double()
    loss = local.loss
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).double()
    elif isinstance(loss, functools.partial):
        settings = {key: widen(v) if isinstance(v, Tensor) else v for key, v in loss.keywords.items()}
        loss = functools.partial(loss.func, *loss.args, **settings)
    found = wide, replace(local, loss=loss), map_tensors(widen, x), widen(y)
    try:
        with torch.no_grad():
            loss(_compute_outputs(wide, found[1], found[2]), found[3])
    except Exception:
        return None
    return found


def _call(module: nn.Module, local: Local, x: Inputs) -> Tensor:
    """Return the outputs of a module in training."""
    with draw_at(KEY):  # a module may change its inputs
        return call_model(module, augment_batch(local.augment, map_tensors(torch.clone, x)))


def check_mean(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Raise ConfigError if some targets have more weight than others in the loss of a batch.

    Each example's part in the gradient of a batch's loss must be the gradient of its own loss, divided by the size of
    the batch. All batches share one target, so that weights cannot differ between batches either. The outputs [n, ...]
    are repeated as often as needed.
    """
    size = max(2, min(CHUNK, PART // max(1, outputs[0].numel(), targets[0].numel())))
    outputs = outputs[torch.arange(size) % len(outputs)]
    targets = torch.cat([_select_accepted(loss, outputs, part) for part in targets.split(size)])
    for part in targets[1:].split(size - 1) if len(targets) else ():
        batch = torch.cat([targets[:1], part])
        if not _is_mean(loss, outputs[: len(batch)], batch):
            raise ConfigError(NO_MEAN)


def _is_mean(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    given = outputs.detach().requires_grad_()
    (plain,) = torch.autograd.grad(loss(given, targets), given, materialize_grads=True)
    with _mapping_errors():
        total = torch.func.grad(lambda outputs: compute_losses(loss, outputs, targets).sum())(outputs)
    alone = total / len(outputs)
    plain, alone = (part.reshape(len(part), -1) for part in (plain, alone))
    norms = plain.norm(dim=1)
    most = norms.where(norms.isfinite(), 0).max()
    tolerance = torch.finfo(plain.dtype).eps ** 0.6 * (norms + 1e-3 * most)
    fair = (plain - alone).norm(dim=1) <= tolerance  # False if either is NaN
    return bool((fair | ~plain.isfinite().all(1)).all())


@contextlib.contextmanager
def _mapping_errors() -> Generator[None]:
    """Raise a ConfigError with the reason if torch.func fails."""
    try:
        with ignore_slow_maps():
            yield
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise ConfigError(
            f"torch.func cannot map this model, loss or augmentation ({why}); {OTHERS}"
        ) from error


def _select_accepted(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the targets for which the loss does not raise an error."""
    if _is_finite(loss, outputs[: len(targets)], targets) is not None:
        return targets
    singles = [_is_finite(loss, outputs[i : i + 1], targets[i : i + 1]) for i in range(len(targets))]
    return targets[[i for i, single in enumerate(singles) if single is not None]]


def _is_finite(loss: Loss, outputs: Tensor, targets: Tensor) -> bool | None:
    """Return whether a loss is finite; None if it raises an error."""
    try:
        return bool(loss(outputs, targets).isfinite())
    except Exception:
        return None


def _count_classes(loss: Loss, outputs: Tensor, targets: Tensor) -> int | None:
    """Return the number of classes if targets are labels of cross-entropy; None if they are not."""
    inner = loss.func if isinstance(loss, functools.partial) else loss
    entropy = inner is functional.cross_entropy or type(inner) is nn.CrossEntropyLoss
    labels = not targets.is_floating_point() and (outputs.dim(), targets.dim()) == (2, 1)
    return outputs.shape[1] if entropy and labels else None


def _check_alike(clients: Mapping[ClientId, Examples]) -> None:
    """Raise ConfigError unless the targets of all clients fit into one tensor."""
    first, *others = clients
    for other in others:
        one, two = clients[first].y, clients[other].y
        if one.dtype != two.dtype or one.shape[1:] != two.shape[1:]:
            raise ConfigError(
                f"client {other} holds targets of {two.dtype} {list(two.shape[1:])}, client {first} of {one.dtype} "
                f"{list(one.shape[1:])}; make them alike, or {OTHERS}"
            )


def _numbers(output: object) -> int:
    return output.numel() if isinstance(output, Tensor) else 0
