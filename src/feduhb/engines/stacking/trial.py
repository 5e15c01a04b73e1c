"""A few examples, stacked and plain: does the module map, and is the loss a mean over examples?"""

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
from feduhb.engines.stacking.losses import each
from feduhb.engines.stacking.networks import Mapped
from feduhb.engines.stacking.sample import occurring, spread
from feduhb.errors import ConfigError

FEW = 8  # examples that go through the module
VALUES = 4096  # most targets that the loss is tried on,
NUMBERS = 1 << 24  # and most numbers of outputs that go with them
CHUNK, PART = 256, 1 << 20  # the same at a time
OTHERS = "use engine 'pool' or 'loop'"
NO_MEAN = f"the loss is not the mean over the examples of a batch, or the model mixes them; {OTHERS}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial found out."""

    idle: frozenset[str]  # parameters that the module does not use
    outputs: int  # numbers that the layers give an example: what going backward keeps
    classes: int | None  # that labels may name, where the loss is cross-entropy and targets are labels


def tried(module: nn.Module, local: Local, clients: Mapping[ClientId, Examples]) -> Trial:
    """Try the module on examples of several clients and the loss on the targets that occur; refuse, in words, what cannot be stacked.

    A target that the loss itself refuses is left out: whoever holds it is named when asked to train.
    """
    _check_alike(clients)
    x, y = spread(clients, FEW)
    with torch.no_grad():
        outputs = module(x.clone())  # a module may write into its inputs
    if good := [i for i in range(len(x)) if _given(local.loss, outputs[i : i + 1], y[i : i + 1])]:
        x, y, outputs = x[good], y[good], outputs[good]
    idle, inner = compared(module, local, x, y)
    size = max(1, outputs[0].numel(), y[0].numel())
    check_mean(local.loss, outputs, occurring(clients, max(FEW, min(VALUES, NUMBERS // size))))
    return Trial(idle, inner, _classes(local.loss, outputs, y))


def compared(module: nn.Module, local: Local, x: Tensor, y: Tensor) -> tuple[frozenset[str], int]:
    """Compare the gradients of a small batch [B, ...]; gives the parameters that stay idle, and the numbers that layers give an example."""
    counted: list[int] = []
    count = len(x)
    hooks = [
        layer.register_forward_hook(lambda _layer, _in, out: counted.append(_numbers(out)))
        for layer in module.modules()
        if not list(layer.children())
    ]
    names = [name for name, _ in module.named_parameters()]
    try:
        outputs = module(x.clone())
        loss = local.loss(outputs, y)
        found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    idle = frozenset(name for name, gradient in zip(names, found, strict=True) if gradient is None)
    plain = torch.cat(
        [
            torch.zeros(p.numel(), dtype=p.dtype) if g is None else g.flatten()
            for p, g in zip(module.parameters(), found, strict=True)
        ]
    )
    mapped = Mapped(module, local, 0, torch.device("cpu"), idle)
    share = torch.full((1, len(x) + 1), 1 / len(x), dtype=plain.dtype)
    share[0, -1] = 0  # an example more, as padding
    x, y = torch.cat([x, x[:1]]).unsqueeze(0), torch.cat([y, y[:1]]).unsqueeze(0)
    with _mapping():
        stacked = mapped.gradients(flatten(module), x, y, share)[0]
    if plain.isfinite().all() and not (stacked - plain).norm() <= 1e-3 * plain.norm():
        raise ConfigError(NO_MEAN)
    return idle, sum(counted) // count


def check_mean(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a loss in whose batch some targets weigh more than others.

    Each example's part in the gradient of a batch's loss must be that of its own loss, divided by their number. All batches share
    a target, so that no two of them can go by different weights; outputs [n, ...] are used over and over.
    """
    size = max(2, min(CHUNK, PART // max(1, outputs[0].numel(), targets[0].numel())))
    outputs = outputs[torch.arange(size) % len(outputs)]
    targets = torch.cat([_taken(loss, outputs, part) for part in targets.split(size)])
    for part in targets[1:].split(size - 1) if len(targets) else ():
        batch = torch.cat([targets[:1], part])
        if not _averages(loss, outputs[: len(batch)], batch):
            raise ConfigError(NO_MEAN)


def _averages(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    given = outputs.detach().requires_grad_()
    (plain,) = torch.autograd.grad(loss(given, targets), given, materialize_grads=True)
    with _mapping():
        alone = torch.func.grad(lambda outputs: each(loss, outputs, targets).sum())(outputs) / len(outputs)
    plain, alone = (part.reshape(len(part), -1) for part in (plain, alone))
    norms = plain.norm(dim=1)
    most = norms.where(norms.isfinite(), 0).max()
    tolerance = torch.finfo(plain.dtype).eps ** 0.6 * (norms + 1e-3 * most)
    fair = (plain - alone).norm(dim=1) <= tolerance  # not so where either is no number
    return bool((fair | ~plain.isfinite().all(1)).all())


@contextlib.contextmanager
def _mapping() -> Generator[None]:
    """Say what torch.func cannot do."""
    try:
        yield
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise ConfigError(f"torch.func cannot map this model or loss ({why}); {OTHERS}") from error


def _taken(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Those of the targets that a loss does not refuse."""
    if _given(loss, outputs[: len(targets)], targets) is not None:
        return targets
    return targets[
        [i for i in range(len(targets)) if _given(loss, outputs[i : i + 1], targets[i : i + 1]) is not None]
    ]


def _given(loss: Loss, outputs: Tensor, targets: Tensor) -> bool | None:
    """Whether a loss gives a finite number; None where it raises."""
    try:
        return bool(loss(outputs, targets).isfinite())
    except Exception:
        return None


def _classes(loss: Loss, outputs: Tensor, targets: Tensor) -> int | None:
    entropy = loss is functional.cross_entropy or type(loss) is nn.CrossEntropyLoss
    labels = not targets.is_floating_point() and (outputs.dim(), targets.dim()) == (2, 1)
    return outputs.shape[1] if entropy and labels else None


def _check_alike(clients: Mapping[ClientId, Examples]) -> None:
    """One tensor is to hold everybody's targets."""
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
