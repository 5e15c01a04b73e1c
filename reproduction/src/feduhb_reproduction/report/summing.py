"""Every number behind the tables, unrounded: federation by federation, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feduhb.report.stop_map import SCALES, spelled
from feduhb_reproduction.cells import ORIGINAL, Cell
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import (
    ACCURACY,
    UHB_ON,
    Reached,
    Spread,
    Stops,
    asr,
    attackers,
    best_step,
    final,
    misr,
    momenta,
    reached,
    score,
    stays,
    steps,
    stops,
    times,
    total,
)
from feduhb_reproduction.report.outcomes import every
from feduhb_reproduction.report.printed import GOAL, METHODS
from feduhb_reproduction.report.tuning import WINDOWS, Variant, outcome, variants

SUMS = ("rounds", "client_epochs", "client_rounds", "client_rounds_saved", "bytes_up", "bytes_down", "history_bytes_read", "history_bytes_kept", "parameters")  # fmt: skip


def summed(cells: Sequence[Cell]) -> dict[str, Any]:
    """Sum a grid up."""
    found = every(cells)
    return {
        "data": cells[0].place.data if cells else None,
        "federations": {federation.name: _federation(federation) for federation in found},
    }


def _federation(federation: Federation) -> dict[str, Any]:
    runs = dict.fromkeys(
        [ORIGINAL, *METHODS, UHB_ON, *momenta(federation).values(), *steps(federation).values()]
    )
    return {
        "label": federation.label,
        "partition": federation.partition,
        "per_client": federation.per_client,
        "backdoor": federation.backdoor,
        "seeds": list(federation.seeds),
        "rounds": federation.rounds,
        "runs": {run: _run(federation, run) for run in runs if federation.has(run)},
        "momenta": {f"{beta:g}": run for beta, run in momenta(federation).items()},
        "steps": {f"{step:g}": run for step, run in steps(federation).items()},
        "best_step": best_step(federation),
        "lambda": {
            f"{scale:g}": {spelled(w): _stops(stops(federation, scale=scale, window=w)) for w in WINDOWS}
            for scale in SCALES
        },
        "ablation": {variant.label: _variant(federation, variant) for variant in variants(federation)},
    }  # fmt: skip


def _run(federation: Federation, run: str) -> dict[str, Any]:
    goal, timed = GOAL.get(federation.cells[0].place.data), times(federation, run)
    return {
        "failed": federation.failed(run),
        "test_accuracy": spread(final(federation, run, ACCURACY)),
        "test_loss": spread(final(federation, run, "test_loss")),
        "asr": spread(asr(federation, run)),
        **{name: spread(score(federation, run, name)) for name in ("forgotten", "retained")},
        **{name: spread(total(federation, run, name)) for name in SUMS},
        "misr": {
            name: {"called": spread(found.called), "on_test": spread(found.on_test)}
            for name in attackers(federation)
            if (found := misr(federation, run, name)).called.n
        },
        "reaches_retrain": _reached(reached(federation, run)),
        "stays_at_retrain": _reached(stays(federation, run)),
        "reaches_goal": None if goal is None else _reached(reached(federation, run, goal)),
        "seconds": None
        if timed is None
        else {
            name: spread(getattr(timed, name)) for name in ("per_round", "total", "per_scheduled", "rounds")
        },
    }


def _variant(federation: Federation, variant: Variant) -> dict[str, Any]:
    found = outcome(federation, variant)
    return {
        "run": variant.run,
        "ruled": variant.ruled,
        "rounds": spread(found.rounds),
        "test_accuracy": spread(found.accuracy),
        "reaches_retrain": _reached(found.reaches),
    }


def spread(found: Spread) -> dict[str, Any]:
    """Spell a spread: mean, standard deviation, and the seeds' values."""
    return {"mean": found.mean, "sd": found.sd, "n": found.n, "values": list(found.values)}


def _reached(found: Reached) -> dict[str, Any]:
    return {"rounds": dict(found.rounds), "mean": found.mean, "hits": found.hits, "n": found.n}


def _stops(found: Stops) -> dict[str, Any]:
    return {
        "rounds": dict(found.rounds),
        "executed": spread(found.executed),
        "accuracy": spread(found.accuracy),
        "fires": found.fires,
        "n": found.n,
    }
