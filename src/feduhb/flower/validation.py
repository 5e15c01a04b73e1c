"""Decide which updates, statistics and scores of a round may be averaged, with which weight, and what is wrong with the others.

Answers are compared with each other, so the limits hold as long as most clients are honest. docs/flower.md has the
measurements that chose the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from feduhb.core.modules import is_variance
from feduhb.core.scores import average_by_weight
from feduhb.core.types import ClientId, Updates
from feduhb.errors import ConfigError
from feduhb.flower.wire import Layout
from feduhb.runs.loop import find_faults

SHARE = 1.5  # over the root of the number of clients: the largest share that one client may have of a round
# Times the usual norm: updates up to this are accepted in any federation. Those of very few examples are long.
SHORT = 10.0
UNKNOWN = 4.0  # times this round's median: the usual norm, if the engine did not see the run's first round
ENOUGH = 3  # answers of which a median says something; for fewer only absurd values are left out
# Times the median of the round: heavier answers are left out, and longer ones if they are few.
OUTLIER = 1000.0
FEW, MOST = 1e5, 1e12  # numbers of examples that are always accepted, and never above
SCORE = 100.0  # scores up to this, or this many times the median of their sizes, are averaged
SCORES, LETTERS = 100, 100  # limits: scores of a client, letters in the name of a score

Answer = tuple[Tensor, float]  # an update [P] and the number of examples it stands for
Scores = tuple[float, Mapping[str, float]]  # the number of examples they were measured on, and scores by name
Declared = Callable[[ClientId], float | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator allows; None chooses the limits of this module."""

    max_norm: float | None = None
    max_examples: float | None = None
    max_share: float | None = None
    examples: Mapping[str, float] = field(default_factory=dict)  # declared, by client id or registered name

    def __post_init__(self) -> None:
        for name, limit in (("max_norm", self.max_norm), ("max_examples", self.max_examples)):
            if limit is not None and not limit > 0:
                raise ConfigError(f"{name} is {limit}; give a positive number")
        if self.max_share is not None and not 0 < self.max_share <= 1:
            raise ConfigError(
                f"max_share is {self.max_share}; give a share above 0 and at most 1, such as 0.5"
            )
        if not isinstance(self.examples, Mapping):
            raise ConfigError(
                f"examples is {self.examples!r}; give numbers by client: {{'hospital-a': 2000}}"
            )
        for client, count in self.examples.items():
            if isinstance(count, bool) or not isinstance(count, int | float) or not 1 <= count < math.inf:
                raise ConfigError(
                    f"examples of {client} is {count!r}; give the number of its examples, 1 or more"
                )


class Usual(NamedTuple):
    """What is usual in a run, from `find_usual_norm`: the norm of an update, and of the change of each array of statistics."""

    update: float | None = None
    statistics: Mapping[str, float] = {}


def judge_answers(
    answers: Mapping[ClientId, Answer],
    params: Tensor,
    layout: Layout,
    limits: Limits,
    before: Usual,
    *,
    is_first: bool,
) -> tuple[dict[ClientId, Answer], dict[ClientId, str], Usual]:
    """Return the answers that may be averaged, what is wrong with each of the others, and what is usual now.

    Parameters and statistics are judged apart, and every array of statistics by itself, because their sizes differ.

    Args:
        params: the model [P] that the clients started from.
        before: what was usual before this round.
        is_first: whether this is the run's first round.
    """
    size = params.numel() - layout.statistics
    own = {client: (update[:size], examples) for client, (update, examples) in answers.items()}
    length = find_usual_norm((update for update, _ in own.values()), before.update, is_first=is_first)
    faults = split_answers(own, params[:size], limits, length)[1]
    changes = {client: layout.split_statistics(update) for client, (update, _) in answers.items()}
    usual = dict(before.statistics)
    for name, start in layout.split_statistics(params).items():
        parts = {client: change[name] for client, change in changes.items()}
        norm = find_usual_norm(parts.values(), usual.get(name), is_first=is_first)
        if norm is not None:
            usual[name] = norm
        longest = _limit_norm(parts.values(), start, norm)
        for client, part in parts.items():
            if client not in faults and (fault := _find_odd_statistics(name, start, part, longest)):
                faults[client] = f"it answered with {fault}"
    sound = {client: answer for client, answer in answers.items() if client not in faults}
    return sound, faults, Usual(length, usual)


def _find_odd_statistics(name: str, start: Tensor, change: Tensor, longest: float) -> str | None:
    """Return what is wrong with a client's array of statistics: not finite, far from the others', or a negative variance."""
    norm = _norm(change)
    if not math.isfinite(norm):
        return f"{'NaN' if math.isnan(norm) else 'infinity'} in {name}"
    if is_variance(name) and bool((change > start.to(change)).any()):
        return f"a negative variance in {name}"
    return f"a change of {name} of norm {norm:.3g}, above the limit {longest:.3g}" if norm > longest else None


def split_answers(
    answers: Mapping[ClientId, Answer], params: Tensor, limits: Limits, usual: float | None = None
) -> tuple[dict[ClientId, Answer], dict[ClientId, str]]:
    """Return the answers that may be averaged, and for each of the others what is wrong with it.

    Args:
        usual: the usual norm of an update in this run; None takes the median of these answers.
    """
    longest = limits.max_norm
    if longest is None:
        longest = _limit_norm((update for update, _ in answers.values()), params, usual)
    most = _limit_examples((n for _, n in answers.values()), limits)
    found = {client: _find_fault(answer, params, longest, most) for client, answer in answers.items()}
    sound = {client: answer for client, answer in answers.items() if found[client] is None}
    return sound, {client: f"it answered with {fault}" for client, fault in found.items() if fault}


def find_usual_norm(updates: Iterable[Tensor], before: float | None, *, is_first: bool) -> float | None:
    """Return the usual norm of an update: the longest median of a round so far; None if it is not known yet.

    The longest, because honest clients that still learn send much longer updates than the many that have learned.

    Args:
        before: the usual norm before this round.
        is_first: whether this is the run's first round, in which updates are long.
    """
    norms = _sort_norms(updates)
    if len(norms) < ENOUGH or not _lower_median(norms):
        return before
    here = _lower_median(norms)
    return max(before, here) if before is not None else here if is_first else UNKNOWN * here


def bound_weights(
    counts: Mapping[ClientId, float],
    declared: Declared,
    first: dict[ClientId, float],
    max_share: float | None,
) -> tuple[dict[ClientId, float], dict[ClientId, str]]:
    """Return the examples that each client counts for, and a reason for each whose number is bounded or changed.

    A client counts for at most the number that is declared for it, or else for the number in its first answer, and for
    at most a share of all. A declared number is not bounded further.

    Args:
        declared: returns the number that the operator declared for a client, or None.
        first: the numbers in the clients' first answers; new clients are added.
        max_share: the largest share; None depends on the number of clients.
    """
    found: dict[ClientId, float] = {}
    why: dict[ClientId, str] = {}
    for client, count in counts.items():
        known = declared(client)
        limit = first.setdefault(client, count) if known is None else known
        found[client] = min(count, limit)
        if count > limit or (known is None and count < limit):
            said = "in its first answer" if known is None else "declared"
            why[client] = f"it claims {count:g} examples, but {limit:g} {said}"
    share = _limit_part(len(counts)) if max_share is None else max_share
    most = _limit_share(found, {client for client in found if declared(client) is None}, share)
    for client, count in found.items():
        if count > most and declared(client) is None:
            found[client] = most
            why[client] = (
                f"it claims {counts[client]:g} of {sum(counts.values()):g} examples, and one of {len(counts)} clients may have "
                f"{share:.0%} of the weight; if the number is right, declare it: examples={{...: {counts[client]:g}}}"
            )
    return found, {client: f"{reason}; it counts for {found[client]:g}" for client, reason in why.items()}


def _limit_part(clients: int) -> float:
    """Return the largest share that one of several clients may have: all with one or two, a half with nine."""
    return min(1.0, SHARE / math.sqrt(max(1, clients)))


def _limit_share(counts: Mapping[ClientId, float], bounded: set[ClientId], share: float) -> float:
    """Return the largest weight with which no bounded client has more than a share of all weights; inf if none has."""
    ranked = sorted((counts[client] for client in bounded), reverse=True)
    for number in range(len(ranked) + 1):  # this many clients are too heavy
        rest, room = math.fsum(counts.values()) - math.fsum(ranked[:number]), 1 - number * share
        if rest <= 0 or room <= 0:
            return min(ranked, default=math.inf)  # equal weights are the nearest
        most = share * rest / room
        if number == len(ranked) or ranked[number] <= most:
            return most if number else math.inf
    return math.inf


def average_scores(
    answers: Mapping[ClientId, Scores],
    limits: Limits | None = None,
    declared: Declared = lambda _: None,
    first: dict[ClientId, float] | None = None,
    shares: Collection[str] = ("accuracy",),
) -> tuple[dict[str, float], dict[ClientId, str]]:
    """Return the mean of each score, weighted by examples, and the reason for each client that is left out or bounded.

    A score is ignored if it is not a finite number, or if its name is too long or not printable. An accuracy must be
    between 0 and 1. Another score far from those of the other clients is left out.

    Args:
        shares: the scores that must be between 0 and 1.
    """
    limits = limits or Limits()
    most = _limit_examples((count for count, _ in answers.values()), limits)
    faults = {client: _check_count(count, most) for client, (count, _) in answers.items()}
    reasons = {client: f"it answered with {fault}" for client, fault in faults.items() if fault}
    sound = {client: count for client, (count, _) in answers.items() if client not in reasons}
    weights, bounded = bound_weights(sound, declared, {} if first is None else first, limits.max_share)
    given: dict[str, dict[ClientId, float]] = {}
    for client in weights:
        for name, value in answers[client][1].items():
            if math.isfinite(value) and 0 < len(name) <= LETTERS and name.isprintable():
                given.setdefault(name, {})[client] = value
    for name, values in given.items():
        for client in _find_odd_scores(name in shares, values):
            reasons[client] = f"it answered with {name} {values.pop(client):.3g}"
    means = {name: average_by_weight(weights, values) for name, values in sorted(given.items()) if values}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}, {**bounded, **reasons}


def _find_odd_scores(is_share: bool, values: Mapping[ClientId, float]) -> list[ClientId]:
    """Return the clients whose score cannot be true: a share outside 0 to 1, or a size far above the others."""
    if is_share:
        return [client for client, value in values.items() if not 0 <= value <= 1]
    if len(values) < ENOUGH:
        return []
    most = SCORE * max(1.0, _lower_median(sorted(map(abs, values.values()))))
    return [client for client, value in values.items() if abs(value) > most]


def _check_count(examples: float, most: float) -> str | None:
    """Return what is wrong with a number of examples; below one it is not a count, and too small for a mean."""
    if not 1 <= examples < math.inf:
        return f"a weight of {examples:g} examples"
    return f"a weight of {examples:g} examples, above the limit {most:g}" if examples > most else None


def _limit_norm(updates: Iterable[Tensor], params: Tensor, usual: float | None) -> float:
    """Return the largest norm to accept: from the usual one, or from the model if there are too few updates to compare.

    With two updates, one that is not longer than the model is always accepted. Otherwise one of two clients could exclude
    the other by sending a tiny update.
    """
    norms = _sort_norms(updates)
    model = max(1.0, _norm(params))
    middle = _lower_median(norms)
    if known := usual or (middle if len(norms) >= ENOUGH else 0.0):
        return max(SHORT, len(norms) * _limit_part(len(norms))) * max(known, middle)
    return max(OUTLIER * middle, model) if len(norms) > 1 else OUTLIER * model


def _limit_examples(counts: Iterable[float], limits: Limits) -> float:
    """Return the largest number of examples to accept."""
    if limits.max_examples is not None:
        return limits.max_examples
    honest = sorted(count for count in counts if 0 < count < math.inf)
    return min(MOST, max(FEW, OUTLIER * _lower_median(honest), *limits.examples.values()))


def _lower_median(values: list[float]) -> float:
    """Return the lower median of sorted values; 0 if there are none."""
    return values[(len(values) - 1) // 2] if values else 0.0


def _sort_norms(updates: Iterable[Tensor]) -> list[float]:
    return sorted(norm for norm in map(_norm, updates) if math.isfinite(norm))


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values.double()))


def _find_fault(answer: Answer, params: Tensor, longest: float, most: float) -> str | None:
    update, examples = answer
    if fault := _check_count(examples, most):
        return fault
    block = Updates(("it",), update[None], torch.tensor([examples], dtype=torch.float64))
    return find_faults(block, params, longest)[0]
