"""Bind what a method needs of the run that is to forget to fields that are not settings; list whom it may ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from feduhb.core.types import ClientId, History, Method, Work
from feduhb.errors import AnswerError, ConfigError
from feduhb.methods.replay import MISSING, MissingHistory

# The values of these fields in a method to which nothing is bound.
EMPTY: dict[str, Any] = {
    "history": MISSING,  # History: what training stored
    "clients": (),  # tuple[ClientId, ...]: the remaining clients, sorted
    "leavers": (),  # tuple[ClientId, ...]: the clients that asked to forget something, sorted
    "model": None,  # Tensor [P]: the weights of the run that is to forget; with statistics until a run begins
    "layout": (),  # tuple[tuple[str, tuple[int, ...]], ...]: names and shapes of the parameters, in order
    "losses": (),  # tuple[float, ...]: the test loss after each round of the training
    "seed": 0,  # int: of the new run
    "distil": None,  # Distil: trains a student on the server's unlabelled data
    "selection": None,  # what the method's own `select` found in the history; see `select_once`
}

# The fields that go with a need.
FIELDS = {
    "needs_history": ("history", "clients"),
    "needs_model": ("model",),
    "asks_leaver": ("clients", "leavers"),
}


def list_bound(method: Method[Any] | type[Method[Any]]) -> tuple[str, ...]:
    """Return the names of the fields of a method that are bound, not set."""
    found = [name for need, names in FIELDS.items() if getattr(method, need, False) for name in names]
    return tuple(dict.fromkeys([*found, *getattr(method, "bound", ())]))


def uses_old_run(method: Method[Any] | type[Method[Any]]) -> bool:
    """Return whether a method uses anything of the run that is to forget. Exact methods do not."""
    return bool(list_bound(method))


def bind(method: Method[Any], parts: Mapping[str, Any]) -> Method[Any]:
    """Return a method with those of the parts that it takes. A history that it already has stays."""
    kept = set[str]() if isinstance(get_history(method), MissingHistory | None) else {"history"}
    taken = {name: parts[name] for name in list_bound(method) if name in parts and name not in kept}
    return replace(method, **taken) if taken else method  # pyright: ignore[reportArgumentType]


def unbind(method: Method[Any]) -> Method[Any]:
    """Return a method without anything that was bound to it."""
    return bind_again(method, {name: EMPTY[name] for name in list_bound(method)})


def select_once(method: Method[Any]) -> Method[Any]:
    """Return a method with what its ``select`` found, so that the run need not read the history for that again."""
    if "selection" not in list_bound(method):
        return method
    return bind_again(method, {"selection": method.select()})  # pyright: ignore[reportAttributeAccessIssue]


def bind_again(method: Method[Any], parts: Mapping[str, Any]) -> Method[Any]:
    """Return a method with these parts in place of what was bound to it."""
    return replace(method, **parts) if parts else method  # pyright: ignore[reportArgumentType]


def get_bound(method: Method[Any]) -> dict[str, Any]:
    """Return what is bound to a method, by the name of the field."""
    return {name: getattr(method, name) for name in list_bound(method)}


def get_history(method: Method[Any]) -> History | None:
    """Return the history of a method; None if it does not replay one."""
    return method.history if method.needs_history else None  # pyright: ignore[reportAttributeAccessIssue]


def get_replayed_clients(method: Method[Any]) -> tuple[ClientId, ...]:
    """Return the clients that a method with a bound history may ask."""
    return method.clients  # pyright: ignore[reportAttributeAccessIssue]


def get_leavers(method: Method[Any]) -> tuple[ClientId, ...]:
    """Return the leavers that a method may ask."""
    return method.leavers if method.asks_leaver else ()  # pyright: ignore[reportAttributeAccessIssue]


def get_model(method: Method[Any]) -> Tensor | None:
    """Return the old model that is bound to a method; None if it does not need one."""
    return method.model if method.needs_model else None  # pyright: ignore[reportAttributeAccessIssue]


def require_model(model: Tensor | None, like: Tensor, method: str) -> Tensor:
    """Return the old model [P] on the device and in the type of a vector; raise ConfigError if none is bound."""
    if model is None:
        raise ConfigError(
            f"{method} starts from the model that is to forget, but has none; run it by feduhb.unlearn(run, forget, method={method!r})"
        )
    return model.to(like)


def list_asked(
    method: Method[Any], work: Work, taking_part: Sequence[ClientId], leavers: Sequence[ClientId]
) -> tuple[ClientId, ...]:
    """Return the clients to ask, sorted; raise AnswerError if the method may not ask one of them."""
    if work.leavers:
        return _list_leavers(method, work, leavers)
    chosen = set(taking_part if work.clients is None else work.clients)
    if strangers := chosen - set(taking_part):
        raise AnswerError(
            f"the method asked {', '.join(sorted(strangers))}, which do not take part; a method may ask only the remaining clients"
        )
    return tuple(sorted(chosen))


def _list_leavers(method: Method[Any], work: Work, leavers: Sequence[ClientId]) -> tuple[ClientId, ...]:
    """Return the leavers to ask, sorted; raise AnswerError if the method may not ask them."""
    chosen = set(leavers if work.clients is None else work.clients)
    if not method.asks_leaver:
        raise AnswerError(
            f"{method.name} asked leavers to work on the data that they asked to forget; a method must declare that: asks_leaver = True"
        )
    if strangers := chosen - set(leavers):
        raise AnswerError(
            f"{method.name} asked {', '.join(sorted(strangers))}, which did not ask to forget anything"
        )
    return tuple(sorted(chosen))
