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
from torch import Tensor, nn

LONGEST = 400  # characters of settings that are written out; longer ones are digested


def describe_function(function: Callable[..., Any]) -> str:
    """Return the name of a loss or an augmentation with its settings, by which a run recognises it.

    Settings are the arguments of a `functools.partial`, what a function captured, and the public attributes of an object and
    of the modules in it, as far as they are numbers, tensors, arrays, tuples of these, or functions. The code of a function
    is not among them, nor are lists and texts of the user's own, which may be logs and paths.
    """
    return _describe(function, frozenset())


def describe_as_recorded(function: Callable[..., Any], recorded: str | None) -> str:
    """Return the description of a function, in the words of earlier versions if a run recorded it so."""
    return (
        recorded
        if recorded is not None and recorded == _describe_earlier(function)
        else describe_function(function)
    )


def name_function(function: Callable[..., Any]) -> str:
    """Return the name of a function, of the function inside a `functools.partial`, or of an object's class."""
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", type(inner).__name__)


def digest_layers(module: nn.Module) -> str:
    """Return the SHA-256 of the settings of torch's layers in a module that no tensor shows, such as the rate of a dropout."""
    found = {
        name: [type(layer).__name__, {key: repr(getattr(layer, key, None)) for key in _list_constants(layer)}]
        for name, layer in module.named_modules()
        if _list_constants(layer)
    }
    return sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _list_constants(layer: nn.Module) -> list[str]:
    """Return the names of the settings that torch declares for one of its own layers."""
    is_own = not type(layer).__module__.startswith("torch.nn.modules.")
    return [] if is_own else sorted({*getattr(layer, "__constants__", ())} - {"training"})


def _describe(function: Any, seen: frozenset[int]) -> str:
    """Return the description of a function; ``seen`` are the functions that contain it."""
    seen |= {id(function)}
    named = name_function(function)
    if isinstance(function, functools.partial):
        named = _describe_value(function.func, seen).removesuffix("()")
    described = {key: _describe_value(value, seen) for key, value in _list_settings(function).items()}
    shown = ", ".join(f"{key}={text}" for key, text in sorted(described.items()) if text)
    if len(shown) > LONGEST:
        shown = f"settings {blake2b(shown.encode(), digest_size=6).hexdigest()}"
    return f"{named}({shown})"


def _describe_value(value: Any, seen: frozenset[int]) -> str:
    """Return the description of a setting; nothing for what is not one."""
    if isinstance(value, Tensor) or type(value).__module__ == "numpy":
        return _digest(value)
    if isinstance(value, int | float | str):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(_describe_value(part, seen) for part in value)})"
    if not callable(value):
        return ""
    is_new = id(value) not in seen and not isinstance(value, type)
    return _describe(value, seen) if is_new else name_function(value)


def _digest(value: Any) -> str:
    """Return a number, or the shape and a digest of a tensor or array; nothing for an array of anything but numbers."""
    try:
        numbers = torch.as_tensor(value).detach().cpu().contiguous()
    except (TypeError, ValueError, RuntimeError):
        return ""
    if not numbers.dim() and not isinstance(value, Tensor):
        return repr(numbers.item())
    digest = blake2b(numbers.flatten().view(torch.uint8).numpy().data, digest_size=6).hexdigest()
    return f"{list(numbers.shape)} {digest}"


def _list_settings(function: Any) -> Mapping[str, Any]:
    """Return what may be settings of a function, by name."""
    if isinstance(function, functools.partial):
        return {**{str(number): value for number, value in enumerate(function.args)}, **function.keywords}
    if isinstance(function, nn.Module):
        attributes = {
            f"{name}.{key}".removeprefix("."): value
            for name, layer in function.named_modules()
            for key, value in _list_attributes(layer).items()
        }
        return {**attributes, **function.state_dict()}
    if inspect.ismethod(function):
        return _list_settings(function.__self__)
    if inspect.isfunction(function):
        return _drop_texts(_list_captured(function))
    return {} if inspect.isbuiltin(function) or inspect.isclass(function) else _list_attributes(function)


def _list_attributes(thing: object) -> dict[str, Any]:
    """Return the settings of one of torch's own layers, or the public attributes of another object."""
    if isinstance(thing, nn.Module) and (constants := _list_constants(thing)):
        return {key: getattr(thing, key, None) for key in constants}
    found = getattr(thing, "__dict__", {})
    public = {key: value for key, value in found.items() if not key.startswith("_") and key != "training"}
    return _drop_texts(public)


def _list_captured(function: Any) -> dict[str, Any]:
    """Return what a function captured; a name without a value yet is left out."""
    found = dict[str, Any]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _drop_texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without texts, which may be paths that differ from machine to machine."""
    return {key: value for key, value in settings.items() if not isinstance(value, str)}


def _describe_earlier(function: Callable[..., Any]) -> str:
    """Return the description that the first versions with such descriptions recorded."""
    if isinstance(function, functools.partial):
        settings = function.keywords
    elif isinstance(function, nn.Module):
        plain = {key: value for key, value in vars(function).items() if isinstance(value, int | float | str)}
        settings = {**plain, **function.state_dict()}
    else:
        settings = {}
    shown = [
        f"{key}={_describe_earlier_value(value)}"
        for key, value in sorted(settings.items())
        if key != "training"
    ]
    return f"{name_function(function)}({', '.join(shown)})" if shown else name_function(function)


def _describe_earlier_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return _digest(value)
    return repr(value) if isinstance(value, int | float | str) else type(value).__name__
