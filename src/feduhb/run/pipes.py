"""Observers of a run: each takes the stream of rounds and passes it on.

for state, record in shown(saved(evaluated(run(...), ...), ...), ...): ...
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from feduhb.core.types import State
from feduhb.records import Round, RunFolder
from feduhb.run.checkpoint import save_state

S = TypeVar("S", bound=State)
Rounds = Iterable[tuple[S, Round]]


def evaluated(
    rounds: Rounds[S], evaluate: Callable[[Tensor], Mapping[str, float]]
) -> Iterator[tuple[S, Round]]:
    """Score the model of every round, on a clock of its own."""
    for state, record in rounds:
        began = time.perf_counter()
        scores = evaluate(state.params)
        yield state, replace(record, scores=scores, evaluate_seconds=time.perf_counter() - began)


def saved(rounds: Rounds[S], folder: RunFolder, *, every: float = 0.0) -> Iterator[tuple[S, Round]]:
    """Record every round, then its checkpoint.

    In this order a crash between the two leaves one record too many, which a resumed run drops; never
    a checkpoint whose rounds are not recorded.

    Args:
        every: seconds at least from one checkpoint to the next, where states are large and rounds short: a crash then
            costs the rounds since. The last round always has one.
    """
    written = -math.inf
    waiting: tuple[S, Round] | None = None
    for state, record in rounds:
        folder.append(record)
        waiting = state, record
        if time.monotonic() - written >= every:
            save_state(folder.state_path, state, record.round + 1)
            written, waiting = time.monotonic(), None
        yield state, record
    if waiting is not None:
        save_state(folder.state_path, waiting[0], waiting[1].round + 1)


def shown(rounds: Rounds[S], show: Callable[[Round], None]) -> Iterator[tuple[S, Round]]:
    """Tell a person, or anything else that watches, about every round."""
    for state, record in rounds:
        show(record)
        yield state, record
