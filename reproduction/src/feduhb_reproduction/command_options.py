"""Options that the commands of this package share."""

from __future__ import annotations

from typing import Annotated

import typer

from feduhb.cli import parse_numbers
from feduhb.errors import ConfigError

CELLS_KEPT = "finished cells are kept, start again to continue; or delete FOLDER/work, whose models know the forgotten data"

Engine = Annotated[str, typer.Option(help="auto, pool, stacked (also stacked:tf32, stacked:bf16) or loop.")]
Workers = Annotated[
    int | None,
    typer.Option(
        help="The number of cells to run at once; default: 6 on a GPU, 1 elsewhere.", show_default=False
    ),
]
Seeds = Annotated[str | None, typer.Option(help="Run only these seeds, such as 1,2.", show_default=False)]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WORD",
        help="Run only cells whose names begin with this word, such as iid, or mnist/iid of a study; can be repeated.",
        show_default=False,
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Begin nothing new after this time; start again for the next piece.", show_default=False
    ),
]


def parse_seeds(text: str | None) -> list[int] | None:
    """Return the seeds in the text of --seeds, separated by commas; None without a text."""
    found = None if text is None else parse_numbers("--seeds", text, "0,1")
    if found and any(number != number or number % 1 for number in found):
        raise ConfigError(f"--seeds {text!r} is not a list of whole numbers; write for example --seeds 0,1")
    return None if found is None else [int(number) for number in found]
