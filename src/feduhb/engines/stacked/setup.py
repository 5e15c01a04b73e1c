"""What all ways of the stacked engine to train clients share: model, examples, device and precision."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from feduhb.core.flat import flatten, list_parts
from feduhb.core.local import Local, move_loss
from feduhb.core.modules import list_trained, prepare_training
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.engines.batches import Batches
from feduhb.engines.precision import compute_alike
from feduhb.engines.stacked.data import Stores
from feduhb.engines.stacked.networks import ignore_slow_maps
from feduhb.engines.stacked.norms import mask_norms
from feduhb.engines.stacked.trial import Trial, run_trial


@dataclass(frozen=True, slots=True)
class Setup:
    """What the stacked engine computes with."""

    clients: Mapping[ClientId, Examples]
    local: Local  # its loss lies on the device
    device: torch.device
    precision: str
    module: nn.Module  # in training mode, on the CPU
    masked: nn.Module  # the same on the device, with norms that leave padding out
    batches: Batches
    trial: Trial
    stores: Stores

    @classmethod
    def of(cls, federation: Federation, local: Local, device: torch.device, precision: str) -> Setup:
        """Return the setup of a federation, after a trial of its model and loss on a few examples."""
        module = prepare_training(federation.fresh_model())
        batches = Batches.of(module, local, federation)
        trial = run_trial(module, local, federation.clients)
        masked = mask_norms(copy.deepcopy(module)).to(device)
        moved = replace(local, loss=move_loss(local.loss, device))
        stores = Stores(federation.clients, device)
        return cls(federation.clients, moved, device, precision, module, masked, batches, trial, stores)

    @property
    def can_record(self) -> bool:
        """Whether the device records steps, so that a trial of them is worthwhile."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The type of the trained parameters."""
        return list_trained(self.module)[0][1].dtype

    @property
    def numbers(self) -> int:
        """How many numbers a client's answer has."""
        return sum(part.numel() for _, part in list_parts(self.module))

    @property
    def start(self) -> Tensor:
        """Parameters [P] on the device, for trials."""
        return flatten(self.module).to(self.device)

    def count_examples(self, clients: Sequence[ClientId]) -> list[int]:
        """Return the numbers of examples of some clients."""
        return [len(self.clients[client]) for client in clients]

    def list_largest(self, most: int) -> tuple[ClientId, ...]:
        """Return the clients with the most examples, for trials."""
        everyone = self.clients
        return tuple(sorted(everyone, key=lambda client: -len(everyone[client]))[:most])

    @contextlib.contextmanager
    def computing(self) -> Generator[None]:
        """Compute in the engine's precision inside the block, and on a GPU always in the same way."""
        with compute_alike(self.device, tf32=self.precision != "float32"), ignore_slow_maps():
            yield
