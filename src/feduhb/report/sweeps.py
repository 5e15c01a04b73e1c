"""Runs of FedUHB that differ in momentum alone: what the paper's figure on beta is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from feduhb.report.runs import RunView, retrain_of
from feduhb.report.tables import reaches
from feduhb.report.words import listed


@dataclass(frozen=True, slots=True)
class Sweep:
    """One run for each beta, beta rising, and Retrain on the same data where it is there."""

    runs: dict[float, RunView]
    retrain: RunView | None

    @property
    def reached(self) -> dict[float, int | None]:
        """The round at which each beta has Retrain's final accuracy; None where it never has."""
        found = {beta: reaches(view, self.retrain) for beta, view in self.runs.items()}
        return {beta: n if isinstance(n, int) else None for beta, n in found.items()}

    @property
    def goal(self) -> float | None:
        """Retrain's final test accuracy."""
        return None if self.retrain is None else self.retrain.final("test_accuracy")

    @property
    def cut(self) -> list[float]:
        """The betas whose runs a stop rule ended."""
        return [beta for beta, view in self.runs.items() if view.fired is not None]

    @property
    def rounds(self) -> int:
        """Of the longest run."""
        return max(len(view.rounds) for view in self.runs.values())


def sweep(views: Sequence[RunView]) -> Sweep | None:
    """Find the FedUHB runs of one world that differ in momentum alone, the most there are; None: there are no two."""
    worlds: list[tuple[Any, dict[float, RunView]]] = []
    for view in views:
        beta = view.result["settings"].get("momentum")
        if view.role != "feduhb" or not isinstance(beta, int | float):
            continue
        here = _all_but_momentum(view)
        runs = next((runs for world, runs in worlds if world == here), None)
        if runs is None:
            worlds.append((here, runs := {}))
        runs[float(beta)] = max(runs.get(float(beta), view), view, key=_uncut)
    most = max((runs for _, runs in worlds), key=len, default={})
    if len(most) < 2:
        return None
    ordered = dict(sorted(most.items()))
    return Sweep(ordered, retrain_of(next(iter(ordered.values())), views))


def _all_but_momentum(view: RunView) -> tuple[Any, ...]:
    return view.world, {key: value for key, value in view.result["settings"].items() if key != "momentum"}


def _uncut(view: RunView) -> tuple[bool, int]:
    """Of two runs with one beta, prefer the one that no rule ended, then the longer."""
    return view.fired is None, len(view.rounds)


def about(found: Sweep) -> list[str]:
    """Say what was swept, and what a stop rule did to it."""
    told = [f"FedUHB with β {_betas(found.runs)}; β 0 is plain averaging."]
    if found.cut:
        told.append(
            f"A stop rule cut β {_betas(found.cut)} short, and it fires early at a low β: for a fair figure, "
            "run each β with --stop never."
        )
    return told


def _betas(betas: Iterable[float]) -> str:
    return listed([f"{beta:g}" for beta in betas])
