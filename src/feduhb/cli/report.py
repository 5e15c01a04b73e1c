"""`feduhb report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Json, answering, list_runs, write_pages


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of finished runs.", autocompletion=list_runs),
    ],
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and page.")] = Path("report"),
    json: Json = False,
) -> None:
    """Write tables, figures and one self-contained HTML page about finished runs and their audits.

    Example: feduhb report runs/first runs/first-feduhb
    """
    with answering(json) as answer:
        write_pages(answer, runs, out, json)
