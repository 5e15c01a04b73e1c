"""FedEraser: replay the stored updates of the remaining clients, turned into the direction of a short retraining."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.checks import check_whole, is_finite
from feduhb.core.types import ClientId, History, Method, Updates, Work
from feduhb.errors import ConfigError
from feduhb.methods.replay import MISSING, refuse_sums


class Replay(NamedTuple):
    """The model and the number of kept rounds that have been replayed."""

    params: Tensor  # [P]
    step: int


@dataclass(frozen=True, slots=True)
class FedEraser(Method[Replay]):
    """Approximate unlearning by calibrating stored updates.

        first kept round:   w <- w - Σ (n_c / N) u_c,    w the model that training started from
        later kept rounds:  w <- w - Σ (n_c / N) ‖u_c‖ v_c / ‖v_c‖

    u_c is the stored update of remaining client c in that round, and v_c is its update now, after a part of its local
    epochs. A client that has no stored update in a kept round, or does not answer now, is left out of the sum and of N.

    Args:
        interval: Δt; one of this many stored rounds is kept.
        ratio: r; to calibrate, clients train ⌈r epochs⌉ epochs.
        epochs: local passes in a round of the original training.
        history: the history of the run to unlearn from; `feduhb.unlearn` sets it.
        clients: the remaining clients; `feduhb.unlearn` sets them.

    Differs from the paper: training stores every round, and the interval selects among them when they are replayed.
    Reference: Liu et al., "FedEraser: Enabling Efficient Client-Level Data Removal from Federated Learning Models", 2021.
    """

    interval: int = 2
    ratio: float = 0.5
    epochs: int = 5
    history: History = MISSING
    clients: tuple[ClientId, ...] = ()

    name: ClassVar[str] = "federaser"
    exact: ClassVar[bool] = False
    needs_history: ClassVar[bool] = True
    samples_clients: ClassVar[bool] = False  # it asks the clients that answered in the kept round

    def __post_init__(self) -> None:
        check_whole("interval", self.interval)
        check_whole("epochs", self.epochs, least=0)
        if not (is_finite(self.ratio) and 0 < self.ratio <= 1):
            raise ConfigError(f"ratio is {self.ratio!r}; give a share above 0 and up to 1, such as 0.5")
        if self.epochs == 0:
            raise ConfigError("epochs is 0; FedEraser calibrates by local training, give 1 or more")

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Return "each": every client's update is scaled separately."""
        return "each"

    @property
    def kept(self) -> list[int]:
        """The stored rounds that are replayed."""
        return list(self.history.rounds)[:: self.interval]

    @property
    def rounds(self) -> int | None:
        """The number of kept rounds."""
        return len(self.kept)

    def init(self, params: Tensor) -> Replay:
        """Return the initial state. The fresh model is the one that training started from: both use the same seed."""
        return Replay(params, step=0)

    def ask(self, state: Replay) -> Work | None:
        """Return a short training for the remaining clients of this kept round; None in the first kept round."""
        clients = self._list_stored_clients(self.kept[state.step])
        if state.step == 0 or not clients:
            return None
        return Work(state.params, math.ceil(round(self.ratio * self.epochs, 9)), clients)

    def tell(self, state: Replay, answers: Iterable[Updates]) -> Replay:
        """Return the state after the stored updates, which the answers calibrate after the first kept round."""
        t = self.kept[state.step]
        clients = self._list_stored_clients(t)
        if not clients:
            return Replay(state.params, state.step + 1)
        updates = self.history.read(t, clients) if state.step == 0 else self._calibrate(t, answers)
        return Replay(state.params - weighted_mean(updates), state.step + 1)

    def _list_stored_clients(self, round: int) -> tuple[ClientId, ...]:
        stored = set(self.history.clients(round))
        return tuple(client for client in self.clients if client in stored)

    def _calibrate(self, round: int, answers: Iterable[Updates]) -> Iterator[Updates]:
        """Yield ‖u_c‖ v_c / ‖v_c‖ of each answer v_c; u_c is found by the client's id."""
        for block in refuse_sums(answers, self.name):
            stored: dict[ClientId, Tensor] = {}
            for part in self.history.read(round, block.clients):
                stored.update(zip(part.clients, torch.linalg.vector_norm(part.values, dim=1), strict=True))
            target = torch.stack([stored[client] for client in block.clients])  # [C] ‖u_c‖
            now = torch.linalg.vector_norm(block.values, dim=1)  # [C] ‖v_c‖
            scale = torch.where(now > 0, target.to(now) / now, 0.0)
            yield Updates(block.clients, block.values * scale[:, None], block.weights)
