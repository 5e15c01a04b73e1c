"""`feduhb table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feduhb.cli.options import Json, answering


def table(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .csv, .tsv or .parquet file with a header.")
    ],
    client: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column that names the client of each row.")
    ],
    target: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column to predict; several, separated by commas.")
    ],
    json: Json = False,
) -> None:
    """Draft a config for a table: categories, classes, dates and fills, to be read and corrected.

    Example: feduhb table patients.csv --client hospital --target disease > federation.toml

    A federation infers nothing from its rows, because that would carry the data of a client that leaves into the inputs of the others. So the config declares what its columns hold. The draft lists what the rows hold now. Read it: what you declare counts as public knowledge, and stays when a client leaves.
    """
    import tomli_w

    from feduhb.data.describe import describe_table

    with answering(json) as answer:
        names = [name.strip() for name in target.split(",")]
        targets = names[0] if len(names) == 1 else names
        found = describe_table(file, client=client, target=targets)
        settings = {"path": str(file), "client": client, "target": targets, **found}
        answer.update(table=settings)
        if not json:
            draft = tomli_w.dumps(
                {"seed": 1, "federation": {"table": settings}, "train": {"rounds": 40, "lr": 0.05}}
            )
            typer.echo(
                f"# Drafted from all rows of {file.name}. Read every line: what is declared counts as public.\n{draft}"
            )
