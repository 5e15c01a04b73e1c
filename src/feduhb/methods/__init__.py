"""One file per method; each reads like its equations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from feduhb.core.types import Method
from feduhb.errors import ConfigError
from feduhb.methods.federaser import FedEraser
from feduhb.methods.fedrecover import FedRecover
from feduhb.methods.feduhb import FedUHB
from feduhb.methods.retrain import Retrain

METHODS: dict[str, Callable[..., Method[Any]]] = {
    "feduhb": FedUHB,
    "retrain": Retrain,
    "federaser": FedEraser,
    "fedrecover": FedRecover,
}


def settings_named(name: str) -> list[str]:
    """List what can be set of a method: how it works, not the history and the clients it works on."""
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return [key for key in inspect.signature(METHODS[name]).parameters if key not in {"history", "clients"}]


def replaying(name: str) -> bool:
    """Whether a method of that name needs a history."""
    return "history" in inspect.signature(METHODS[name]).parameters


def method_named(name: str, **settings: Any) -> Method[Any]:
    """Make a method by the name a user types, with the settings that it knows."""
    known = settings_named(name)
    if odd := [key for key in settings if key not in known]:
        raise ConfigError(f"{name} has no setting {', '.join(odd)}; it knows {', '.join(known)}")
    try:
        return METHODS[name](**settings)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        raise ConfigError(f"{name} cannot be made with {given}: {error}; give numbers as numbers") from None


__all__ = [
    "METHODS",
    "FedEraser",
    "FedRecover",
    "FedUHB",
    "Retrain",
    "method_named",
    "replaying",
    "settings_named",
]
