"""FedEraser: replay the stored updates of those who remain, each turned into the direction a short retraining gives."""

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
    """The model and how many kept rounds have been replayed."""

    params: Tensor  # [P]
    step: int


@dataclass(frozen=True, slots=True)
class FedEraser(Method[Replay]):
    """Approximate unlearning by calibrating history.

        w[0] original start;   first kept round:  w <- w - Σ (n_c / N) u_c
        every later one:       w <- w - Σ (n_c / N) ‖u_c‖ v_c / ‖v_c‖

    with u_c the stored update of a remaining client in that round and v_c what it answers now, after a share of its local epochs.

    Args:
        interval: Δt; every so many stored rounds are kept.
        ratio: r; the clients train ⌈r epochs⌉ epochs to calibrate.
        epochs: local passes of a round of the original training.
        history: of the run to unlearn from; `feduhb.unlearn` fills it in.
        clients: those who remain, likewise.

    A client that was not there in a kept round, or does not answer now, is left out of it and the weights are those of the others.
    Differs from the paper: the interval is taken over stored rounds, all of which training writes.
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
    samples_clients: ClassVar[bool] = False  # it asks those who were there in the kept round

    def __post_init__(self) -> None:
        check_whole("interval", self.interval)
        check_whole("epochs", self.epochs, least=0)
        if not (is_finite(self.ratio) and 0 < self.ratio <= 1):
            raise ConfigError(
                f"ratio is {self.ratio!r}; give a share of the local epochs above 0 and up to 1, such as 0.5"
            )
        if self.epochs == 0:
            raise ConfigError("epochs is 0; FedEraser calibrates by local training, give 1 or more")

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Return "each": every client's update is scaled by itself."""
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
        """Return the state at the original start, which is the same draw as any fresh one of the same seed."""
        return Replay(params, step=0)

    def ask(self, state: Replay) -> Work | None:
        """Return a short training for those who were there in this kept round; None in the first."""
        there = self._there(self.kept[state.step])
        if state.step == 0 or not there:
            return None
        return Work(state.params, math.ceil(round(self.ratio * self.epochs, 9)), there)

    def tell(self, state: Replay, answers: Iterable[Updates]) -> Replay:
        """Return the state after the stored updates, applied as they are or calibrated by the answers."""
        t = self.kept[state.step]
        there = self._there(t)
        if not there:
            return Replay(state.params, state.step + 1)
        stored = self.history.read(t, there) if state.step == 0 else self._calibrated(t, answers)
        return Replay(state.params - weighted_mean(stored), state.step + 1)

    def _there(self, round: int) -> tuple[ClientId, ...]:
        stored = set(self.history.clients(round))
        return tuple(client for client in self.clients if client in stored)

    def _calibrated(self, round: int, answers: Iterable[Updates]) -> Iterator[Updates]:
        """Yield each answer scaled to the length of the same client's stored update, whatever their order."""
        for block in refuse_sums(answers, self.name):
            length = {c: norm for part in self.history.read(round, block.clients) for c, norm in _norms(part)}
            target = torch.stack([length[client] for client in block.clients])  # [C]
            now = torch.linalg.vector_norm(block.values, dim=1)
            scale = torch.where(now > 0, target.to(now) / now, 0.0)
            yield Updates(block.clients, block.values * scale[:, None], block.weights)


def _norms(block: Updates) -> Iterator[tuple[ClientId, Tensor]]:
    return zip(block.clients, torch.linalg.vector_norm(block.values, dim=1), strict=True)
