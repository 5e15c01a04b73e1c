"""`feduhb reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli import Data, Json, answering
from feduhb.errors import FeduhbError
from feduhb_reproduction.command_options import CELLS_KEPT, Engine, Only, Seeds, Workers, parse_seeds


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="GRID", help="mnist, cifar10, or the path of a grid of your own.", show_default=False
        ),
    ],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="One seed, one federation, 525 images a client, 10 rounds: about six minutes on two cores.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for cells, tables and figures; default: paper/GRID.",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    engine: Engine = "auto",
    workers: Workers = None,
    seeds: Seeds = None,
    only: Only = None,
    missing: Annotated[bool, typer.Option("--missing", help="List the missing cells and exit.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder of every run, with gigabytes of history.")
    ] = False,
    json: Json = False,
) -> None:
    """Repeat the paper's experiments, with tables, figures and error bars.

    Example: feduhb reproduce mnist --data data --out paper/mnist

    A cell of the grid is one federation with one seed. It is trained, unlearned by every method and attacked, and its results are one
    file. If you interrupt the command and start it again, it continues and keeps the finished cells. To add cells from other machines,
    copy their files into FOLDER/cells. If you add momenta or server steps to a grid, only these are run. Tables and figures show the
    finished cells.

    A grid is a TOML file. To write your own, copy one of those in the folder experiments of the package feduhb_reproduction.
    """
    from feduhb_reproduction.grids import find_grid, read_grid
    from feduhb_reproduction.reproduce import CellsError, check_progress
    from feduhb_reproduction.reproduce import reproduce as run_grid

    with answering(json, CELLS_KEPT) as answer:
        path = find_grid(what, quick=quick)
        grid = read_grid(path)
        folder = out or Path("paper") / path.stem
        chosen = {"seeds": parse_seeds(seeds), "only": only or ()}
        failed: CellsError | None = None
        try:
            found = check_progress(grid, folder, **chosen) if missing else run_grid(
                grid, folder, data=data, engine=engine, workers=workers, keep=keep, **chosen,
                command=_format_command(what, quick, engine, workers), show="auto" if json else "lines",
            )  # fmt: skip
        except CellsError as error:
            failed, found = error, check_progress(grid, folder, **chosen)
        written = [] if missing else _write_report(folder, failed)
        answer.update(
            done=[place.name for place in found.done], missing=[place.name for place in found.missing],
            partly=dict(found.partly), written=[str(file) for file in written],
        )  # fmt: skip
        if not json:
            typer.echo("\n".join([str(found), *map(str, written)]))
        if failed:
            raise failed


def _write_report(folder: Path, failed: FeduhbError | None) -> list[Path]:
    """Write the report on the cells that are there and return its files; return [] if there are none.

    If that fails after cells failed, raise one error that names both.
    """
    from feduhb_reproduction.report import write_paper

    try:
        return write_paper(folder) if any((folder / "cells").glob("*.json")) else []
    except Exception as error:
        if failed is None:
            raise
        raise type(failed)(f"{failed}; the report on the others failed too: {error}") from error


def _format_command(what: str, quick: bool, engine: str, workers: int | None) -> str:
    """Return the command as another person would type it: without folders of this machine."""
    grid = what if not what.endswith(".toml") else Path(what).name
    words = ["feduhb", "reproduce", grid, *(["--quick"] if quick else []), "--engine", engine]
    return " ".join([*words, *(["--workers", str(workers)] if workers else [])])
