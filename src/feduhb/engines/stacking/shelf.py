"""The clients' examples where the engine computes: tensors that clients share are held once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from feduhb.core.types import ClientId
from feduhb.data.federation import Examples


class Shelf:
    """Examples of some clients on a device, and where in it each client's are."""

    def __init__(self, clients: Mapping[ClientId, Examples], device: torch.device) -> None:
        whole = {_key(examples): examples for examples in clients.values()}
        begins: dict[Hashable, int] = {}
        length = 0
        for key, examples in whole.items():
            begins[key] = length
            length += len(examples.x)
        self.x = _joined([examples.x for examples in whole.values()]).to(device).contiguous()
        self.y = _joined([examples.y for examples in whole.values()]).to(device).contiguous()
        self.rows = {
            client: _counted(examples) + begins[_key(examples)] for client, examples in clients.items()
        }  # positions, on the CPU
        self._made_of = {client: (examples, _versions(examples)) for client, examples in clients.items()}
        self._checked: set[ClientId] = set()

    def holds(self, clients: Mapping[ClientId, Examples]) -> bool:
        """Whether these examples are here as they are now. A change in place shows if torch made it, not if NumPy did."""
        for client, examples in clients.items():
            known, versions = self._made_of.get(client, (None, ()))
            if known is not examples or versions != _versions(examples):
                return False
        return True

    def check(self, client: ClientId, classes: int | None) -> None:
        """Refuse, once a client, rows that are not in its data and labels that are no class: a kernel would read on."""
        if client in self._checked:
            return
        examples, _ = self._made_of[client]
        size = len(examples.x)
        low, high = _ends(examples.rows)
        if low < -size or high >= size:
            bad = low if low < -size else high
            raise IndexError(f"row {bad} is out of bounds, for its data have {size}")
        if classes is not None:
            low, high = _ends(examples.targets)
            if low < 0 or high >= classes:
                raise IndexError(f"Target {low if low < 0 else high} is out of bounds.")
        self._checked.add(client)

    @staticmethod
    def bytes(clients: Mapping[ClientId, Examples]) -> int:
        """What a shelf of these clients takes up."""
        whole = {_key(examples): examples for examples in clients.values()}
        return sum(e.x.nbytes + e.y.nbytes for e in whole.values())


def shared(clients: Mapping[ClientId, Examples]) -> bool:
    """Whether all clients are rows of the same tensors."""
    first, *others = clients.values()
    return all(_key(examples) == _key(first) for examples in others)


def _key(examples: Examples) -> Hashable:
    """Two clients have the same tensors if these begin at the same place and read memory in the same way."""
    return tuple((t.data_ptr(), t.dtype, t.shape, t.stride()) for t in (examples.x, examples.y))


def _versions(examples: Examples) -> tuple[int, ...]:
    """How often each tensor was changed in place."""
    parts = (examples.x, examples.y, examples.rows)
    return tuple(0 if part.is_inference() else part._version for part in parts)


def _counted(examples: Examples) -> Tensor:
    """Rows as counted from the first: -1 is the last of its own data, not of the shelf."""
    return torch.where(examples.rows < 0, examples.rows + len(examples.x), examples.rows)


def _ends(numbers: Tensor) -> tuple[int, int]:
    low, high = torch.aminmax(numbers)
    return int(low), int(high)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
