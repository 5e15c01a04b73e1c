"""Grids made by hand: plausible curves by formula and a little noise. Nothing was measured, and nothing follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from feduhb.stopping import dynamic_stop, replay
from feduhb_reproduction.cells import Cell, Place, Track, round_series
from feduhb_reproduction.federations import ORDER

ROUNDS = 40
TOPS = {"iid": 0.97, "dirichlet:0.5": 0.96, "dirichlet:0.1": 0.93, "shards:2": 0.85}
PACES = {
    "retrain": 14.0,
    "federaser": 9.0,
    "fedrecover": 3.0,
    "fedrecover-corrected": 5.0,
    "feduhb-on": 6.0,
    "original": 14.0,
}
CLIENTS, LEFT = 20, 18
MOMENTA, STEPS = (0.3, 0.5, 0.7), (0.5, 2.0, 3.0)
MADE = {
    "command": "feduhb reproduce mnist", "commit": "0123456789abcdef0123456789abcdef01234567", "device": "NVIDIA H200",
    "engine": {"name": "stacked", "device": "cuda", "precision": "tf32", "threads": 16}, "versions": {"feduhb": "0.1.0", "torch": "2.13.0"},
    "finished": "2026-11-15T15:00:00+00:00", "seconds": 61.5, "alone": True,
}  # fmt: skip


def place(
    partition: str = "iid",
    per_client: int | None = 525,
    seed: int = 0,
    *,
    backdoor: bool = False,
    **more: Any,
) -> Place:
    """Where a cell stands; momenta and steps on Dirichlet 0.5 alone."""
    swept = partition == "dirichlet:0.5" and not backdoor
    told: dict[str, Any] = {
        "data": "mnist", "clients": CLIENTS, "forget": "c00,c01", "rounds": ROUNDS, "epochs": 5, "batch_size": 64,
        "lr": 0.005, "momentum": 0.9, "scale": 0.6, "momenta": MOMENTA if swept else (), "steps": STEPS if swept else (),
    }  # fmt: skip
    return Place(partition=partition, per_client=per_client, backdoor=backdoor, seed=seed, **{**told, **more})


def track(
    accuracy: Sequence[float],
    moved: Sequence[float] | None = None,
    *,
    backdoor: float | None = None,
    asked: int = LEFT,
    **more: Any,
) -> Track:
    """A run with these accuracies, one a round; every round takes 1.75 s of clients and 0.25 s of the server."""
    n = len(accuracy)
    series: dict[str, Sequence[float]] = {
        "test_accuracy": accuracy, "test_loss": [2.3 * (1 - a) for a in accuracy],
        "moved": moved or [0.9**t for t in range(n)],
        "client_seconds": [1.75] * n, "server_seconds": [0.25] * n, "evaluate_seconds": [9.0] * n,
    }  # fmt: skip
    if backdoor is not None:
        series["backdoor"] = [backdoor] * n
    told: dict[str, Any] = {
        "settings": {}, "exact": True, "stopped": f"all {n} scheduled rounds were run", "weights": "ab" * 32,
        "sums": {
            "client_epochs": 5 * asked * n, "client_rounds": asked * n, "client_rounds_saved": max(0.0, 1 - asked / LEFT),
            "bytes_up": 10**6 * asked * n, "bytes_down": 10**6 * asked * n, "history_bytes_read": 0,
        },
        "scores": {"forgotten": accuracy[-1] if n else 0.1, "retained": min(1.0, accuracy[-1] + 0.01) if n else 0.1},
    }  # fmt: skip
    return Track(
        series={name: round_series(values) for name, values in series.items()},
        failed=None,
        **{**told, **more},
    )


def rising(top: float, pace: float, noise: np.random.Generator, rounds: int = ROUNDS) -> list[float]:
    """An accuracy that comes near ``top``, 63 % of the way in ``pace`` rounds."""
    return [
        float(np.clip(0.1 + (top - 0.1) * (1 - math.exp(-t / pace)) + noise.normal(0, 0.004), 0, 1))
        for t in range(1, rounds + 1)
    ]


def falling(rounds: int = ROUNDS, *, peak: int = 6, shrink: float = 0.9) -> list[float]:
    """Movements that rise to a peak and then shrink by a constant factor."""
    return [2 * (t / peak if t < peak else shrink ** (t - peak)) for t in range(1, rounds + 1)]


def runs(at: Place) -> dict[str, Track]:
    """Every run of a cell."""
    noise = np.random.default_rng([at.seed, at.per_client or 0, ORDER.index(at.partition), at.backdoor])
    size = 1.0 if (at.per_client or 3000) < 1000 else 0.4  # more images, fewer rounds
    top = TOPS[at.partition] + float(noise.normal(0, 0.004))
    curves = {
        name: rising(top + 0.02 * (name == "feduhb-on"), pace * size, noise, at.rounds)
        for name, pace in PACES.items()
    }
    curves["federaser"] = curves["federaser"][: at.rounds // 2]
    curves["fedrecover"] = [value - 0.3 for value in curves["fedrecover"]]
    shown = {name: 0.02 + 0.9 * (name == "original") for name in curves} if at.backdoor else {}
    asked = {"federaser": 9, "fedrecover": 5, "fedrecover-corrected": 8, "original": CLIENTS}
    moved = {"feduhb-on": falling(at.rounds, shrink=0.9 - 0.002 * at.seed)}
    found = {
        name: track(
            curve, moved.get(name), backdoor=shown.get(name), asked=asked.get(name, LEFT), exact=not name.startswith("fedr"),
        )
        for name, curve in curves.items()
    }  # fmt: skip
    found["feduhb"] = cut(found["feduhb-on"], at.scale)
    for beta in at.momenta:
        found[f"momentum-{beta:g}"] = track(rising(top + 0.02 * beta, 14 - 8 * beta, noise, at.rounds))
    for step in at.steps:
        found[f"step-{step:g}"] = track(rising(top, 14 / step, noise, at.rounds))
    return found


def cut(on: Track, scale: float) -> Track:
    """The run as a stop rule would have left it."""
    end = replay(dynamic_stop(scale), on.of("moved")) or on.rounds
    series = {name: values[:end] for name, values in on.series.items()}
    sums = {name: value * end / on.rounds for name, value in on.sums.items()}
    return replace(on, series=series, sums=sums, stopped="movement fell")


def cell(at: Place | None = None, *, runs_too: Mapping[str, Track] | None = None, alone: bool = True) -> Cell:
    """A finished cell; ``runs_too`` take the place of its own runs."""
    there = at or place()
    made = {**MADE, "alone": alone}
    found = {**runs(there), **(runs_too or {})}
    called = {name: (0.5 + 0.3 * (name == "original") + 0.01 * there.seed, 0.45) for name in found}
    misr = {"boosted trees": called, "logistic regression": called}
    return Cell(place=there, runs=found, misr=misr, made=made)


def grid(
    partitions: Iterable[str] = ORDER,
    sizes: Iterable[int | None] = (525, 3000),
    seeds: Iterable[int] = range(5),
    **more: Any,
) -> list[Cell]:
    """A whole grid, with the backdoor on iid; only seed 0 was timed."""
    where = [
        place(partition, size, seed, backdoor=planted, **more)
        for size in sizes
        for partition in partitions
        for planted in ((False, True) if partition == "iid" else (False,))
        for seed in seeds
    ]
    return [cell(at, alone=at.seed == 0) for at in where]


def failing(whole: Cell, run: str, after: int = 4) -> Cell:
    """The cell with a run that broke off after some rounds."""
    was = whole.runs[run]
    ended = {name: values[:after] for name, values in was.series.items()}
    broken = replace(was, series=ended, failed=f"the model was not finite in round {after + 1}")
    return replace(whole, runs={**whole.runs, run: broken})
