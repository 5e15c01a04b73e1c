"""The steps of an audit: one list, which is carried out in order and which the progress bar counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from feduhb.runs.folder import Round

ShowRound = Callable[[Round], None]


def always() -> bool:
    """Return True: the step is needed in any case."""
    return True


def show_nothing(record: Round) -> None:
    """Show nothing of a round."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step: its name, its work, its rounds, and whether it is needed.

    Whether a step is needed may depend on the steps before it; until those are done ``is_needed`` returns a guess. A step
    that several audits share is one object.
    """

    name: str
    work: Callable[[ShowRound], object]
    rounds: int = 1
    is_needed: Callable[[], bool] = always


def list_once(lists: Iterable[list[Step]]) -> list[list[Step]]:
    """Return the lists with each step in the first of them that holds it, and in no other."""
    listed: set[Step] = set()
    found: list[list[Step]] = []
    for steps in lists:
        found.append([step for step in steps if step not in listed])
        listed.update(steps)
    return found


def carry_out(steps: list[Step], begin: Callable[[str, int], ShowRound] = lambda *_: show_nothing) -> None:
    """Carry out the steps that are needed when their turn comes, and take each off the list: it holds what is left.

    Args:
        begin: called with a step's name and rounds; returns the function that shows its rounds.
    """
    while steps:
        step = steps.pop(0)
        if step.is_needed():
            step.work(begin(step.name, step.rounds))
