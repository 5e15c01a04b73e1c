"""A history whose tensors are brought to where a method computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.core.types import ClientId, Updates
from feduhb.history.disk import DiskHistory


@dataclass(frozen=True, slots=True)
class Near:
    """A history on disk, read onto a device."""

    history: DiskHistory
    device: torch.device

    @property
    def rounds(self) -> Sequence[int]:
        """The stored rounds."""
        return self.history.rounds

    @property
    def bytes(self) -> int:
        """What it takes up on disk."""
        return self.history.bytes

    def clients(self, round: int) -> tuple[ClientId, ...]:
        """Who took part in a round."""
        return self.history.clients(round)

    def params(self, round: int) -> Tensor:
        """The model that a round began with."""
        return self.history.params(round).to(self.device)

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:
        """Stream the updates of some clients; their weights stay on the CPU, as an engine's do."""
        for block in self.history.read(round, clients):
            yield Updates(block.clients, block.values.to(self.device), block.weights)

    def forget(self, clients: Sequence[ClientId]) -> int:
        """Delete, as `DiskHistory.forget` does."""
        return self.history.forget(clients)
