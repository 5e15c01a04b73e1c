"""The answers of a round, held against each other: which may be averaged, and what is wrong with the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from feduhb.core.types import ClientId, Updates
from feduhb.run.answers import faults

OUTLIER = 1000.0  # an answer so many times longer, or heavier, than the round's median is no honest one
FEW, MOST = 1e5, 1e12  # examples that anybody may have, and that nobody has

Answer = tuple[Tensor, float]  # an update [P] and the examples it stands for


def parted(
    answers: Mapping[ClientId, Answer], params: Tensor, max_norm: float | None, max_examples: float | None
) -> tuple[dict[ClientId, Answer], dict[ClientId, str]]:
    """Part the answers that may be averaged from those that may not, with the reason."""
    longest = _longest((update for update, _ in answers.values()), params) if max_norm is None else max_norm
    heaviest = (
        _heaviest(examples for _, examples in answers.values()) if max_examples is None else max_examples
    )
    found = {client: _fault(answer, params, longest, heaviest) for client, answer in answers.items()}
    sound = {client: answer for client, answer in answers.items() if found[client] is None}
    return sound, {client: f"it answered with {fault}" for client, fault in found.items() if fault}


def _longest(updates: Iterable[Tensor], params: Tensor) -> float:
    """The longest update that is taken: against the median of a round, or against the model where one stands alone.

    One as long as the model is always taken, or of two clients one could shut out the other by a tiny update.
    """
    norms = sorted(n for n in map(_norm, updates) if math.isfinite(n))
    model = max(1.0, _norm(params))
    return max(OUTLIER * _median(norms), model) if len(norms) > 1 else OUTLIER * model


def _heaviest(counts: Iterable[float]) -> float:
    """The most examples that are believed."""
    return min(MOST, max(FEW, OUTLIER * _median(sorted(n for n in counts if 0 < n < math.inf))))


def _median(values: list[float]) -> float:
    """Of two in the middle the smaller."""
    return values[(len(values) - 1) // 2] if values else 0.0


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))


def _fault(answer: Answer, params: Tensor, longest: float, heaviest: float) -> str | None:
    update, examples = answer
    block = Updates(("it",), update[None], torch.tensor([examples], dtype=torch.float64))
    return faults(block, params, longest, heaviest)[0]
