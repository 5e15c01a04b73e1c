"""Evidence made by hand, to be judged: grids in which one thing is as a test wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from feduhb_reproduction.cells import Cell, Track
from feduhb_reproduction.claims.parts import Evidence
from paper.cells import ROUNDS, cell, falling, place, track

Runs = Mapping[str, Sequence[float] | Track]
Rates = Mapping[str, tuple[float, float]]


def rise(at: int, top: float = 0.9, rounds: int = ROUNDS, low: float = 0.1) -> list[float]:
    """An accuracy that is low, and at the top from one round on."""
    return [low] * (at - 1) + [top] * (rounds - at + 1)


def federation(
    runs: Runs,
    *,
    data: str = "mnist",
    misr: Rates | None = None,
    logistic: Rates | None = None,
    seeds: int = 3,
    alone: bool = True,
    apart: Mapping[int, Runs] | None = None,
    **where: Any,
) -> list[Cell]:
    """Cells of one federation with these runs in every seed, and others where a seed is set apart."""
    found = []
    for seed in range(seeds):
        told = {**runs, **(apart or {}).get(seed, {})}
        tracks = {name: one if isinstance(one, Track) else track(one) for name, one in told.items()}
        whole = cell(place(seed=seed, data=data, momenta=(), steps=(), **where), alone=alone)
        rates = {"boosted trees": dict(misr)} if misr else whole.misr
        rates = {**rates, "logistic regression": dict(logistic)} if logistic else rates
        found.append(replace(whole, runs={**whole.runs, **tracks}, misr=rates))
    return found  # fmt: skip


def took(each: float, rounds: int = ROUNDS) -> Track:
    """A run whose rounds take so many seconds each."""
    made = track(rise(1, rounds=rounds))
    seconds = {"client_seconds": (each,) * rounds, "server_seconds": (0.0,) * rounds}
    return replace(made, series={**made.series, **seconds})


def summed(**sums: float) -> Track:
    """A run with these sums beside its own."""
    made = track(rise(9))
    return replace(made, sums={**made.sums, **sums})


def ruled(accuracy: list[float], *, fires: bool = True) -> Track:
    """A run that the paper's rule would end, or would not."""
    return track(accuracy, falling() if fires else [1.0] * len(accuracy))


def evidence(*grids: Sequence[Cell], **more: Any) -> Evidence:
    """Cells, sorted by their data set."""
    every = [one for cells in grids for one in cells]
    names = dict.fromkeys(one.place.data for one in every)
    return Evidence({data: [one for one in every if one.place.data == data] for data in names}, **more)


def theorem(
    *runs: tuple[float, float, float, float], start: float = 4.0, under: bool = True
) -> dict[str, Any]:
    """What theorem.json holds, of runs given as (beta, peak, final, limit)."""
    told = [
        {"beta": beta, "peak": peak, "final": final, "paper_limit": limit, "under_paper": under}
        for beta, peak, final, limit in runs
    ]
    return {"settings": {"rounds": 400}, "start_from_optimum": start, "runs": told}


def audit(*, same: bool) -> dict[str, Any]:
    """The part of an audit that tells whether both counterfactuals gave the same weights."""
    apart = 0.0 if same else 0.02
    checks = [{"name": name, "identical": same, "largest_difference": apart} for name in ("noise", "never")]
    return {
        "exactness": {"checks": [*checks, {"name": "again", "identical": True, "largest_difference": 0.0}]}
    }
