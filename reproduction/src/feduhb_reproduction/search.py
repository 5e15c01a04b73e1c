"""Search the images per client for which the stop rule gives the paper's rounds and accuracy, which are its claims on λ.

The paper gives neither the images of a client nor the partition. FedUHB runs once, its rule off, for every partition and
size, on the federations of MNIST's grid. The rule is replayed on the recorded movements afterwards.

    python -m feduhb_reproduction.search --data FOLDER --engine stacked:tf32 --out results/search

Reading the files of a search does not import torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from feduhb.errors import DataError, FeduhbError, RunFolderError
from feduhb.runs import write_atomically
from feduhb_reproduction.cells import Cell, Place, Track, round_series
from feduhb_reproduction.federations import ORDER
from feduhb_reproduction.measures import UHB_ON

SIZES = (50, 100, 150, 200, 300, 400, 750, 1000, 1500, 2000, 2500)  # besides the grid's 525 and 3,000
KEPT = ("test_accuracy", "moved")  # the series of a run that its file keeps
COMMAND = "python -m feduhb_reproduction.search --data FOLDER --engine {engine} --out results/search"


def search_seed(
    places: Sequence[Place], out: Path, *, data: Path | None = None, engine: str = "auto"
) -> Path:
    """Run FedUHB on each of one seed's places, and write the file of that seed after each run."""
    began, runs, refused = time.perf_counter(), [], []
    path = out / f"seed-{places[0].seed}.json"
    out.mkdir(parents=True, exist_ok=True)
    for place in places:
        which = {"partition": place.partition, "per_client": place.per_client}
        try:
            series, about = run_place(place, data=data, engine=engine)
        except DataError as error:  # not every class has enough images
            refused.append({**which, "why": str(error)})
            continue
        runs.append({**which, **{name: series[name] for name in KEPT}})
        record = {"made": describe_search(engine, about, began), "place": place.as_json(), "refused": refused}
        lines = ",\n".join(json.dumps(run, allow_nan=False) for run in runs)
        write_atomically(path, f'{json.dumps(record)[:-1]},\n"runs": [\n{lines}\n]}}\n'.encode())
        typer.echo(f"{place.name}: {series['test_accuracy'][-1]:.2%}")
    return path


def run_place(
    place: Place, *, data: Path | None = None, engine: str = "auto"
) -> tuple[dict[str, tuple[float, ...]], Mapping[str, Any]]:
    """Run FedUHB, its rule off, on a place's remaining clients; return its series and the engine's description."""
    import feduhb
    from feduhb_reproduction.cell import describe_training, list_series, load_federation
    from feduhb_reproduction.cell_plan import ON, Job, plan_runs

    federation = load_federation(place, data)
    untrained = describe_training(Job(place=place, out=Path(), engine=engine), federation)
    run = feduhb.unlearn(
        untrained, place.forget, method=plan_runs(place)[ON].method, rounds=place.rounds, stop=feduhb.never,
        erase_history=False, show=lambda record: None,  # noqa: ARG005
    )  # fmt: skip
    return list_series(run.rounds), untrained.make_engine().about


def describe_search(engine: str, about: Mapping[str, Any], began: float) -> dict[str, Any]:
    """Return a record of what made a file: command, commit, engine, device, versions, date and seconds."""
    from datetime import UTC, datetime

    from feduhb.runs import versions
    from feduhb_reproduction.cell import find_commit, name_device

    return {
        "command": COMMAND.format(engine=engine), "commit": find_commit(), "engine": dict(about),
        "device": name_device(about["device"]), "versions": versions(), "alone": False,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def read_search(folder: Path) -> list[Cell]:
    """Return a search's runs as cells that hold only FedUHB, its rule off; none if there is no such folder."""
    return [cell for path in sorted(folder.glob("seed-*.json")) for cell in _read_seed(path)]


def _read_seed(path: Path) -> Iterator[Cell]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        place = Place.from_json(record["place"])
        for run in record["runs"]:
            there = replace(place, partition=run["partition"], per_client=run["per_client"])
            series = {name: round_series(run[name]) for name in KEPT}
            ended = f"all {len(series['moved'])} scheduled rounds were run"
            track = Track(
                series=series, settings={"momentum": place.momentum}, exact=True, stopped=ended, sums={}, weights="", scores={}
            )  # fmt: skip
            yield Cell(place=there, runs={UHB_ON: track}, misr={}, made=record["made"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} is damaged ({error!r}); make it again: {COMMAND.format(engine='stacked:tf32')}"
        ) from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and search with each seed."""
    from feduhb_reproduction.grids import Grid, Part

    parser = argparse.ArgumentParser(prog="python -m feduhb_reproduction.search", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with MNIST's files; downloaded if not given")
    parser.add_argument("--engine", default="auto", help="as in feduhb train")
    parser.add_argument("--out", type=Path, default=Path("results/search"), help="folder for a file per seed")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="the seeds; those of the paper's grid if not given"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="images per client")
    asked = parser.parse_args(arguments)
    grid = Grid(data="mnist", parts=(Part(partitions=ORDER, per_client=tuple(asked.sizes)),))
    for seed in asked.seeds or grid.seeds:
        places = [place for place in grid.places() if place.seed == seed]
        search_seed(places, asked.out, data=asked.data, engine=asked.engine)


if __name__ == "__main__":
    try:
        main()
    except FeduhbError as error:
        sys.exit(f"the search ended: {error}")
