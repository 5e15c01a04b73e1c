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
    row: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="A column of whole numbers by which requests name rows, such as patients."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Draft a config for a table: categories, classes, dates and fills, to be read and corrected.

    Example: feduhb table patients.csv --client hospital --target disease > federation.toml

    A federation infers nothing from its rows, because that would carry the data of a client that leaves into the inputs of the others. So the config declares what its columns hold. The draft lists what the rows hold now. Read it: what you declare counts as public knowledge, and stays when a client leaves. A column of whole numbers without repeats may be an identifier, and is dropped with a comment that asks.
    """
    import tomli_w

    from feduhb.data.describe import draft_table

    with answering(json) as answer:
        names = [name.strip() for name in target.split(",")]
        targets = names[0] if len(names) == 1 else names
        found, asked = draft_table(file, client=client, target=targets, row=row)
        named = {} if row is None else {"row": row}
        settings = {"path": str(file), "client": client, "target": targets, **named, **found}
        answer.update(table=settings)
        if not json:
            draft = tomli_w.dumps(
                {"seed": 1, "federation": {"table": settings}, "train": {"rounds": 40, "lr": 0.05}}
            )
            typer.echo(
                f"# Drafted from all rows of {file.name}. Read every line: what is declared counts as public."
            )
            for name in asked:
                typer.echo(
                    f"# Is {name} an identifier? It holds whole numbers without repeats, so it is dropped. Give --row {name} if "
                    "requests name rows by it, or list it under numbers."
                )
            typer.echo(draft)
