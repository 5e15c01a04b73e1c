"""Validating answers against each other: which updates and which scores may be averaged, and what is wrong with the others."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping

import torch
from flwr.app import RecordDict
from torch import Tensor

from feduhb.core.types import ClientId, Updates
from feduhb.flower.wire import EXAMPLES, METRICS, MalformedError, read_example_count
from feduhb.runs.loop import find_faults

OUTLIER = 1000.0  # an answer this many times longer, or heavier, than the median of its round is not honest
FEW, MOST = 1e5, 1e12  # examples: a number that is always believed, and one that never is
SCORES, LETTERS = 100, 100  # at most: scores that a client may give, letters of a score's name

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
    """Return the mean of each score, weighted by examples, over the clients that gave it; and whose scores are left out, and why.

    A score that is not a finite number, or whose name could not be shown in a line of a log, is ignored.
    """
    counts, found = _read_counts(answers)
    most = _limit_examples(counts.values()) if max_examples is None else max_examples
    given: dict[str, list[tuple[float, float]]] = {}
    for client, count in counts.items():
        scores = {key: value for key, value in answers[client][METRICS].items() if key != EXAMPLES}
        fault = _check_count(count, most)
        if fault is None and len(scores) > SCORES:
            fault = f"{len(scores)} scores, above the limit {SCORES}"
        if fault is not None:
            found[client] = f"it answered with {fault}"
            continue
        for name, value in scores.items():
            if 0 < len(name) <= LETTERS and name.isprintable() and (score := _to_finite(value)) is not None:
                given.setdefault(name, []).append((count, score))
    means = {name: _weighted_mean(some) for name, some in sorted(given.items())}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}, found


def _read_counts(answers: Mapping[ClientId, RecordDict]) -> tuple[dict[ClientId, float], dict[ClientId, str]]:
    counts: dict[ClientId, float] = {}
    found: dict[ClientId, str] = {}
    for client, content in answers.items():
        try:
            counts[client] = read_example_count(content)
        except MalformedError as error:
            found[client] = f"it answered with {error}"
    return counts, found


def _to_finite(value: object) -> float | None:
    if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def _weighted_mean(given: list[tuple[float, float]]) -> float:
    """Return the sum of the weighted shares: a weighted sum could overflow although no value does."""
    total = sum(count for count, _ in given)
    return sum(count / total * value for count, value in given)


def _check_count(examples: float, most: float) -> str | None:
    """Return what is wrong with a number of examples. Less than one is not an honest count, and too small for a mean."""
    if not 1 <= examples < math.inf:
        return f"a weight of {examples:g} examples"
    return f"a weight of {examples:g} examples, above the limit {most:g}" if examples > most else None


def _limit_norm(updates: Iterable[Tensor], params: Tensor) -> float:
    """Return the longest norm to accept: from the median of the round, or from the model if there is one update only.

    An update as long as the model is always accepted, or of two clients one could shut out the other by a tiny update.
    """
    norms = sorted(norm for norm in map(_norm, updates) if math.isfinite(norm))
    model = max(1.0, _norm(params))
    return max(OUTLIER * _lower_median(norms), model) if len(norms) > 1 else OUTLIER * model


def _limit_examples(counts: Iterable[float]) -> float:
    """Return the most examples to believe."""
    honest = sorted(count for count in counts if 0 < count < math.inf)
    return min(MOST, max(FEW, OUTLIER * _lower_median(honest)))


def _lower_median(values: list[float]) -> float:
    """Return the median of sorted values, the smaller of two in the middle; 0 if there are none."""
    return values[(len(values) - 1) // 2] if values else 0.0


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))


def _find_fault(answer: Answer, params: Tensor, longest: float, most: float) -> str | None:
    update, examples = answer
    if fault := _check_count(examples, most):
        return fault
    block = Updates(("it",), update[None], torch.tensor([examples], dtype=torch.float64))
    return find_faults(block, params, longest)[0]
