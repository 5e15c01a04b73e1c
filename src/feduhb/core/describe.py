"""What functions and modules are made of besides tensors, in words that the records of a run can compare."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from hashlib import blake2b, sha256
from typing import Any

import torch
from torch import nn


def describe_function(function: Callable[..., Any]) -> str:
    """Return the name of a loss or an augmentation with its settings, by which a run recognises it.

    Settings are the arguments of a `functools.partial`, what a function or a method captured, and the public attributes of
    an object and of the modules in it. The code of a function is not among them.
    """
    named = (
        describe_function(function.func)
        if isinstance(function, functools.partial)
        else name_function(function)
    )
    settings = sorted(_list_settings(function).items())
    shown = ", ".join(f"{key}={_describe_value(value)}" for key, value in settings)
    return f"{named}({shown})" if shown else named


def name_function(function: Callable[..., Any]) -> str:
    """Return the name of a function, of the function inside a `functools.partial`, or of an object's class."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", type(inner).__name__)


def digest_layers(module: nn.Module) -> str:
    """Return the SHA-256 of what no tensor shows of a module: its classes of layers and their settings.

    Settings are numbers, such as the rate of a dropout, and the texts of torch's own layers. Texts of other classes may be
    paths, which differ from machine to machine.
    """
    found = {
        name: [
            type(layer).__name__,
            {key: value for key, value in _list_public(layer).items() if _counts(layer, value)},
        ]
        for name, layer in module.named_modules()
    }
    return sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _counts(layer: nn.Module, value: Any) -> bool:
    if isinstance(value, str):
        return type(layer).__module__.startswith("torch.nn.")
    if isinstance(value, list | tuple):
        return all(isinstance(part, int | float) for part in value)
    return isinstance(value, int | float)


def _list_public(thing: object) -> dict[str, Any]:
    """Return the public attributes of an object, without the mode of a module."""
    return {
        key: value
        for key, value in getattr(thing, "__dict__", {}).items()
        if not key.startswith("_") and key != "training"
    }


def _list_settings(function: object) -> Mapping[str, Any]:
    if isinstance(function, functools.partial):
        return {**{str(number): value for number, value in enumerate(function.args)}, **function.keywords}
    if isinstance(function, nn.Module):
        attributes = {
            f"{name}.{key}".removeprefix("."): value
            for name, layer in function.named_modules()
            for key, value in _list_public(layer).items()
        }
        return {**attributes, **function.state_dict()}
    if inspect.ismethod(function):
        return _list_settings(function.__self__)
    if inspect.isfunction(function):
        return inspect.getclosurevars(function).nonlocals
    return {} if inspect.isbuiltin(function) or inspect.isclass(function) else _list_public(function)


def _describe_value(value: Any) -> str:
    if isinstance(value, int | float | str):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        parts = value.items() if isinstance(value, dict) else value
        return f"[{', '.join(map(_describe_value, parts))}]"
    if isinstance(value, functools.partial | nn.Module):
        return describe_function(value)
    with contextlib.suppress(Exception):  # a sparse tensor, or an array of texts
        numbers = torch.as_tensor(value).detach().cpu().contiguous()
        digest = blake2b(numbers.flatten().view(torch.uint8).numpy().data, digest_size=6).hexdigest()
        return f"{list(numbers.shape)} {digest}"
    return name_function(value)
