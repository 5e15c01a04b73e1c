"""What `feduhb.unlearn` binds to methods that need more than a fresh model: a history, the old model, the leavers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

import torch
from torch import Tensor

from feduhb.core.aggregate import RunningMean, weighted_mean
from feduhb.core.checks import check_whole, is_finite
from feduhb.core.types import ClientId, History, Method, State, Updates
from feduhb.errors import AggregationError, ConfigError, HistoryError

S = TypeVar("S", bound=State)


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


class ReplayMethod(Method[S]):
    """A method that replays the updates that training stored, client by client: it serves requests for whole clients."""

    needs_history: ClassVar[bool] = True
    serves: ClassVar[tuple[str, ...]] = ("clients",)

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Return "each": every client's own updates must have been stored."""
        return "each"


def refuse_sums(answers: Iterable[Updates], method: str) -> Iterator[Updates]:
    """Yield the answers; raise AggregationError if one is summed."""
    for block in answers:
        if block.summed:
            raise AggregationError(
                f"{method} needs every client's update, but received only their sum; use feduhb or retrain under secure aggregation"
            )
        yield block


def calibrate(history: History, round: int, answers: Iterable[Updates], method: str) -> Iterator[Updates]:
    """Yield ‖u_c‖ v_c / ‖v_c‖ of each answer v_c; u_c, stored in a round, is found by the client's id."""
    for block in refuse_sums(answers, method):
        stored: dict[ClientId, Tensor] = {}
        for part in history.read(round, block.clients):
            stored.update(zip(part.clients, torch.linalg.vector_norm(part.values, dim=1), strict=True))
        target = torch.stack([stored[client] for client in block.clients])  # [C] ‖u_c‖
        now = torch.linalg.vector_norm(block.values, dim=1)  # [C] ‖v_c‖
        scale = torch.where(now > 0, target.to(now) / now, 0.0)
        yield Updates(block.clients, block.values * scale[:, None], block.weights)


def count_short_epochs(ratio: float, epochs: int) -> int:
    """Return ⌈r E⌉, the local epochs of a calibration; 0.2 of 5 is 1 despite rounding."""
    return math.ceil(round(ratio * epochs, 9))


def check_calibration(ratio: Any, epochs: Any, method: str) -> None:
    """Raise ConfigError if a setting of a calibration is invalid."""
    check_whole("epochs", epochs, least=0)
    if not (is_finite(ratio) and 0 < ratio <= 1):
        raise ConfigError(f"ratio is {ratio!r}; give a share above 0 and up to 1, such as 0.5")
    if epochs == 0:
        raise ConfigError(f"epochs is 0; {method} calibrates by local training, give 1 or more")


def average_stored(history: History, round: int) -> Tensor | None:
    """Return the weighted mean [P] of the updates that were stored in a round; None if there are none."""
    stored = history.clients(round)
    return weighted_mean(history.read(round, stored)) if stored else None


def compute_residual(history: History, round: int, remaining: Collection[ClientId]) -> tuple[Tensor, Tensor]:
    """Return A(all), the step [P] that training took in a round, and the residual A(remaining) - A(all).

    Without the leavers this round would have led from the same model to w - A(remaining), so the residual is what they
    changed in it. A round in which no remaining client took part would not have moved the model.
    """
    stored = history.clients(round)
    if not stored:
        zero = torch.zeros_like(history.params(round))
        return zero, zero
    everyone, others = RunningMean(), RunningMean()
    for block in history.read(round, stored):
        everyone.add(block)
        if kept := [row for row, client in enumerate(block.clients) if client in remaining]:
            others.add(block.select(kept))
        del block
    step = everyone.finish()
    return step, -step if others.total is None else others.finish() - step
