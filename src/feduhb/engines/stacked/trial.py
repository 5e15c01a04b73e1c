"""A trial on a few examples, stacked and plain: can torch.func map the module, and is the loss a mean over examples?"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.core.flat import flatten
from feduhb.core.types import ClientId, Local, Loss
from feduhb.data.federation import Examples
from feduhb.engines.stacked.data import sample_examples, sample_targets
from feduhb.engines.stacked.networks import MappedNetwork, compute_losses
from feduhb.errors import ConfigError

FEW = 8  # examples for the module
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


def run_trial(module: nn.Module, local: Local, clients: Mapping[ClientId, Examples]) -> Trial:
    """Try the module on some examples, and the loss on all targets; raise ConfigError if they cannot be stacked.

    The trial leaves out targets that the loss rejects. Training names the clients that hold them.
    """
    _check_alike(clients)
    x, y = sample_examples(clients, FEW)
    with torch.no_grad():
        outputs = module(x.clone())  # a module may change its inputs
    if good := [i for i in range(len(x)) if _is_finite(local.loss, outputs[i : i + 1], y[i : i + 1])]:
        x, y, outputs = x[good], y[good], outputs[good]
    idle, inner = _compare_gradients(module, local, x, y)
    size = max(1, outputs[0].numel(), y[0].numel())
    check_mean(local.loss, outputs, sample_targets(clients, max(FEW, min(VALUES, NUMBERS // size))))
    return Trial(idle, inner, _count_classes(local.loss, outputs, y))


def _compare_gradients(module: nn.Module, local: Local, x: Tensor, y: Tensor) -> tuple[frozenset[str], int]:
    """Compare the gradients of a small batch [B, ...]; return the unused parameters, and `Trial.outputs`."""
    counted: list[int] = []
    hooks = [
        layer.register_forward_hook(lambda _layer, _in, out: counted.append(_numbers(out)))
        for layer in module.modules()
        if not list(layer.children())
    ]
    try:
        loss = local.loss(module(x.clone()), y)
        found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    idle = frozenset(n for (n, _), g in zip(module.named_parameters(), found, strict=True) if g is None)
    pairs = zip(module.parameters(), found, strict=True)
    plain = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])
    mapped = MappedNetwork(module, local, 0, torch.device("cpu"), idle)
    share = torch.full((1, len(x) + 1), 1 / len(x), dtype=plain.dtype)
    share[0, -1] = 0  # one more example, as padding
    more_x, more_y = (torch.cat([part, part[:1]]).unsqueeze(0) for part in (x, y))
    with _mapping_errors():
        stacked = mapped.gradients(flatten(module), more_x, more_y, share)[0]
    if plain.isfinite().all() and not (stacked - plain).norm() <= 1e-3 * plain.norm():
        raise ConfigError(NO_MEAN)
    return idle, sum(counted) // len(x)


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
        yield
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise ConfigError(f"torch.func cannot map this model or loss ({why}); {OTHERS}") from error


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
    entropy = loss is functional.cross_entropy or type(loss) is nn.CrossEntropyLoss
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
