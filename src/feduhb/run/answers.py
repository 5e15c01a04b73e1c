"""What comes back from clients is looked at before it touches the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from feduhb.core.types import ClientId, Updates
from feduhb.errors import AnswerError

OnBad = Literal["raise", "drop"]


def checked(
    blocks: Iterable[Updates],
    asked: Sequence[ClientId],
    params: Tensor,
    round: int,
    *,
    on_bad: OnBad = "raise",
    max_norm: float = math.inf,
) -> Iterator[Updates]:
    """Pass on sound answers; name the client of any other and raise, or leave it out."""
    waiting = set(asked)
    for block in blocks:
        for client in block.clients:
            if client not in waiting:
                raise AnswerError(
                    f"{client} answered in round {round} without being asked, or twice; fix the engine"
                )
            waiting.remove(client)
        if not block.clients:
            continue
        found = faults(block, params, max_norm)
        if not any(found):
            yield block
            continue
        if on_bad == "raise":
            row = next(i for i, fault in enumerate(found) if fault)
            who = "the sum of all clients" if block.summed else f"client {block.clients[row]}"
            raise AnswerError(
                f"{who} answered round {round} with {found[row]}; nothing of that round was averaged in: "
                "the last good checkpoint is kept. Look at that client's data, or lower lr, step_size or momentum"
            )
        sound = [i for i, fault in enumerate(found) if not fault]
        if sound:
            rows = torch.tensor(sound)
            yield Updates(tuple(block.clients[i] for i in sound), block.values[rows], block.weights[rows])


def faults(block: Updates, params: Tensor, max_norm: float, max_weight: float = math.inf) -> list[str | None]:
    """Say for each row what is wrong with it, or None."""
    if block.values.shape[1:] != params.shape:
        return [f"{block.values.shape[1]} numbers instead of {params.numel()}"] * len(block.values)
    return [
        _fault(row, weight, max_norm, max_weight)
        for row, weight in zip(block.values, block.weights.tolist(), strict=True)
    ]


def _fault(row: Tensor, weight: float, max_norm: float, max_weight: float) -> str | None:
    if not torch.isfinite(row).all():
        return "NaN" if torch.isnan(row).any() else "infinity"
    if not 0 < weight < math.inf:
        return f"a weight of {weight:g} examples"
    if weight > max_weight:
        return f"a weight of {weight:g} examples, above the limit {max_weight:g}"
    if math.isfinite(max_norm) and (norm := float(torch.linalg.vector_norm(row))) > max_norm:
        return f"an update of norm {norm:.3g}, above the limit {max_norm:g}"
    return None
