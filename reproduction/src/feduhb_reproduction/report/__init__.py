"""The paper's tables and figures from the cells of a grid, however many of them are there, and never torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feduhb.errors import RunFolderError
from feduhb.runs.folder import write_atomically
from feduhb_reproduction.cells import Cell, read_cells


def write_paper(folder: Path | str) -> list[Path]:
    """Write tables.md, summary.json (their numbers, unrounded), table-1.tex and the figures (PNG, PDF) beside a grid's cells; give their paths.

    Raises:
        RunFolderError: there is no finished cell, one is damaged, or they are of different experiments.
    """
    target = Path(folder)
    cells = read_cells(target / "cells")
    if not cells:
        raise RunFolderError(
            f"there is no finished cell in {target / 'cells'}; feduhb reproduce makes them, and the report with them"
        )
    made = _made(cells)
    for name, data in made.items():
        write_atomically(target / name, data)
    return [target / name for name in made]


def _made(cells: Sequence[Cell]) -> dict[str, bytes]:
    """Make every file before any is written, so that a report that fails leaves the old one whole."""
    from feduhb.report.figures import pdf, png
    from feduhb_reproduction.report.drawn import draw
    from feduhb_reproduction.report.tables import latex, markdown, tables

    numbers = json.dumps(summary(cells), allow_nan=False, ensure_ascii=False)
    made = {"tables.md": markdown(cells).encode(), "summary.json": f"{numbers}\n".encode()}
    timed = tables(cells).get("table-1")
    if timed is not None:
        made["table-1.tex"] = latex(timed).encode()
    return made | {
        f"{name}.{kind.__name__}": kind(figure) for name, figure in draw(cells).items() for kind in (png, pdf)
    }


def summary(cells: Sequence[Cell]) -> dict[str, Any]:
    """Give every number of the tables, unrounded, as values that `json.dumps` takes."""
    from feduhb_reproduction.report.summing import summed

    return summed(cells)


__all__ = ["summary", "write_paper"]
