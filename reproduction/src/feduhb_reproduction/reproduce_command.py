"""`feduhb reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Data, Json, answering, parse_numbers
from feduhb.errors import ConfigError, FeduhbError

CELLS_KEPT = (
    "what is done is kept, start again to go on; or delete FOLDER/work, whose models know the forgotten data"
)


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
            help="One seed of one federation, 525 images a client, 10 rounds: about six minutes on two cores.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where cells, tables and figures go; paper/GRID if not given.",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    engine: Annotated[
        str, typer.Option(help="auto, pool, stacked (also stacked:tf32, stacked:bf16) or loop.")
    ] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(help="Cells at once; 6 on a GPU and 1 elsewhere if not given.", show_default=False),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Only these of the grid's seeds, such as 0,1, to share the work out.", show_default=False
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="Only cells whose name begins so, such as iid; can be repeated.",
            show_default=False,
        ),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="List the cells that are missing, and compute nothing.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep every run's folder, with histories of gigabytes.")
    ] = False,
    json: Json = False,
) -> None:
    """Make the paper's tables and figures again, with error bars, from real training.

    For example: feduhb reproduce mnist --data data --out paper/mnist

    Each cell of the grid (a federation of one seed: trained, unlearned by every method, attacked) is a file of its own. Interrupt the
    command anywhere and start it again: it goes on where it stood, and what is done is never done again. Cells made on other
    machines are added by copying their files into FOLDER/cells, and a grid that asks for more momenta or server steps than before
    has only those run. Tables and figures are drawn from the cells that are there.

    A grid is a TOML file: experiments/mnist.toml shows all there is to set.
    """
    from feduhb_reproduction.grids import grid_file, read_grid
    from feduhb_reproduction.reproduce import CellsError, standing
    from feduhb_reproduction.reproduce import reproduce as run_grid

    with answering(json, CELLS_KEPT) as answer:
        path = grid_file(what, quick=quick)
        grid = read_grid(path)
        folder = out or Path("paper") / path.stem
        chosen = {"seeds": _parse_integers("--seeds", seeds), "only": only or ()}
        failed: CellsError | None = None
        try:
            found = standing(grid, folder, **chosen) if missing else run_grid(
                grid, folder, data=data, engine=engine, workers=workers, keep=keep, **chosen,
                command=_format_command(what, quick, engine, workers), show="auto" if json else "lines",
            )  # fmt: skip
        except CellsError as error:
            failed, found = error, standing(grid, folder, **chosen)
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
        raise type(failed)(f"{failed}; nor could the others be drawn: {error}") from error


def _parse_integers(option: str, text: str | None) -> list[int] | None:
    """Read whole numbers separated by commas."""
    found = None if text is None else parse_numbers(option, text, "0,1")
    if found and any(number != number or number % 1 for number in found):
        raise ConfigError(f"{option} {text!r} is not a list of whole numbers; write for example {option} 0,1")
    return None if found is None else [int(number) for number in found]


def _format_command(what: str, quick: bool, engine: str, workers: int | None) -> str:
    """The command as somebody else would type it: without folders of this machine."""
    grid = what if not what.endswith(".toml") else Path(what).name
    words = ["feduhb", "reproduce", grid, *(["--quick"] if quick else []), "--engine", engine]
    return " ".join([*words, *(["--workers", str(workers)] if workers else [])])
