"""Observers of a run: each takes the stream of rounds and passes it on.

for state, record in shown(saved(evaluated(run(...), ...), ...), ...): ...
"""

from __future__ import annotations

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


def saved(rounds: Rounds[S], folder: RunFolder) -> Iterator[tuple[S, Round]]:
    """Record every round, then its checkpoint.

    In this order a crash between the two leaves one record too many, which a resumed run drops; never
    a checkpoint whose rounds are not recorded.
    """
    for state, record in rounds:
        folder.append(record)
        save_state(folder.state_path, state, record.round + 1)
        yield state, record


def shown(rounds: Rounds[S], show: Callable[[Round], None]) -> Iterator[tuple[S, Round]]:
    """Tell a person, or anything else that watches, about every round."""
    for state, record in rounds:
        show(record)
        yield state, record
