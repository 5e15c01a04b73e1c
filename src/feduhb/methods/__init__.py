"""The methods, one file each, and functions that find and check them.

Other packages register their methods as entry points in the group ``feduhb.methods``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from feduhb.core.aggregate import Aggregate, format_rule, parse_rule
from feduhb.core.own_code import Code, load_code
from feduhb.core.plugins import find_plugin, list_plugins
from feduhb.core.types import Method
from feduhb.errors import ConfigError, FeduhbError
from feduhb.methods.binding import list_bound
from feduhb.methods.crab import Crab
from feduhb.methods.fedadam import FedAdam
from feduhb.methods.fedaf import FedAF
from feduhb.methods.federaser import FedEraser
from feduhb.methods.fedexp import FedExP
from feduhb.methods.fednadam import FedNadam
from feduhb.methods.fedrecover import FedRecover
from feduhb.methods.fedrecovery import FedRecovery
from feduhb.methods.feduhb import FedUHB
from feduhb.methods.fedyogi import FedYogi
from feduhb.methods.finetune import FineTune
from feduhb.methods.nesterov import Nesterov
from feduhb.methods.pga import PGA
from feduhb.methods.rapidretrain import RapidRetrain
from feduhb.methods.retrain import Retrain
from feduhb.methods.rollback import Rollback
from feduhb.methods.weight_negation import NoT
from feduhb.methods.wu import WuDistillation

GROUP = "feduhb.methods"  # the entry points of other packages
PARTS = ("name", "exact", "needs", "rounds", "init", "ask", "tell")
# Parts that methods of version 0.1 do not have.
LATER = tuple(part for part in vars(Method) if not part.startswith("_") and part not in PARTS)

# The paper's comparison: what `compare` runs by default.
COMPARED = ("feduhb", "retrain", "federaser", "fedrecover")
# What "fast" stands for: the method and the settings, one for all federations, that the study of faster methods chose on MNIST
# and CIFAR-10 (docs/reproduction/study.md).
FAST = "fast"
RECOMMENDED: tuple[str, dict[str, Any]] = ("feduhb", {"momentum": 0.7, "step_size": 2.0})
# The first methods in lists of names.
FIRST = (
    FedUHB, Retrain, FedEraser, FedRecover, Nesterov, FedAdam, FedYogi, FedNadam, FedExP, Rollback, RapidRetrain,
    FineTune, NoT, PGA, FedAF, FedRecovery, Crab, WuDistillation,
)  # fmt: skip

METHODS: dict[str, type[Method[Any]]] = {kind.name: kind for kind in FIRST}
for _file in pkgutil.iter_modules(__path__, f"{__name__}."):  # every subclass of Method in this folder
    for _kind in vars(importlib.import_module(_file.name)).values():
        is_own = isinstance(_kind, type) and _kind.__module__ == _file.name
        if is_own and Method in _kind.__mro__ and hasattr(_kind, "name"):
            METHODS.setdefault(_kind.name, _kind)
BUILT_IN = tuple(METHODS.values())  # what is added to METHODS later is not of this package


def list_methods() -> list[str]:
    """Return the names of all methods: the built-in ones, then those of other packages."""
    return [*METHODS, *(name for name in list_plugins(GROUP) if name not in METHODS)]


def find_method(name: str | type[Method[Any]]) -> type[Method[Any]]:
    """Return the class of a method by name; a class is returned as it is."""
    if not isinstance(name, str):
        return name
    found = METHODS.get(name) or find_plugin(GROUP, name)
    if found is None:
        raise ConfigError(f"there is no method {name!r}; choose one of {', '.join(list_methods())}")
    return found


def list_settings(name: str | type[Method[Any]]) -> list[str]:
    """Return the names of a method's settings."""
    kind = find_method(name)
    return [key for key in inspect.signature(kind).parameters if key not in list_bound(kind)]


def make_method(name: str | type[Method[Any]], **settings: Any) -> Method[Any]:
    """Return a method by name, or of a class, with these settings."""
    known, label = list_settings(name), name if isinstance(name, str) else name.__name__
    if unknown := [key for key in settings if key not in known]:
        raise ConfigError(f"{label} has no setting {', '.join(unknown)}; it knows {', '.join(known)}")
    try:
        made = check_method(find_method(name)(**settings))
    except FeduhbError:
        raise
    except Exception as error:  # whatever a class of the user's raises
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items()) or "its defaults"
        advice = "give numbers as numbers" if isinstance(error, TypeError) else "give other settings"
        raise ConfigError(f"{label} cannot be made with {given}: {error}; {advice}") from None
    if made.name != name and isinstance(name, str):
        raise ConfigError(
            f"the method registered as {name!r} has the name {made.name!r}, so its runs could not be opened; use one name for both"
        )
    return made


def load_method(code: Code) -> type[Method[Any]] | Method[Any]:
    """Import a method of the user's own and return it: a class or an instance."""
    found = load_code(code)
    missing = next((part for part in ("init", "ask", "tell", "name") if not hasattr(found, part)), None)
    if missing is not None:
        raise ConfigError(
            f"{code.text} is not a method: it has no {missing}; name a class that inherits from feduhb.Method"
        )
    return found if isinstance(found, type) else check_method(found)


def change_method(method: Method[Any], **settings: Any) -> Method[Any]:
    """Return a method with other values for some of its settings."""
    return make_method(type(method), **{**values_of(method), **settings}) if settings else method


def restore_method(source: str | type[Method[Any]] | Method[Any], written: Mapping[str, Any]) -> Method[Any]:
    """Return a method with the settings that a config file wrote, see `settings_of`.

    Args:
        source: the name or the class of the method, or an instance, whose other settings are changed.
    """
    is_made = not isinstance(source, str | type)
    known = settings_of(source) if is_made else {}
    settings = {key: value for key, value in written.items() if key not in known or known[key] != value}
    if "aggregate" in settings:
        settings["aggregate"] = parse_rule(settings["aggregate"])
    return change_method(source, **settings) if is_made else make_method(source, **settings)


def check_method(method: Any) -> Method[Any]:
    """Return the method; raise ConfigError for an object that is not one.

    If a method was written for version 0.1, its class gets the defaults of the parts that were added later.
    """
    if isinstance(method, type):
        raise ConfigError(f"{method.__name__} is a class; give an instance of it: {method.__name__}()")
    kind = type(method)
    for part in PARTS:
        is_abstract = part in {"init", "ask", "tell"} and getattr(kind, part, None) is getattr(Method, part)
        if is_abstract or not _has(method, part):
            raise ConfigError(
                f"{method!r} is not a method: it has no {part}; inherit from feduhb.Method and define it"
            )
    if not is_dataclass(kind):
        raise ConfigError(f"{kind.__name__} is not a dataclass; put @dataclass(frozen=True) before the class")
    for part in (part for part in LATER if not _has(method, part)):
        default = hasattr(method, "history") if part == "needs_history" else getattr(Method, part)
        setattr(kind, part, default)
    if method.exact and (method.needs_model or method.asks_leaver):
        what = "uses the old model" if method.needs_model else "asks the leavers"
        raise ConfigError(f"{method.name} declares itself exact, but it {what}; declare exact = False")
    if missing := {*list_bound(kind)} - {field.name for field in fields(kind)}:
        raise ConfigError(
            f"{method.name} has no field {min(missing)}, which feduhb.unlearn fills in; add it, with a default"
        )
    return method


def _has(method: Any, part: str) -> bool:
    """Whether a method has a part. A property is not evaluated: the rounds of a method may take a history to count."""
    return hasattr(type(method), part) or hasattr(method, part)


def values_of(method: Method[Any]) -> dict[str, Any]:
    """Return the values of a method's settings."""
    bound = list_bound(method)
    return {field.name: getattr(method, field.name) for field in fields(method) if field.name not in bound}  # pyright: ignore[reportArgumentType]


def settings_of(method: Method[Any]) -> dict[str, float | int | str]:
    """Return a method's settings, as a config file writes them."""
    found = values_of(method).items()
    return {key: v if isinstance(v, int | float | str) else format_rule(v) for key, v in found}


def list_needs(method: Method[Any]) -> list[str]:
    """Return in words what a method needs beyond sums of the updates of the remaining clients."""
    needs = {
        "each update": method.needs == "each",
        "stored updates": method.needs_history,
        "recorded losses": "losses" in list_bound(method),
        "kept models": method.continues_training,
        "the old model": method.needs_model,
        "the leaver's cooperation": method.asks_leaver,
        "unlabelled data of the server": method.needs_public,
    }
    return [words for words, is_needed in needs.items() if is_needed]


def is_built_in(method: Method[Any]) -> bool:
    """Whether a method is of one of this package's classes. A subclass is not, nor a class that only has a name here."""
    return any(type(method) is known for known in BUILT_IN)


def is_retrain(method: Method[Any]) -> bool:
    """Whether a method is this package's Retrain, and not a subclass or another method of that name."""
    return type(method) is Retrain


def rule_of(method: Method[Any]) -> Aggregate | None:
    """Return the aggregation rule of a method; None if it has no such setting."""
    return getattr(method, "aggregate", None)


__all__ = [
    "COMPARED", "FAST", "METHODS", "PGA", "RECOMMENDED", "Crab", "FedAF", "FedAdam", "FedEraser", "FedExP",
    "FedNadam", "FedRecover", "FedRecovery", "FedUHB", "FedYogi", "FineTune", "Nesterov", "NoT", "RapidRetrain",
    "Retrain", "Rollback", "WuDistillation", "change_method", "check_method", "find_method", "is_built_in",
    "is_retrain", "list_methods", "list_needs", "list_settings", "load_method", "make_method", "restore_method",
    "rule_of", "settings_of", "values_of",
]  # fmt: skip
