"""`feduhb retire`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feduhb.cli.options import Json, answering, list_runs
from feduhb.errors import RequestError

if TYPE_CHECKING:
    from feduhb.runs.retire import Retirement

AGAIN = "start again to finish it"
Unaudited = Annotated[
    str | None,
    typer.Option(
        metavar="REASON",
        help="Retire the old run although no audit passed, for example because the server has no data to audit with. "
        "The reason goes into retired.json.",
    ),
]


def retire(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of the old run.", autocompletion=list_runs)
    ],
    replaced_by: Annotated[
        Path | None,
        typer.Option(
            metavar="NEW", help="Folder of the run that replaces it; found by the lineage if not given."
        ),
    ] = None,
    unaudited: Unaudited = None,
    siblings: Annotated[
        bool,
        typer.Option(
            "--siblings",
            help="Retire every other run that still holds the forgotten data too, and delete what audits left in audit-work folders. Asks before it does.",
        ),
    ] = False,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Delete this folder too, of those that hold or may hold the forgotten data. May be repeated.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask about the siblings.")] = False,
    json: Json = False,
) -> None:
    """Delete a run that another run has replaced, and leave a tombstone: retired.json.

    Example: feduhb retire runs/first

    Rounds in which a leaver took no part can be run backwards from the old model. So the old model, its checkpoints, its kept models, its history, its seed and its records are personal data of the leavers, and they are deleted. Audits, the lineage and files that feduhb did not write stay.

    The new run must have ended, and audits must say that it, and the runs between, forgot what they were asked to forget. The command lists the other runs that still hold the forgotten data: runs that came from the same training, or that have the same data in their config, in the folders beside the known runs. Runs in which a client of the same name took part may hold the data: they are listed too, and deleted only if --also names them. Folders that cannot be read are named; look at them yourself. You must also delete backups and copies elsewhere.

    After a crash, start it again: it finishes. The new run is never changed; only its audit-work is deleted, with --siblings.
    """
    from feduhb.runs.retire import plan_retirement

    with answering(json, AGAIN) as answer:
        plan = plan_retirement(run, replaced_by, unaudited).take_along(siblings=siblings, also=also or ())
        if siblings and plan.along and not yes:
            confirm(plan)
        print_retired(answer, plan, plan.carry_out(), json)


def confirm(plan: Retirement) -> None:
    """Ask whether to delete the siblings too; raise RequestError if the answer is no, or nobody can answer."""
    from feduhb.runs.lineage import shorten

    names = "\n".join(f"  {shorten(place)}" for place in plan.along)
    typer.echo(f"These folders hold {plan.leavers} and would be deleted too:\n{names}", err=True)
    if not can_ask():
        raise RequestError("nobody can confirm that; add --yes to delete them, or omit --siblings")
    if not typer.confirm("Delete them?", err=True):
        raise RequestError("nothing was deleted; omit --siblings to retire this run alone")


def can_ask() -> bool:
    """Whether a person can answer."""
    return sys.stdin.isatty()


def print_retired(
    answer: dict[str, Any], plan: Retirement, tombstones: Sequence[Mapping[str, Any]], json: bool
) -> None:
    """Add the tombstones to the answer, and print what was deleted, what was left and what still holds the leavers."""
    from feduhb.runs.lineage import shorten

    answer.update(
        retired=list(tombstones),
        holding=[*map(str, plan.holding)],
        may_hold=[*map(str, plan.may_hold)],
        unread=[*map(str, plan.unread)],
    )
    if json:
        return
    for place, tombstone in zip(plan.list_runs(), tombstones, strict=True):
        size = sum(entry.get("bytes", 0) for entry in tombstone["deleted"])
        typer.echo(
            f"retired {shorten(place)}: {size:,} bytes deleted; {shorten(place / 'retired.json')} lists them"
        )
        links = [f"{entry['name']} -> {entry['link']}" for entry in tombstone["deleted"] if "link" in entry]
        if links:
            typer.echo(f"  only links were deleted, not what they point to: {', '.join(links)}")
        if tombstone["left"]:
            typer.echo(f"  left, because feduhb did not write it: {', '.join(tombstone['left'])}")
    for work in plan.list_work():
        typer.echo(f"deleted {shorten(work)}, whose models knew {plan.leavers}")
    again = f"feduhb retire {shorten(plan.run)}"
    if plan.holding:
        names = ", ".join(str(shorten(place)) for place in plan.holding)
        typer.echo(
            f"these folders still hold {plan.leavers}: {names}; to delete them too: {again} --siblings"
        )
    if plan.may_hold:
        names = ", ".join(str(shorten(place)) for place in plan.may_hold)
        typer.echo(
            f"these folders may hold {plan.leavers}, because a client of that name took part: {names}; "
            f"look at each, and if it does: {again} --also {shorten(plan.may_hold[0])}"
        )
    if plan.unread:
        names = ", ".join(str(shorten(place)) for place in plan.unread)
        typer.echo(
            f"these folders could not be read, so they may hold {plan.leavers} too: {names}; look at each yourself"
        )
