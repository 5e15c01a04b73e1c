"""`feduhb reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli import Data, Json, answering, parse_numbers
from feduhb.errors import ConfigError, FeduhbError

CELLS_KEPT = "finished cells are kept, start again to continue; or delete FOLDER/work, whose models know the forgotten data"


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
    engine: Annotated[
        str, typer.Option(help="auto, pool, stacked (also stacked:tf32, stacked:bf16) or loop.")
    ] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(
            help="The number of cells to run at once; default: 6 on a GPU, 1 elsewhere.", show_default=False
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Run only these seeds of the grid, such as 0,1.", show_default=False),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="Run only cells whose names begin with this word, such as iid; can be repeated.",
            show_default=False,
        ),
    ] = None,
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
        chosen = {"seeds": _parse_integers("--seeds", seeds), "only": only or ()}
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


def _parse_integers(option: str, text: str | None) -> list[int] | None:
    """Return the whole numbers in a text, separated by commas; None without a text."""
    found = None if text is None else parse_numbers(option, text, "0,1")
    if found and any(number != number or number % 1 for number in found):
        raise ConfigError(f"{option} {text!r} is not a list of whole numbers; write for example {option} 0,1")
    return None if found is None else [int(number) for number in found]


def _format_command(what: str, quick: bool, engine: str, workers: int | None) -> str:
    """Return the command as another person would type it: without folders of this machine."""
    grid = what if not what.endswith(".toml") else Path(what).name
    words = ["feduhb", "reproduce", grid, *(["--quick"] if quick else []), "--engine", engine]
    return " ".join([*words, *(["--workers", str(workers)] if workers else [])])
