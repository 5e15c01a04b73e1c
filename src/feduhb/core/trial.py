"""A trial step: can a model and its loss be trained on some data, exactly?"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from feduhb.core.checks import name_kind
from feduhb.core.describe import describe_function, name_function
from feduhb.core.draws import augment_batch, draw_at
from feduhb.core.inputs import Inputs, call_model, list_tensors, map_tensors
from feduhb.core.local import Augment, Loss
from feduhb.core.loss import SOME, check_loss, check_targets, find_counted
from feduhb.core.modules import (
    DRAWS,
    draw_otherwise,
    find_changed,
    has_batch_norm,
    list_carried,
    list_norms,
    move_parameters,
    prepare_training,
    watch_layers,
)
from feduhb.core.scores import OF_CLASSES, are_labels, is_one_of
from feduhb.errors import ModelError

# How to change the type of a tensor, or of an array.
TYPES = {
    torch.float32: 'x.float(), or x.astype("float32") of an array',
    torch.float64: 'x.double(), or x.astype("float64") of an array',
    torch.int64: 'x.long(), or x.astype("int64") of an array',
}


class Rows(Protocol):
    """Examples that can be read by their positions."""

    def __len__(self) -> int: ...

    def batch(self, positions: Tensor) -> tuple[Any, Tensor]:
        """Return the inputs and targets at some positions."""
        ...


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a trial step computed."""

    value: Any  # the loss, or whatever the function returned
    outputs: Any  # of the model
    again: Any  # the outputs for the same batch, a second time
    drew: list[str]  # what drew random numbers without an address


def check_fit(module: nn.Module, loss: Loss, examples: Rows, augment: Augment | None = None) -> None:
    """Raise ModelError if a training step on some examples fails, draws without an address or keeps a state of its own.

    The loss is tried too. The module's parameters and statistics change.
    """
    if isinstance(loss, type):
        raise ModelError(f"the loss is the class {loss.__name__}; give an instance: loss={loss.__name__}()")
    some = _choose_rows(module, examples)
    x, y = examples.batch(some)
    check_targets(loss, y)
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise ModelError("the loss has parameters of its own, which nobody trains; put them into the model")
    constants = {name: value.clone() for name, value in list_carried(module)}
    functions = [one for one in (loss, augment) if one is not None]
    described = [describe_function(one) for one in functions]
    found = _try_step(module, loss, x, y, augment, some)
    _check_value(found.value)
    _check_numbers(x, y, found)
    if found.drew:
        raise ModelError(f"{found.drew[0]} {DRAWS}")
    _check_constants(module, constants)
    _check_modes(module)
    _check_repetition(found.outputs, found.again)
    check_loss(loss, found.outputs, y)
    once = loss(found.outputs.detach(), y)
    with draw_otherwise():
        twice = loss(found.outputs.detach(), y)
    if not torch.allclose(once, twice, 0, 0, equal_nan=True):
        raise ModelError(
            "the loss returns another value for the same outputs, so it keeps a state or draws; use one that does not"
        )
    for function, before in zip(functions, described, strict=True):
        if describe_function(function) != before:
            raise ModelError(
                f"{name_function(function)} changes its own settings when it is called, and a run recognises it by these; keep counters "
                "and logs in a list"
            )


def _choose_rows(module: nn.Module, examples: Rows) -> Tensor:
    """Return the positions of evenly spaced examples; of a single one twice if BatchNorm needs two."""
    count = len(examples)
    some = torch.linspace(0, count - 1, min(SOME, count)).long()
    return some.repeat(2) if count == 1 and has_batch_norm(module) else some


def _try_step(
    module: nn.Module, loss: Loss, x: Inputs, y: Tensor, augment: Augment | None, rows: Tensor
) -> _Trial:
    def compute(rows: int, x: Inputs = x) -> Any:
        with draw_at(0):
            return call_model(
                module, augment_batch(augment, map_tensors(lambda part: part[:rows].clone(), x))
            )

    try:
        with warnings.catch_warnings(), watch_layers(prepare_training(module)) as drew:
            warnings.simplefilter("ignore")  # of shapes, which check_loss judges
            first = compute(2)
            if not isinstance(first, Tensor):
                raise ModelError(
                    f"the model returns {name_kind(first)}; return one tensor, such as its logits, from a module around it"
                )
            value = loss(first, y[:2])
            if isinstance(value, Tensor) and value.requires_grad and not value.dim():
                value.backward()
            outputs = compute(len(y))
            with draw_otherwise():
                again = compute(len(y))
            loss(outputs, y)
            move_parameters(module)  # a buffer may follow the parameters
            compute(2)
    except ModelError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        with warnings.catch_warnings(), watch_layers(module):
            warnings.simplefilter("ignore")
            some = functools.partial(compute, 2)
            found = (
                _explain_inputs(module, some, x)
                or _explain_classes(loss, compute, y, rows)
                or _explain_targets(loss, some, y[:2])
            )
        raise ModelError(
            found or f"the model and its loss cannot read this data ({said}); check shapes and types"
        ) from error
    return _Trial(value, outputs, again, drew)


def _explain_inputs(module: nn.Module, compute: Callable[[Inputs], Any], x: Inputs) -> str | None:
    """Return what to do if a model cannot read inputs, but can read them in the type of its parameters."""
    wanted = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if wanted is None or _succeeds(compute, x):
        return None
    floats = map_tensors(lambda part: part.to(wanted) if part.is_floating_point() else part, x)
    for changed in (floats, map_tensors(lambda part: part.to(wanted), x)):
        pairs = zip(list_tensors(x), list_tensors(changed), strict=True)
        given = next((old.dtype for old, new in pairs if old.dtype != new.dtype), None)
        ways = {"": changed, ", as one column: x.unsqueeze(1)": map_tensors(_make_column, changed)}
        column = next(
            (words for words, way in ways.items() if given is not None and _succeeds(compute, way)), None
        )
        if given is not None and column is not None:
            pixels = "" if given.is_floating_point else ", and scale pixels by a constant: x.float() / 255"
            types = f"the inputs are {_name(given)} and the model's parameters {_name(wanted)}"
            return f"{types}; give {TYPES.get(wanted, 'that type')}{pixels}{column}"
    return None


def _make_column(part: Tensor) -> Tensor:
    return part.unsqueeze(1) if part.dim() == 1 else part


def _explain_classes(loss: Loss, compute: Callable[[int], Any], y: Tensor, rows: Tensor) -> str | None:
    """Return which target is none of the classes that the model scores, if one is not.

    Args:
        rows: the positions of these targets among all.
    """
    with contextlib.suppress(Exception):
        outputs = compute(len(y))
        if is_one_of(loss, OF_CLASSES) and are_labels(outputs, y):
            strange = find_counted(loss, y) & ((y < 0) | (y >= outputs.shape[1]))
            if bool(strange.any()):
                where = int(strange.nonzero()[0])
                most, row = outputs.shape[1] - 1, int(rows[where])
                return f"targets are classes from 0 to {most}, but one is {int(y[where])} (row {row}); correct it"
    return None


def _explain_targets(loss: Loss, compute: Callable[[], Any], y: Tensor) -> str | None:
    """Return what to do if a loss cannot read targets, but can read them in another type or shape."""
    ways = {TYPES[torch.int64]: lambda y: y.long(), TYPES[torch.float32]: lambda y: y.float()}
    if y.dim() == 2 and y.shape[1] == 1:
        ways |= {"y.squeeze(1)": lambda y: y.squeeze(1), "y.squeeze(1).long()": lambda y: y.squeeze(1).long()}
    if y.dim() == 1:
        ways |= {"y.unsqueeze(1)": lambda y: y.unsqueeze(1)}
    with contextlib.suppress(Exception):
        outputs = compute()
        if (odd := _find_other_type(loss, outputs)) is not None:
            return odd
        tried = {"": lambda y: y, **ways}
        found = next(words for words, change in tried.items() if _succeeds(loss, outputs, change(y)))
        shape = str(["n", *y.shape[1:]]).replace("'", "")
        return (
            f"the loss cannot read targets that are {_name(y.dtype)} {shape}; give {found.replace('x.', 'y.')}"
            if found
            else None
        )
    return None


def _find_other_type(loss: Loss, outputs: Tensor) -> str | None:
    """Return what to do if a loss has weights of another type than the model's outputs."""
    given = loss.keywords if isinstance(loss, functools.partial) else getattr(loss, "_buffers", {})
    for name in ("weight", "pos_weight"):
        weight = given.get(name)
        if isinstance(weight, Tensor) and weight.dtype != outputs.dtype:
            types = (
                f"{name} of the loss is {_name(weight.dtype)} and the model's outputs {_name(outputs.dtype)}"
            )
            return f"{types}; give {name}.to({outputs.dtype})"
    return None


def _succeeds(function: Callable[..., Any], *values: Any) -> bool:
    with torch.no_grad(), contextlib.suppress(Exception):
        function(*values)
        return True
    return False


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_value(value: Any) -> None:
    if not isinstance(value, Tensor) or value.dim():
        returned = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ModelError(f"the loss returns {returned}, not one number; use its mean over the batch")


def _check_numbers(x: Inputs, y: Tensor, found: _Trial) -> None:
    """Raise ModelError if the loss is not a finite number because the data holds values that are not."""
    if bool(found.value.isfinite()) and bool(found.outputs.isfinite().all()):
        return
    for what, some in (("inputs", list_tensors(x)), ("targets", [y])):
        if not all(bool(part.isfinite().all()) for part in some):
            raise ModelError(
                f"the {what} hold NaN or infinite values, and the model cannot be scored on them; correct them, fill missing "
                "values with a value that you declare, or leave these rows out"
            )


def _check_constants(module: nn.Module, before: dict[str, Tensor]) -> None:
    if (name := next(find_changed(module, before), None)) is not None:
        raise ModelError(
            f"buffer {name} changes in training, but it is neither a constant nor a statistic of a normalisation layer, so the "
            "server has no rule to combine it; compute it in forward, or use the running statistics of BatchNorm"
        )


def _check_modes(module: nn.Module) -> None:
    if stays := [name for name, layer in list_norms(module) if not layer.training]:
        raise ModelError(
            f"layer {stays[0]} stays in evaluation mode, but its parameters are not frozen; freeze them too: requires_grad_(False)"
        )


def _check_repetition(outputs: Tensor, again: Tensor) -> None:
    if outputs.shape != again.shape or not torch.allclose(outputs, again, 1e-4, 1e-6, equal_nan=True):
        raise ModelError(
            "the model returns other outputs when it computes the same batch again, so it draws numbers that have no address or "
            "keeps a state of its own; use nn.Dropout or the numbers of an augmentation, and keep no state in forward"
        )
