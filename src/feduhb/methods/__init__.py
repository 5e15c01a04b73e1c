"""The methods, one file each, and how they are found by name.

Methods of other packages register under the entry point group ``feduhb.methods``: a name and a class.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import fields, is_dataclass
from typing import Any

from feduhb.core.aggregate import Aggregate, format_rule
from feduhb.core.plugins import find_plugin, list_plugins
from feduhb.core.types import Method
from feduhb.errors import ConfigError
from feduhb.methods.federaser import FedEraser
from feduhb.methods.fedrecover import FedRecover
from feduhb.methods.feduhb import FedUHB
from feduhb.methods.retrain import Retrain

GROUP = "feduhb.methods"  # the entry points of other packages
BOUND = frozenset({"history", "clients"})  # fields that say what a method works on, not how
PARTS = ("name", "exact", "needs", "rounds", "init", "ask", "tell")
LATER = ("needs_history", "samples_clients", "default_stop")  # parts that methods of version 0.1 do not have


def _find_built_in() -> dict[str, type[Method[Any]]]:
    """Return the methods of this package by name: every class in a file of this folder that inherits from `Method`."""
    found: dict[str, type[Method[Any]]] = {
        kind.name: kind for kind in (FedUHB, Retrain, FedEraser, FedRecover)
    }
    for file in pkgutil.iter_modules(__path__, f"{__name__}."):
        for kind in vars(importlib.import_module(file.name)).values():
            if isinstance(kind, type) and kind.__module__ == file.name and Method in kind.__mro__:
                found.setdefault(kind.name, kind)
    return found


METHODS = _find_built_in()


def list_methods() -> list[str]:
    """Return the names of all methods: the built-in ones, then those of other packages."""
    return [*METHODS, *(name for name in list_plugins(GROUP) if name not in METHODS)]


def find_method(name: str) -> type[Method[Any]]:
    """Return the class of a method by the name that a user types."""
    found = METHODS.get(name) or find_plugin(GROUP, name)
    if found is None:
        raise ConfigError(f"there is no method {name!r}; choose one of {', '.join(list_methods())}")
    return found


def list_settings(name: str) -> list[str]:
    """Return the names of a method's settings."""
    kind = find_method(name)
    bound = BOUND if getattr(kind, "needs_history", False) else ()
    return [key for key in inspect.signature(kind).parameters if key not in bound]


def make_method(name: str, **settings: Any) -> Method[Any]:
    """Return a method by the name that a user types, with these settings."""
    known = list_settings(name)
    if unknown := [key for key in settings if key not in known]:
        raise ConfigError(f"{name} has no setting {', '.join(unknown)}; it knows {', '.join(known)}")
    try:
        made = check_method(find_method(name)(**settings))
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        raise ConfigError(f"{name} cannot be made with {given}: {error}; give numbers as numbers") from None
    if made.name != name:
        raise ConfigError(
            f"the method registered as {name!r} calls itself {made.name!r}, and its runs could not be opened; give both the same name"
        )
    return made


def check_method(method: Any) -> Method[Any]:
    """Return the method; raise ConfigError for an object that is not one.

    The class of a method that was written for version 0.1 gets the parts that came later, with their defaults.
    """
    if isinstance(method, type):
        raise ConfigError(f"{method.__name__} is a class; give an instance of it: {method.__name__}()")
    kind = type(method)
    own = [part for part in PARTS if hasattr(method, part) and not _is_abstract(kind, part)]
    if missing := [part for part in PARTS if part not in own]:
        raise ConfigError(
            f"{method!r} is not a method: it has no {missing[0]}; docs/design.md shows what one has, and feduhb.Method the defaults"
        )
    if not is_dataclass(kind):
        raise ConfigError(f"{kind.__name__} is not a dataclass; put @dataclass(frozen=True) before the class")
    for part in (part for part in LATER if not hasattr(method, part)):
        default = hasattr(method, "history") if part == "needs_history" else getattr(Method, part)
        setattr(kind, part, default)
    return method


def _is_abstract(kind: type, part: str) -> bool:
    """Whether a class inherits a part that `Method` only declares."""
    return part in {"init", "ask", "tell"} and getattr(kind, part, None) is getattr(Method, part)


def values_of(method: Method[Any]) -> dict[str, Any]:
    """Return the values of a method's fields, without the history and the clients that were bound to it."""
    bound = BOUND if method.needs_history else frozenset[str]()
    return {field.name: getattr(method, field.name) for field in fields(method) if field.name not in bound}  # pyright: ignore[reportArgumentType]


def settings_of(method: Method[Any]) -> dict[str, float | int | str]:
    """Return a method's settings as a config file writes them."""
    return {
        key: value if isinstance(value, int | float | str) else format_rule(value)
        for key, value in values_of(method).items()
    }


def is_built_in(method: Method[Any]) -> bool:
    """Whether a method is an instance of one of this package's classes, and not of a subclass or another package's."""
    return any(type(method) is known for known in METHODS.values())


def is_retrain(method: Method[Any]) -> bool:
    """Whether a method is this package's own Retrain, not a subclass or another method of that name."""
    return type(method) is Retrain


def rule_of(method: Method[Any]) -> Aggregate | None:
    """Return the aggregation rule of a method; None if it has none to choose."""
    return getattr(method, "aggregate", None)


__all__ = [
    "METHODS",
    "FedEraser",
    "FedRecover",
    "FedUHB",
    "Retrain",
    "check_method",
    "find_method",
    "is_built_in",
    "is_retrain",
    "list_methods",
    "list_settings",
    "make_method",
    "rule_of",
    "settings_of",
    "values_of",
]
