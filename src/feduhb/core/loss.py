"""Losses: try on a few examples whether a loss can train on some targets, and find the weight of each target."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feduhb.core.local import Loss
from feduhb.core.seeds import generator
from feduhb.errors import ModelError

SOME = 16  # examples on which a loss is tried
IGNORED = -100  # the target that cross-entropy leaves out by default
DRAWS = 8  # random outputs, none of which changes the loss if it does not depend on them


@dataclass(frozen=True, slots=True)
class WeightedEntropy:
    """Cross-entropy whose mean over a batch is weighted by classes: Σ w_y loss / Σ w_y over the targets that count."""

    weight: Tensor | None  # [K] of each class
    ignored: int  # the target that does not count
    smoothing: float

    @classmethod
    def of(cls, loss: Loss, targets: Tensor, *, scan: bool = False) -> WeightedEntropy | None:
        """Return a loss in this form if it weighs classes or leaves one out; None if it does not.

        Args:
            scan: also return it if one of the targets is the one that torch leaves out by default.
        """
        made = cls.read(loss, targets)
        if made is None:
            return None
        weighs = made.weight is not None or made.ignored != IGNORED
        return made if weighs or (scan and bool((targets == IGNORED).any())) else None

    @classmethod
    def read(cls, loss: Loss, targets: Tensor) -> WeightedEntropy | None:
        """Return a loss in this form if it is a mean of cross-entropies of labels; None if it is another one."""
        if targets.is_floating_point():  # probabilities: the mean is over examples
            return None
        if isinstance(loss, functools.partial) and loss.func is nn.functional.cross_entropy and not loss.args:
            found = dict(loss.keywords)
        elif type(loss) is nn.CrossEntropyLoss:
            found = {
                name: getattr(loss, name)
                for name in ("weight", "ignore_index", "label_smoothing", "reduction")
            }
        elif loss is nn.functional.cross_entropy:
            found = {}
        else:
            return None
        made = cls(
            found.pop("weight", None), found.pop("ignore_index", IGNORED), found.pop("label_smoothing", 0.0)
        )
        return made if found.pop("reduction", "mean") == "mean" and not found else None

    def weigh(self, targets: Tensor) -> Tensor:
        """Return the weight of each target in the mean."""
        labels = targets.long()
        counts = labels != self.ignored
        if self.weight is None:
            return counts.to(torch.get_default_dtype())
        return self.weight.to(targets.device)[labels.where(counts, 0)] * counts

    def sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return Σ w_y loss over a batch."""
        return nn.functional.cross_entropy(
            outputs,
            targets,
            self.weight,
            ignore_index=self.ignored,
            label_smoothing=self.smoothing,
            reduction="sum",
        )


def find_ignored(loss: Loss) -> int:
    """Return the target that a cross-entropy leaves out."""
    inner = loss.func if isinstance(loss, functools.partial) else loss
    given = loss.keywords if isinstance(loss, functools.partial) else {}
    return given.get("ignore_index", getattr(inner, "ignore_index", IGNORED))


def find_counted(loss: Loss, y: Tensor) -> Tensor:
    """Return which of some targets [n] a loss counts: all, except for the label that torch's cross-entropy leaves out."""
    inner = loss.func if isinstance(loss, functools.partial) else loss
    if _is_entropy(inner) and y.dim() == 1 and not y.is_floating_point():
        return y != find_ignored(loss)
    return torch.ones(len(y), dtype=torch.bool)


def _is_entropy(loss: Loss) -> bool:
    return loss is nn.functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)


def is_defined(loss: Loss, outputs: Tensor, y: Tensor) -> bool:
    """Return whether a loss is a number for some outputs of this shape: not if it leaves out every target.

    Random outputs are tried, and random probabilities, because the loss may take these.
    """
    return any(
        _try(loss, z, y) is not None for drawn in _draw_outputs(outputs) for z in (drawn, drawn.sigmoid())
    )


def check_targets(loss: Loss, y: Tensor) -> None:
    """Raise ModelError for numbers as the targets of cross-entropy: it would take them for probabilities of classes."""
    inner = loss.func if isinstance(loss, functools.partial) else loss
    is_binary = inner is nn.functional.binary_cross_entropy_with_logits or isinstance(
        inner, nn.BCEWithLogitsLoss
    )
    if is_binary and not y.is_floating_point():
        raise ModelError(
            f"the loss is bce_with_logits, but the targets are {_describe(y)}; give numbers: y.float()"
        )
    if not (_is_entropy(inner) and y.is_floating_point()):
        return
    is_split = y.dim() > 1 and y.shape[1] > 1 and not bool((y < 0).any())
    if not (
        is_split and torch.allclose(y.sum(dim=1).double(), torch.ones((), dtype=torch.float64), atol=1e-3)
    ):
        raise ModelError(
            f"the loss is cross-entropy, but the targets are numbers ({_describe(y)}) and not classes; for regression give "
            "loss=torch.nn.functional.mse_loss, for classes give whole numbers: y.long()"
        )


def check_loss(loss: Loss, outputs: Tensor, y: Tensor) -> None:
    """Raise ModelError if a loss compares outputs with other examples' targets, adds up examples, or trains nothing.

    Random outputs are tried, because a model may begin with equal ones; if the loss cannot read these, the model's own.

    Args:
        outputs: the model's outputs for some examples [n, ...].
        y: their targets [n, ...].
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch only warns of outputs and targets of different shapes
        drawn = next((z for z in _draw_outputs(outputs) if _try(loss, z, y) is not None), outputs.detach())
        _check_shapes(loss, drawn, y)
        _check_mean(loss, drawn, y)
        flat = [_is_flat(loss, z, y) for z in (outputs.detach(), *_draw_outputs(outputs))]
        if True in flat and False not in flat:
            raise ModelError(
                f"the loss does not change with the model's outputs ({_describe(outputs)}), so nothing would be trained; give "
                "one that fits the targets, such as loss=torch.nn.functional.mse_loss for numbers"
            )


def _check_shapes(loss: Loss, outputs: Tensor, y: Tensor) -> None:
    """Raise ModelError if a loss spreads outputs [n, 1] and targets [n] to [n, n]."""
    if outputs.shape == y.shape or outputs.numel() != y.numel():
        return
    found, aligned = _try(loss, outputs, y), _try(loss, outputs.reshape(y.shape), y)
    if found is None or aligned is None or torch.isclose(found, aligned, rtol=1e-3):
        return  # the loss aligns them itself
    raise ModelError(
        f"the model's outputs are {list(outputs.shape)} and the targets {list(y.shape)}, so the loss would compare every "
        "output with every target; make their shapes equal, such as y.unsqueeze(1) for outputs [n, 1]"
    )


def _check_mean(loss: Loss, outputs: Tensor, y: Tensor) -> None:
    """Raise ModelError if the loss of every example counted twice is nearly twice the loss."""
    once, twice = _try(loss, outputs, y), _try(loss, torch.cat([outputs, outputs]), torch.cat([y, y]))
    if once is None or twice is None or (twice - once).abs() < 0.5 * once.abs() or once == twice:
        return
    raise ModelError(
        "the loss of every example counted twice is not the same but "
        f"{float(twice / once):.3g} times as large; use its mean over the batch, such as reduction='mean'"
    )


def _draw_outputs(like: Tensor) -> Iterator[Tensor]:
    for number in range(DRAWS):
        draw = torch.randn(like.shape, generator=generator(0, "outputs", number))
        yield draw.to(like.dtype)


def _try(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor | None:
    """Return a loss as a number; None if it cannot read these outputs."""
    with torch.no_grad(), contextlib.suppress(Exception):
        value = loss(outputs, y)
        if bool(value.isfinite()):
            return value.double()
    return None


def _is_flat(loss: Loss, outputs: Tensor, y: Tensor) -> bool | None:
    """Return whether the gradient of a loss is zero, or it has none; None if the loss cannot read these outputs."""
    z = outputs.clone().requires_grad_()
    with torch.enable_grad(), contextlib.suppress(Exception):
        value = loss(z, y)
        if bool(value.isfinite()):
            (gradient,) = torch.autograd.grad(value, z, allow_unused=True) if value.requires_grad else (None,)
            return gradient is None or not bool(gradient.any())
    return None


def _describe(some: Tensor) -> str:
    return f"{str(some.dtype).removeprefix('torch.')} {['n', *some.shape[1:]]}".replace("'", "")
