"""All tables of a grid: the paper's number beside ours in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from feduhb.report.grids import Grid, tex_safe
from feduhb.report.words import listed
from feduhb_reproduction.cells import ORIGINAL, RETRAIN, Cell
from feduhb_reproduction.report import outcomes, printed, tuning
from feduhb_reproduction.report.federations import federations
from feduhb_reproduction.report.measures import asr, attackers, final, misr, over
from feduhb_reproduction.report.outcomes import said
from feduhb_reproduction.report.spelling import PLUS, points, seeded, shares


def tables(cells: Sequence[Cell]) -> dict[str, Grid]:
    """Give every table that these cells fill, by name."""
    kinds: dict[str, Callable[[Sequence[Cell]], Grid]] = {
        "runs": outcomes.runs, "table-1": outcomes.table_1, "accuracy": outcomes.accuracy, "reached": outcomes.rounds,
        "misr": called, "asr": triggered, "beta": tuning.betas, "lambda": tuning.lambdas, "ablation": tuning.ablation,
    }  # fmt: skip
    made = {name: kind(cells) for name, kind in kinds.items()}
    return {name: grid for name, grid in made.items() if grid.rows}


def markdown(cells: Sequence[Cell]) -> str:
    """Render every table as Markdown, with how to read it."""
    found = tables(cells)
    notes = {name: grid.note for name, grid in found.items()} | {"runs": commands(cells)}
    return "\n".join(
        "\n\n".join(part for part in (f"## {grid.title}", notes[name], grid.markdown()) if part)
        for name, grid in found.items()
    )


def commands(cells: Sequence[Cell]) -> str:
    """Say what made the cells."""
    made = dict.fromkeys(str(made["command"]) for cell in cells for made in cell.origins)
    return f"The cells were made by {listed([f'`{command}`' for command in made])}."


def latex(grid: Grid) -> str:
    """Render one table as a LaTeX tabular, under comments that say what it is."""
    return f"% {tex_safe(grid.title)}\n% {tex_safe(grid.note)}\n{grid.latex()}"


def called(cells: Sequence[Cell]) -> Grid:
    """MISR as in the paper, the attacker's rate on test data beside every number."""
    found = [each for each in outcomes.every(cells) if attackers(each)]
    names = list(dict.fromkeys(name for each in found for name in attackers(each)))
    rows = [
        [
            each.label,
            printed.ROWS[run],
            *(shares(side) for name in names for side in misr(each, run, name)),
            said(printed.MISR, each, run),
            seeded(each, run),
        ]
        for each in found
        for run in (ORIGINAL, *printed.METHODS)
        if each.has(run)
    ]
    columns = [head for name in names for head in (name, "on test data")]
    headers = ["federation", "model", *columns, "paper", "seeds"]
    note = (
        "MISR: the share of the forgotten data that an attacker, fitted on the original model, calls member. It is a recall, and 50% "
        "means nothing: what a model gets that never saw the data stands in Retrain's row, and the attacker's rate on test data beside every number. These two differ where the leavers' "
        f"labels are not those of the test data. {PLUS}"
    )
    return Grid("MISR, as in the paper", headers, rows, frozenset({0, 1, len(headers) - 2}), note)


def triggered(cells: Sequence[Cell]) -> Grid:
    """How often the trigger works, against the floor."""
    rows = [
        [
            each.label,
            printed.ROWS[run],
            shares(asr(each, run)),
            points(over(each, run, RETRAIN, "backdoor")),
            said(printed.ASR, each, run),
            shares(final(each, run)),
            seeded(each, run),
        ]
        for each in federations(cells, backdoor=True)
        for run in (ORIGINAL, *printed.METHODS)
        if asr(each, run).n
    ]
    headers = ["federation", "model", "ASR", "over Retrain's (points)", "paper", "test accuracy", "seeds"]
    note = (
        "ASR: the share of stamped test images of other classes that are taken for the target. Retrain never saw the trigger: its row "
        f"is the floor, and where the original is no higher, nothing was implanted that could be forgotten. {PLUS}"
    )
    return Grid("ASR: does the backdoor still work?", headers, rows, frozenset({0, 1, 4}), note)
