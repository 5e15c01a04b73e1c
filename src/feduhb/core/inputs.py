"""The inputs of a model: one tensor, or several in a dict or tuple, such as tokens and their mask.

All tensors have one row for each example. A dict is passed to the model as keyword arguments, a tuple as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from feduhb.errors import DataError

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
FLOATS = (torch.float64, torch.float32)  # the type of numpy and that of torch
FLOAT32 = 'x.float(), or x.astype("float32") of an array, gives torch.float32'


def make_inputs(x: Any) -> Inputs:
    """Return tensors or arrays as inputs; raise DataError if they do not have equally many rows."""
    if isinstance(x, Mapping):
        found: Inputs = {str(name): torch.as_tensor(part) for name, part in x.items()}
    elif isinstance(x, tuple) and x and all(hasattr(part, "__array__") for part in x):
        found = tuple(torch.as_tensor(part) for part in x)
    else:
        return torch.as_tensor(x)
    sizes = {len(part) if part.dim() else -1 for part in list_tensors(found)}
    if len(sizes) != 1 or -1 in sizes:
        shapes = ", ".join(str(list(part.shape)) for part in list_tensors(found)) or "none"
        raise DataError(f"the inputs have the shapes {shapes}; give tensors with one row for each example")
    return found


def list_tensors(x: Inputs) -> list[Tensor]:
    """Return the tensors of some inputs, in their order."""
    return [x] if isinstance(x, Tensor) else [*(x.values() if isinstance(x, dict) else x)]


def map_tensors(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """Return the inputs with a function applied to every tensor."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, dict):
        return {name: function(part) for name, part in x.items()}
    return tuple(function(part) for part in x)


def join_inputs(parts: list[Inputs]) -> Inputs:
    """Return the rows of several inputs of one form, one after another."""
    first = parts[0]
    if len(parts) == 1:
        return first
    joined = [torch.cat(list(some)) for some in zip(*map(list_tensors, parts), strict=True)]
    return pack_tensors(joined, first)


def pack_tensors(tensors: list[Tensor], like: Inputs) -> Inputs:
    """Return tensors in the form of other inputs."""
    if isinstance(like, Tensor):
        return tensors[0]
    return dict(zip(like, tensors, strict=True)) if isinstance(like, dict) else tuple(tensors)


def count_rows(x: Inputs) -> int:
    """Return the number of examples."""
    return len(list_tensors(x)[0])


def call_model(model: nn.Module, x: Inputs) -> Tensor:
    """Return the model's outputs for some inputs."""
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def call_with(model: nn.Module, weights: dict[str, Tensor], x: Inputs) -> Tensor:
    """Return the outputs of a model with other weights, by name; the model keeps its own.

    `functional_call` alone would leave the other weights in a layer that the model holds twice.
    """
    own = [(layer, name, p) for layer in model.modules() for name, p in layer._parameters.items()]
    args, named = ((), x) if isinstance(x, dict) else (x if isinstance(x, tuple) else (x,), {})
    outputs = functional_call(model, weights, args, named)
    for layer, name, parameter in own:
        layer._parameters[name] = parameter
    return outputs


def describe_inputs(x: Inputs) -> list[tuple[str, torch.dtype, list[int]]]:
    """Return the name, type and shape of each tensor, without the number of rows."""
    names = list(x) if isinstance(x, dict) else map(str, range(len(list_tensors(x))))
    return [
        (name, part.dtype, list(part.shape[1:])) for name, part in zip(names, list_tensors(x), strict=True)
    ]


def compare_inputs(x: Inputs, test: Inputs) -> str | None:
    """Return the first difference from the types and shapes of a test set's inputs in words; None if they are alike."""
    forms = [_describe_form(some) for some in (x, test)]
    if forms[0] != forms[1]:
        return f"{forms[0]}, the test set {forms[1]}"
    both = zip(describe_inputs(x), describe_inputs(test), strict=True)
    pairs = ((a, b) for one, two in both for a, b in zip(one, two, strict=True))
    found = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if found is None:
        return None
    how = f" ({FLOAT32})" if found in (FLOATS, FLOATS[::-1]) else ""
    return f"{found[0]}, the test set {found[1]}{how}"


def _describe_form(x: Inputs) -> str:
    if isinstance(x, Tensor):
        return "as one tensor"
    return f"by the names {', '.join(x)}" if isinstance(x, dict) else f"as a tuple of {len(x)}"
