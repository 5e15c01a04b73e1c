"""What the methods that replay a history share: the history they have before they are given one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor

from feduhb.core.types import ClientId, History, Method, Updates
from feduhb.errors import AggregationError, HistoryError


@dataclass(frozen=True, slots=True)
class MissingHistory:
    """Stands where no history has been given; whoever reads it is told so."""

    @property
    def rounds(self) -> Sequence[int]:
        """None."""
        return ()

    @property
    def bytes(self) -> int:
        """Nothing."""
        return 0

    def clients(self, round: int) -> tuple[ClientId, ...]:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def params(self, round: int) -> Tensor:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def forget(self, clients: Sequence[ClientId]) -> int:  # noqa: ARG002
        """There is nothing to free."""
        return 0

    def _refuse(self) -> NoReturn:
        raise HistoryError(
            "this method replays stored updates but was given no history; unlearn a run trained with keep_history"
        )


MISSING = MissingHistory()


def each(answers: Iterable[Updates], method: str) -> Iterator[Updates]:
    """Pass answers on, but refuse summed ones in words."""
    for block in answers:
        if block.summed:
            raise AggregationError(
                f"{method} needs every client's update, but these came summed up; use feduhb or retrain under secure aggregation"
            )
        yield block


def replays(method: Method[Any]) -> bool:
    """Whether a method reads a history."""
    return hasattr(method, "history")


def bound(method: Method[Any], history: History, clients: Sequence[ClientId]) -> Method[Any]:
    """Give a replaying method the history, unless it came with its own, and those who remain."""
    own = getattr(method, "history", MISSING)
    return replace(method, history=history if own is MISSING else own, clients=tuple(sorted(clients)))  # pyright: ignore[reportArgumentType]
