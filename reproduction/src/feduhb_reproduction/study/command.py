"""`feduhb study`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feduhb.cli import Data, Json, answering
from feduhb_reproduction.command_options import Engine, Minutes, Only, Seeds, parse_seeds
from feduhb_reproduction.study.cost import add_times, estimate_minutes

if TYPE_CHECKING:
    from feduhb_reproduction.study.make import Phase

RUNS_KEPT = "finished runs are kept, start again to continue; or delete FOLDER/*/work, whose models know the forgotten data"


def study(
    what: Annotated[
        str, typer.Argument(metavar="STUDY", help="study, study-quick, or the path of a study of your own.")
    ] = "study",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for cells, choice, page and figures; default: STUDY.",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    engine: Engine = "auto",
    workers: Annotated[
        int,
        typer.Option(
            help="The number of cells to run at once. On a GPU more than one needs MPS to be faster."
        ),
    ] = 1,
    seeds: Seeds = None,
    only: Only = None,
    minutes: Minutes = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what is missing, with an estimate for a GPU, and exit.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare faster exact methods, and stop rules, on many federations.

    Example: feduhb study --data data --engine stacked:tf32 --out results/study --minutes 8

    A cell is one federation with one seed, and has one file, which is written after every run. If the command ends, start it again: it
    continues. To add cells from other machines, copy their files into FOLDER/DATA/cells.

    First every candidate runs on the first data set with the first tuning seed, and the best, or all, on the rest. Then the command chooses a setting of each
    method and of each stop rule, and writes them with the reasons to FOLDER/chosen.json. Then the chosen ones run on other seeds, and only
    those are reported: first the runs for the criteria on rounds and stop rules, then FedEraser and FedRecover, with which every criterion
    can be judged, then FedUHB, then the other methods. The chosen stop rule is judged on seeds of its own. With
    several workers, what depends on no choice may begin before. --dry-run estimates the minutes of each part. FOLDER/README.md is the report on what is there, with three figures.

    study has twelve federations of MNIST and CIFAR-10: more than an hour on one NVIDIA H200 (--dry-run estimates it), and about half of that
    with --workers 12 under NVIDIA's multi-process service (MPS). study-quick is a rehearsal on 5,000 images in minutes on two
    cores. To write your own, copy one of those in the folder experiments/studies of the package feduhb_reproduction.
    """
    from feduhb_reproduction.reproduce import CellsError
    from feduhb_reproduction.study.design import find_study, read_study
    from feduhb_reproduction.study.make import check_study, estimate_study, run_study
    from feduhb_reproduction.study.page import write_study

    with answering(json, RUNS_KEPT) as answer:
        path = find_study(what)
        plan = read_study(path)
        folder = out or Path(path.stem)
        chosen = {"seeds": parse_seeds(seeds), "only": only or ()}
        failed: CellsError | None = None
        try:
            found = check_study(plan, folder, **chosen) if dry_run else run_study(
                plan, folder, data=data, engine=engine, workers=workers, minutes=minutes, **chosen,
                command=_format_command(path, what, engine, workers), show="auto" if json else "lines",
            )  # fmt: skip
        except CellsError as error:
            failed, found = error, check_study(plan, folder, **chosen)
        written = [] if dry_run or not any(folder.glob("*/cells/*.json")) else write_study(plan, folder)
        phases, now = estimate_study(plan, folder), estimate_minutes(found.missing)
        answer.update(
            done=found.done, missing=sum(len(runs) for _, runs in found.missing), later=found.later, minutes=now,
            minutes_left=add_times(one.minutes for one in phases), minutes_in_all=add_times(one.whole for one in phases),
            phases=[asdict(one) for one in phases], fast=None if found.choice is None else asdict(found.choice.fast),
            written=[str(file) for file in written],
        )  # fmt: skip
        if not json:
            typer.echo("\n".join([str(found), *_format_cost(now, phases), *map(str, written)]))
        if failed:
            raise failed


def _format_cost(now: float | None, phases: Sequence[Phase]) -> list[str]:
    left, whole = (add_times(getattr(one, name) for one in phases) for name in ("minutes", "whole"))
    lines = ["the time is not estimated: rounds of this data were not measured on a GPU"]
    if now is not None and left is not None and whole is not None:
        several = f"{now:.0f} minutes for the runs that can begin now, {left:.0f} for all that are missing, {whole:.0f} for the whole study"
        lines = [f"estimated on one NVIDIA H200 in tf32, one run after the other: {several}"]
    parts = [
        f"{one.name} {one.missing} runs" + ("" if one.minutes is None else f", {one.minutes:.0f} minutes")
        for one in phases
        if one.missing
    ]
    return [*lines, *([f"missing in all, in this order: {'; '.join(parts)}"] if parts else [])]


def _format_command(path: Path, what: str, engine: str, workers: int) -> str:
    """Return the command as another person would type it: without folders of this machine."""
    name = path.name if what.endswith(".toml") else what
    return f"feduhb study {name} --engine {engine}" + (f" --workers {workers}" if workers > 1 else "")
