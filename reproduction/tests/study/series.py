"""A small study, and cells made by hand. Nothing was measured, and nothing follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feduhb_reproduction.cells import Cell, Place, Track
from feduhb_reproduction.study.design import Candidates, Part, Rules, Study
from paper.cells import MADE

ROUNDS, LONG = 6, 12
GOAL = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)  # Retrain, which ends at 0.6
SOON = (0.1, 0.5, 0.7, 0.5, 0.7, 0.8)  # first at round 3, for good from round 5
SOONER = (0.5, 0.6, 0.7, 0.7, 0.7, 0.7)  # from round 2


def study(**changes: Any) -> Study:
    """Two federations, two tuning seeds, two reported ones."""
    told: dict[str, Any] = {
        "title": "a toy", "rounds": ROUNDS, "long": LONG, "clients": 5, "forget": "c00", "epochs": 1, "batch_size": 16, "lr": 0.05,
        "model": "mlp", "tune": (1, 2), "report": (3, 4),
        "federations": (Part(data="digits", partitions=("iid", "dirichlet:0.5"), per_client=(40,)),),
        "candidates": (
            Candidates(family="Retrain", method="retrain"),
            Candidates(family="FedUHB", method="feduhb"),
            Candidates(family="Nesterov", method="nesterov", settings={"momentum": (0.5, 0.9)}),
        ),
        "rules": (
            Rules(family="accuracy", rule="patience", watch="held_out_score", settings={"rounds": (2, 9), "smooth": (1,), "first": (1,)}),
            Rules(family="paper", rule="dynamic_stop", settings={"scale": (0.6,)}),
        ),
    }  # fmt: skip
    return Study(**{**told, **changes})


def track(
    accuracy: Sequence[float], *, epochs: float = 4.0, score: Sequence[float] | None = None, **more: Any
) -> Track:
    """A run with these accuracies, whose clients train so many epochs in a round; the held-out score is the accuracy unless given."""
    n = len(accuracy)
    series = {
        "test_accuracy": tuple(accuracy), "test_loss": tuple(1 - a for a in accuracy), "moved": (1.0,) * n,
        "distance": tuple(float(t) for t in range(1, n + 1)), "held_out_accuracy": tuple(score or accuracy),
        "held_out_loss": tuple(1 - a for a in accuracy),
    }  # fmt: skip
    told: dict[str, Any] = {
        "settings": {}, "exact": True, "stopped": "", "weights": "", "scores": {}, "sums": {"client_epochs": epochs * n, "client_rounds": n},
    }  # fmt: skip
    return Track(series=series, **{**told, **more})


def longer(values: Sequence[float]) -> tuple[float, ...]:
    """The accuracies of a run that stays at its last one to the end of the long schedule."""
    return (*values, *[values[-1]] * (LONG - len(values)))


def runs() -> dict[str, Track]:
    """What a whole study holds in a cell: Nesterov with 0.9 is the fastest."""
    return {
        "retrain": track(GOAL), "feduhb": track(longer(SOON)), "nesterov-momentum-0.5": track(SOON),
        "nesterov-momentum-0.9": track(longer(SOONER)), "federaser": track((0.3, 0.3), epochs=4),
        "fedrecover": track((0.1, 0.1, 0.65), epochs=3, exact=False),
    }  # fmt: skip


def write(out: Path, place: Place, found: Mapping[str, Track] | None = None) -> Path:
    """The file of a cell."""
    return Cell(place=place, runs=dict(found or runs()), misr={}, made=MADE).write(out / place.data / "cells")


def fill(out: Path, plan: Study, seeds: Sequence[int], change: Mapping[str, Track] | None = None) -> None:
    """Write the cells of these seeds."""
    for place in plan.places(seeds):
        write(out, place, {**runs(), **(change or {})})


def broken(run: Track) -> Track:
    """The run, as if it had diverged."""
    return replace(run, failed="the model was not finite")
