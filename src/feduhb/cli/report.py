"""`feduhb report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Json, answering, write_pages


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Where table, figures and HTML go.")] = Path("report"),
    json: Json = False,
) -> None:
    """Write tables, figures and one self-contained HTML page about finished runs, with their audits."""
    with answering(json) as answer:
        write_pages(answer, runs, out, json)
