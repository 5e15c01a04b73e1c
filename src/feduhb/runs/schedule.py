"""Which models a training keeps for rollbacks, if it may keep only some: those that minimise the expected rounds to redo.

A round asks each client with probability q. A random client's first round is f with probability q (1 - q)^f, and a
rollback for it restarts from the last kept model before round f, the one after s <= f rounds. It redoes T - s of T rounds,
and none if the client was never asked. The fresh model (s = 0) and the final one (s = T) cost no space. For kept models
after s[1] < ... < s[K] rounds, with s[0] = 0,

    E = T h(0) - Σ_i (s[i] - s[i-1]) h(s[i]),    h(t) = (1 - q)^t - (1 - q)^T

because h(t) is the probability that the first round is at least t and below T.
"""

from __future__ import annotations

from collections.abc import Sequence


def choose_rounds(rounds: int, count: int, share: float) -> tuple[int, ...]:
    """Return after how many rounds to keep the model, for the least expected number of rounds to redo.

    Args:
        rounds: T, the scheduled rounds.
        count: K, how many models may be kept.
        share: q, the share of the clients that a round asks.
    """
    gains = [(1 - share) ** t - (1 - share) ** rounds for t in range(rounds)]  # h
    useful = sum(gain > 0 for gain in gains[1:])  # h falls, so these are the first
    if count >= useful:
        return tuple(range(1, useful + 1))
    best = [0.0] * (useful + 1)  # of the models kept so far, by the last of them
    chosen: list[list[int]] = []
    for _ in range(count):
        best, before = _add_model(best, gains)
        chosen.append(before)
    last = max(range(1, useful + 1), key=lambda t: best[t])
    found = [last]
    for before in reversed(chosen[1:]):
        found.append(before[found[-1]])
    return tuple(sorted({*found} - {0}))


def _add_model(best: Sequence[float], gains: Sequence[float]) -> tuple[list[float], list[int]]:
    """Return the best sums with one more model, by its place j, and the place i of the model before it.

        new(j) = max over i < j of  best(i) + (j - i) h(j)

    For each i this is a line in h(j) with the slope -i. As j grows, h(j) falls and i only grows, so the upper envelope of
    the lines is read in one pass: O(T) for a model.
    """
    lines: list[int] = []  # the envelope, in the order in which it is read

    def value(i: int, x: float) -> float:
        return best[i] - i * x

    found, before, at = [best[0]], [0], 0
    for j in range(1, len(best)):
        new = j - 1
        while len(lines) > at + 1 and _is_covered(best, lines[-2], lines[-1], new):
            lines.pop()
        lines.append(new)
        x = gains[j]
        while at + 1 < len(lines) and value(lines[at + 1], x) >= value(lines[at], x):
            at += 1
        before.append(lines[at])
        found.append(value(lines[at], x) + j * x)
    return found, before


def _is_covered(best: Sequence[float], a: int, b: int, c: int) -> bool:
    """Whether the line of b, between those of a < b < c, is nowhere above both."""
    return (best[c] - best[a]) * (b - a) >= (best[b] - best[a]) * (c - a)
