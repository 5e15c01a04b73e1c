"""What the methods that replay a history share: the history they have before one is bound to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor

from feduhb.core.types import ClientId, History, Method, Updates
from feduhb.errors import AggregationError, HistoryError


@dataclass(frozen=True, slots=True)
class MissingHistory:
    """The history of a method that was given none. Reading it raises an error."""

    @property
    def rounds(self) -> Sequence[int]:
        """No rounds."""
        return ()

    @property
    def bytes(self) -> int:
        """No bytes."""
        return 0

    def clients(self, round: int) -> tuple[ClientId, ...]:  # noqa: ARG002
        """Raise HistoryError."""
        self._refuse()

    def params(self, round: int) -> Tensor:  # noqa: ARG002
        """Raise HistoryError."""
        self._refuse()

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:  # noqa: ARG002
        """Raise HistoryError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise HistoryError(
            "this method replays stored updates but was given no history; unlearn a run trained with keep_history"
        )


MISSING = MissingHistory()


def refuse_sums(answers: Iterable[Updates], method: str) -> Iterator[Updates]:
    """Yield the answers; raise AggregationError for summed ones."""
    for block in answers:
        if block.summed:
            raise AggregationError(
                f"{method} needs every client's update, but these came summed up; use feduhb or retrain under secure aggregation"
            )
        yield block


def bind_history(method: Method[Any], history: History, clients: Sequence[ClientId]) -> Method[Any]:
    """Return a replaying method with the remaining clients, and with this history unless it has its own."""
    own = history_of(method)
    bound = history if own is None or own is MISSING else own
    return replace(method, history=bound, clients=tuple(sorted(clients)))  # pyright: ignore[reportArgumentType]


def unbind_history(method: Method[Any]) -> Method[Any]:
    """Return the method without the history that was bound to it."""
    if not method.needs_history:
        return method
    return replace(method, history=MISSING, clients=())  # pyright: ignore[reportArgumentType]


def history_of(method: Method[Any]) -> History | None:
    """Return the history of a method that replays one; None for any other method."""
    return method.history if method.needs_history else None  # pyright: ignore[reportAttributeAccessIssue]


def replayed_clients(method: Method[Any]) -> tuple[ClientId, ...]:
    """Return the clients that a method with a bound history may ask."""
    return method.clients  # pyright: ignore[reportAttributeAccessIssue]
