"""The clients' examples where the engine computes: tensors that clients share are held once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from feduhb.core.types import ClientId
from feduhb.data.federation import Examples


class Shelf:
    """Examples of some clients on a device, and where in it each client's are."""

    def __init__(self, clients: Mapping[ClientId, Examples], device: torch.device) -> None:
        whole = list({_key(examples): examples for examples in clients.values()}.values())
        begins: dict[tuple[int, int, int], int] = {}
        length = 0
        for examples in whole:
            begins[_key(examples)] = length
            length += len(examples.x)
        self.x = _joined([examples.x for examples in whole]).to(device)
        self.y = _joined([examples.y for examples in whole]).to(device)
        self.rows = {
            client: examples.rows + begins[_key(examples)] for client, examples in clients.items()
        }  # positions, on the CPU

    @staticmethod
    def bytes(clients: Mapping[ClientId, Examples]) -> int:
        """What a shelf of these clients takes up."""
        whole = {_key(examples): examples for examples in clients.values()}
        return sum(e.x.nbytes + e.y.nbytes for e in whole.values())


def shared(clients: Mapping[ClientId, Examples]) -> bool:
    """Whether all clients are rows of the same tensors."""
    return len({_key(examples) for examples in clients.values()}) == 1


def _key(examples: Examples) -> tuple[int, int, int]:
    return examples.x.data_ptr(), examples.y.data_ptr(), len(examples.x)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
