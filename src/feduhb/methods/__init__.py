"""One file per method; each reads like its equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feduhb.core.types import Method
from feduhb.errors import ConfigError
from feduhb.methods.feduhb import FedUHB
from feduhb.methods.retrain import Retrain

METHODS: dict[str, Callable[..., Method[Any]]] = {"feduhb": FedUHB, "retrain": Retrain}


def method_named(name: str, **settings: Any) -> Method[Any]:
    """Make a method by the name a user types, with the settings that it knows."""
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    try:
        return METHODS[name](**settings)
    except TypeError:
        known = list(getattr(METHODS[name], "__dataclass_fields__", {}))
        odd = [key for key in settings if key not in known]
        raise ConfigError(f"{name} has no setting {', '.join(odd)}; it knows {', '.join(known)}") from None


__all__ = ["METHODS", "FedUHB", "Retrain", "method_named"]
