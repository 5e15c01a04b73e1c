"""FedEraser: replay the stored updates of the remaining clients, turned into the direction of a short retraining."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from feduhb.core.aggregate import weighted_mean
from feduhb.core.checks import check_whole
from feduhb.core.types import ClientId, Foreseen, History, Updates, Work
from feduhb.methods.replay import MISSING, ReplayMethod, calibrate, check_calibration, count_short_epochs


class Replay(NamedTuple):
    """The model and the number of kept rounds that have been replayed."""

    params: Tensor  # [P]
    step: int


@dataclass(frozen=True, slots=True)
class FedEraser(ReplayMethod[Replay]):
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
    samples_clients: ClassVar[bool] = False  # it asks the clients that answered in the kept round

    def __post_init__(self) -> None:
        check_whole("interval", self.interval)
        check_calibration(self.ratio, self.epochs, "FedEraser")

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
        return Work(state.params, count_short_epochs(self.ratio, self.epochs), clients)

    def foresee(self, rounds: Iterable[int], first: Work | None) -> Iterator[Foreseen]:  # noqa: ARG002
        """Yield the work of kept rounds, which the history decides alone."""
        for step in rounds:
            yield Foreseen.of(self.ask(Replay(torch.empty(0), step)))

    def tell(self, state: Replay, answers: Iterable[Updates]) -> Replay:
        """Return the state after the stored updates, which the answers calibrate after the first kept round."""
        t = self.kept[state.step]
        clients = self._list_stored_clients(t)
        if not clients:
            return Replay(state.params, state.step + 1)
        if state.step == 0:
            updates = self.history.read(t, clients)
        else:
            updates = calibrate(self.history, t, answers, self.name)
        return Replay(state.params - weighted_mean(updates), state.step + 1)

    def _list_stored_clients(self, round: int) -> tuple[ClientId, ...]:
        stored = set(self.history.clients(round))
        return tuple(client for client in self.clients if client in stored)
