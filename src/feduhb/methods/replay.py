"""Shared code of the methods that replay a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from feduhb.core.types import ClientId, History, Method, Updates
from feduhb.errors import AggregationError, HistoryError


@dataclass(frozen=True, slots=True)
class MissingHistory:
    """The history of a method to which none is bound yet. It has no rounds, and reading it raises HistoryError."""

    rounds: tuple[int, ...] = ()
    bytes: int = 0

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise HistoryError(
            "this method replays stored updates but has no history; unlearn a run that was trained with keep_history"
        )

    clients = params = read = _refuse


MISSING = MissingHistory()


def refuse_sums(answers: Iterable[Updates], method: str) -> Iterator[Updates]:
    """Yield the answers; raise AggregationError if one is summed."""
    for block in answers:
        if block.summed:
            raise AggregationError(
                f"{method} needs every client's update, but received only their sum; use feduhb or retrain under secure aggregation"
            )
        yield block


def bind_history(method: Method[Any], history: History, clients: Sequence[ClientId]) -> Method[Any]:
    """Return a method with the remaining clients and, if it has no history yet, with this one."""
    own = get_history(method)
    bound = history if own is None or own is MISSING else own
    return replace(method, history=bound, clients=tuple(sorted(clients)))  # pyright: ignore[reportArgumentType]


def unbind_history(method: Method[Any]) -> Method[Any]:
    """Return a method without the history and the clients that were bound to it."""
    if not method.needs_history:
        return method
    return replace(method, history=MISSING, clients=())  # pyright: ignore[reportArgumentType]


def get_history(method: Method[Any]) -> History | None:
    """Return the history of a method; None if it does not replay one."""
    return method.history if method.needs_history else None  # pyright: ignore[reportAttributeAccessIssue]


def get_replayed_clients(method: Method[Any]) -> tuple[ClientId, ...]:
    """Return the clients that a method with a bound history may ask."""
    return method.clients  # pyright: ignore[reportAttributeAccessIssue]
