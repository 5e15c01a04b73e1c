"""Answers held against each other: which updates and which scores may be averaged, and what is wrong with the rest."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping

import torch
from flwr.app import RecordDict
from torch import Tensor

from feduhb.core.types import ClientId, Updates
from feduhb.flower.wire import EXAMPLES, METRICS, MalformedError, examples_of
from feduhb.run.answers import faults

OUTLIER = 1000.0  # an answer so many times longer, or heavier, than the round's median is no honest one
FEW, MOST = 1e5, 1e12  # examples that anybody may have, and that nobody has
SCORES, LETTERS = 100, 100  # that one client may give, and that a score's name may have

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


def averaged(
    answers: Mapping[ClientId, RecordDict], max_examples: float | None = None
) -> tuple[dict[str, float], dict[ClientId, str]]:
    """Average scores by the examples they were taken on, each over those who gave it; say whose are left out, and why.

    Of a sound answer, what is no finite number or has a name that a line of a log could not show is passed over.
    """
    counts, found = _counted(answers)
    most = _heaviest(counts.values()) if max_examples is None else max_examples
    given: dict[str, list[tuple[float, float]]] = {}
    for client, count in counts.items():
        scores = {key: value for key, value in answers[client][METRICS].items() if key != EXAMPLES}
        if fault := _miscounted(count, most) or _crowded(len(scores)):
            found[client] = f"it answered with {fault}"
            continue
        for name, value in scores.items():
            if 0 < len(name) <= LETTERS and name.isprintable() and (score := _finite(value)) is not None:
                given.setdefault(name, []).append((count, score))
    means = {name: _mean(some) for name, some in sorted(given.items())}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}, found


def _counted(answers: Mapping[ClientId, RecordDict]) -> tuple[dict[ClientId, float], dict[ClientId, str]]:
    counts: dict[ClientId, float] = {}
    found: dict[ClientId, str] = {}
    for client, content in answers.items():
        try:
            counts[client] = examples_of(content)
        except MalformedError as error:
            found[client] = f"it answered with {error}"
    return counts, found


def _finite(value: object) -> float | None:
    if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def _mean(given: list[tuple[float, float]]) -> float:
    """By shares, for a sum could leave the floats where no value does."""
    total = sum(count for count, _ in given)
    return sum(count / total * value for count, value in given)


def _crowded(scores: int) -> str | None:
    return f"{scores} scores, above the limit {SCORES}" if scores > SCORES else None


def _miscounted(examples: float, most: float) -> str | None:
    """What is wrong with a number of examples. Part of one would be no honest count, and parts that are small enough make no mean."""
    if not 1 <= examples < math.inf:
        return f"a weight of {examples:g} examples"
    return f"a weight of {examples:g} examples, above the limit {most:g}" if examples > most else None


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
    if fault := _miscounted(examples, heaviest):
        return fault
    block = Updates(("it",), update[None], torch.tensor([examples], dtype=torch.float64))
    return faults(block, params, longest)[0]
