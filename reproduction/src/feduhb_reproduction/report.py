"""A grid's report, from the cells that are there: tables, their numbers unrounded, and figures. It never imports torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feduhb.errors import RunFolderError
from feduhb.report.stop_map import SCALES, format_window
from feduhb.runs import write_atomically
from feduhb_reproduction.cells import ORIGINAL, Cell, read_cells
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import (
    ACCURACY,
    UHB_ON,
    Reached,
    Spread,
    Stops,
    final_score,
    final_value,
    find_best_step,
    find_kept,
    find_reached,
    list_attackers,
    list_momenta,
    list_steps,
    measure_asr,
    measure_misr,
    measure_times,
    replay_rule,
    sum_of,
)
from feduhb_reproduction.tables import format_latex, format_markdown, list_federations, make_tables
from feduhb_reproduction.tuning import WINDOWS, Variant, list_variants, replay_variant
from feduhb_reproduction.words import GOAL, METHODS

SUMS = ("rounds", "client_epochs", "client_rounds", "client_rounds_saved", "bytes_up", "bytes_down", "history_bytes_read", "history_bytes_kept", "parameters")  # fmt: skip


def write_paper(folder: Path | str) -> list[Path]:
    """Write the report on a grid's cells beside them, and return its files.

    They are tables.md, summary.json (the numbers of the tables, unrounded), table-1.tex and the figures (PNG, PDF).

    Raises:
        RunFolderError: there is no finished cell, a cell is damaged, or cells belong to different experiments.
    """
    target = Path(folder)
    cells = read_cells(target / "cells")
    if not cells:
        raise RunFolderError(
            f"there is no finished cell in {target / 'cells'}; feduhb reproduce makes them, and the report with them"
        )
    made = _make_files(cells)
    for name, data in made.items():
        write_atomically(target / name, data)
    return [target / name for name in made]


def _make_files(cells: Sequence[Cell]) -> dict[str, bytes]:
    """Return every file before any is written, so that a report that fails leaves the old one whole."""
    from feduhb.report.drawing import to_pdf, to_png
    from feduhb_reproduction.figures import draw

    numbers = json.dumps(summarise(cells), allow_nan=False, ensure_ascii=False)
    made = {"tables.md": format_markdown(cells).encode(), "summary.json": f"{numbers}\n".encode()}
    timed = make_tables(cells).get("table-1")
    if timed is not None:
        made["table-1.tex"] = format_latex(timed).encode()
    return made | {
        f"{name}.{kind}": save(figure)
        for name, figure in draw(cells).items()
        for kind, save in (("png", to_png), ("pdf", to_pdf))
    }


def summarise(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return every number of the tables, unrounded, federation by federation and run by run, for `json.dumps`."""
    found = list_federations(cells)
    return {
        "data": cells[0].place.data if cells else None,
        "federations": {federation.name: _summarise_federation(federation) for federation in found},
    }


def _summarise_federation(federation: Federation) -> dict[str, Any]:
    runs = dict.fromkeys(
        [ORIGINAL, *METHODS, UHB_ON, *list_momenta(federation).values(), *list_steps(federation).values()]
    )
    return {
        "label": federation.label,
        "partition": federation.partition,
        "per_client": federation.per_client,
        "backdoor": federation.backdoor,
        "seeds": list(federation.seeds),
        "rounds": federation.rounds,
        "runs": {run: _summarise_run(federation, run) for run in runs if federation.has(run)},
        "momenta": {f"{beta:g}": run for beta, run in list_momenta(federation).items()},
        "steps": {f"{step:g}": run for step, run in list_steps(federation).items()},
        "best_step": find_best_step(federation),
        "lambda": {
            f"{scale:g}": {format_window(w): _summarise_stops(replay_rule(federation, scale=scale, window=w)) for w in WINDOWS}
            for scale in SCALES
        },
        "ablation": {variant.label: _summarise_variant(federation, variant) for variant in list_variants(federation)},
    }  # fmt: skip


def _summarise_run(federation: Federation, run: str) -> dict[str, Any]:
    goal, timed = GOAL.get(federation.cells[0].place.data), measure_times(federation, run)
    return {
        "failed": federation.failed(run),
        "test_accuracy": summarise_spread(final_value(federation, run, ACCURACY)),
        "test_loss": summarise_spread(final_value(federation, run, "test_loss")),
        "asr": summarise_spread(measure_asr(federation, run)),
        **{name: summarise_spread(final_score(federation, run, name)) for name in ("forgotten", "retained")},
        **{name: summarise_spread(sum_of(federation, run, name)) for name in SUMS},
        "misr": {
            name: {"called": summarise_spread(found.called), "on_test": summarise_spread(found.on_test)}
            for name in list_attackers(federation)
            if (found := measure_misr(federation, run, name)).called.n
        },
        "reaches_retrain": _summarise_reached(find_reached(federation, run)),
        "stays_at_retrain": _summarise_reached(find_kept(federation, run)),
        "reaches_goal": None if goal is None else _summarise_reached(find_reached(federation, run, goal)),
        "seconds": None
        if timed is None
        else {
            name: summarise_spread(getattr(timed, name))
            for name in ("per_round", "total", "per_scheduled", "rounds")
        },
    }


def _summarise_variant(federation: Federation, variant: Variant) -> dict[str, Any]:
    found = replay_variant(federation, variant)
    return {
        "run": variant.run,
        "ruled": variant.ruled,
        "rounds": summarise_spread(found.rounds),
        "test_accuracy": summarise_spread(found.accuracy),
        "reaches_retrain": _summarise_reached(found.reaches),
    }


def summarise_spread(found: Spread) -> dict[str, Any]:
    """Return a spread as plain values: mean, standard deviation, and the seeds' values."""
    return {"mean": found.mean, "sd": found.sd, "n": found.n, "values": list(found.values)}


def _summarise_reached(found: Reached) -> dict[str, Any]:
    return {"rounds": dict(found.rounds), "mean": found.mean, "hits": found.hits, "n": found.n}


def _summarise_stops(found: Stops) -> dict[str, Any]:
    return {
        "rounds": dict(found.rounds),
        "executed": summarise_spread(found.executed),
        "accuracy": summarise_spread(found.accuracy),
        "fires": found.fires,
        "n": found.n,
    }
