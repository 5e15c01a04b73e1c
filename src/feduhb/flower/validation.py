"""Decide which updates and which scores of a round may be averaged, and what is wrong with the others."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import TypeGuard

import torch
from flwr.app import RecordDict
from torch import Tensor

from feduhb.core.types import ClientId, Updates
from feduhb.flower.wire import EXAMPLES, METRICS, MalformedError, read_example_count
from feduhb.runs.loop import find_faults

OUTLIER = 1000.0  # times the median of the round: longer or heavier answers are left out
FEW, MOST = 1e5, 1e12  # numbers of examples that are always accepted, and never above
SCORES, LETTERS = 100, 100  # limits: scores of a client, letters in the name of a score

Answer = tuple[Tensor, float]  # an update [P] and the number of examples it stands for


def split_answers(
    answers: Mapping[ClientId, Answer], params: Tensor, max_norm: float | None, max_examples: float | None
) -> tuple[dict[ClientId, Answer], dict[ClientId, str]]:
    """Return the answers that may be averaged, and for each of the others what is wrong with it."""
    longest = _limit_norm((u for u, _ in answers.values()), params) if max_norm is None else max_norm
    most = _limit_examples(count for _, count in answers.values()) if max_examples is None else max_examples
    found = {client: _find_fault(answer, params, longest, most) for client, answer in answers.items()}
    sound = {client: answer for client, answer in answers.items() if found[client] is None}
    return sound, {client: f"it answered with {fault}" for client, fault in found.items() if fault}


def average_scores(
    answers: Mapping[ClientId, RecordDict], max_examples: float | None = None
) -> tuple[dict[str, float], dict[ClientId, str]]:
    """Return the mean of each score, weighted by examples, and the reason for each client whose scores are left out.

    A score is ignored if it is not a finite number, or if its name is too long or not printable.
    """
    counts, left_out = _read_counts(answers)
    most = _limit_examples(counts.values()) if max_examples is None else max_examples
    given: dict[str, list[tuple[float, float]]] = {}
    for client, count in counts.items():
        scores = {key: value for key, value in answers[client][METRICS].items() if key != EXAMPLES}
        fault = _check_count(count, most)
        if fault is None and len(scores) > SCORES:
            fault = f"{len(scores)} scores, above the limit {SCORES}"
        if fault is not None:
            left_out[client] = f"it answered with {fault}"
            continue
        for name, value in scores.items():
            if _is_finite(value) and 0 < len(name) <= LETTERS and name.isprintable():
                given.setdefault(name, []).append((count, float(value)))
    means = {name: _weighted_mean(some) for name, some in sorted(given.items())}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}, left_out


def _read_counts(answers: Mapping[ClientId, RecordDict]) -> tuple[dict[ClientId, float], dict[ClientId, str]]:
    counts: dict[ClientId, float] = {}
    left_out: dict[ClientId, str] = {}
    for client, content in answers.items():
        try:
            counts[client] = read_example_count(content)
        except MalformedError as error:
            left_out[client] = f"it answered with {error}"
    return counts, left_out


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _weighted_mean(given: list[tuple[float, float]]) -> float:
    """Return the weighted mean; values are divided before they are added, because their sum could overflow."""
    total = sum(count for count, _ in given)
    return sum(count / total * value for count, value in given)


def _check_count(examples: float, most: float) -> str | None:
    """Return what is wrong with a number of examples; below one it is not a count, and too small for a mean."""
    if not 1 <= examples < math.inf:
        return f"a weight of {examples:g} examples"
    return f"a weight of {examples:g} examples, above the limit {most:g}" if examples > most else None


def _limit_norm(updates: Iterable[Tensor], params: Tensor) -> float:
    """Return the largest norm to accept: from the median of the round, or from the model if there is only one update.

    An update that is not longer than the model is always accepted. Otherwise one of two clients could exclude the other
    by sending a tiny update.
    """
    norms = sorted(norm for norm in map(_norm, updates) if math.isfinite(norm))
    model = max(1.0, _norm(params))
    return max(OUTLIER * _lower_median(norms), model) if len(norms) > 1 else OUTLIER * model


def _limit_examples(counts: Iterable[float]) -> float:
    """Return the largest number of examples to accept."""
    honest = sorted(count for count in counts if 0 < count < math.inf)
    return min(MOST, max(FEW, OUTLIER * _lower_median(honest)))


def _lower_median(values: list[float]) -> float:
    """Return the lower median of sorted values; 0 if there are none."""
    return values[(len(values) - 1) // 2] if values else 0.0


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))


def _find_fault(answer: Answer, params: Tensor, longest: float, most: float) -> str | None:
    update, examples = answer
    if fault := _check_count(examples, most):
        return fault
    block = Updates(("it",), update[None], torch.tensor([examples], dtype=torch.float64))
    return find_faults(block, params, longest)[0]
