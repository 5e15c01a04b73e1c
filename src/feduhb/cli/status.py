"""`feduhb status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feduhb.cli.options import Json, answering
from feduhb.runs.files import resolve

if TYPE_CHECKING:
    from rich.text import Text

    from feduhb.runs.status import Held, Remnant, RunStatus, Status

NAMED = 6  # at most this many leavers are named in a line
UNITS = ("bytes", "kB", "MB", "GB", "TB")
WHY = {
    "name": "because a client of that name took part",
    "unreadable": "because it cannot be read",
    "data": "known by its data",
    "restored": "although it was retired",
}


def status(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with runs, or one run.")],
    of: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Show what is left of this client alone, by id or registered name, or of rows or a class, whether a run has forgotten it or not.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if anything is left, or may be left.")
    ] = False,
    json: Json = False,
) -> None:
    """List runs, what each still holds of forgotten clients, audits, and what to do next.

    Example: feduhb status runs --of c03

    Show for each run: which run it came from, what it has forgotten, what it still holds of which client (model, kept models, history, records, audit work), what its audits said and whether they judged these weights, and what was erased when. Damaged runs are listed too.

    It looks at the runs in FOLDER, four levels deep, and at those that their lineage names. Nothing is changed. It does not find exports, backups and copies elsewhere.
    """
    from feduhb.runs.inventory import read_status

    with answering(json) as answer:
        found = read_status(folder, of)
        answer.update(found.as_json())
        if not json:
            print_status(found)
    if check and not found.is_clear:
        raise typer.Exit(1)


def print_status(found: Status) -> None:
    """Print the runs as a tree, what each holds of which client, and what to do next."""
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    console = Console(highlight=False)
    paths = {run.path for run in found.runs}
    base = found.folder.parent if found.folder in paths else found.folder
    branches: dict[Path, Tree] = {}
    for run in found.runs:
        branches[run.path] = tree = Tree(_format_title(run, base), guide_style="dim")
        for line, style in _list_lines(run, base):
            tree.add(Text(_clean(line), style=style))
    roots: list[Tree] = []
    for run in found.runs:
        before = run.came_from
        if before in branches and before != run.path:
            branches[before].children.append(branches[run.path])
        else:
            roots.append(branches[run.path])
    for tree in roots:
        console.print(tree)
    console.print()
    for line, style in _list_answers(found, base):
        console.print(Text(_clean(line), style=style))
    for number, step in enumerate(found.steps, 1):
        if number == 1:
            console.print(Text("\nNext", style="bold"))
        verb = "look at" if step.what == "look" else step.what
        console.print(Text(_clean(f"{number}. {verb} {_relate(step.path, base)}: {step.says}")))
        if step.command:
            console.print(Text(f"   {_clean(step.command)}", style="bold"), soft_wrap=True)


def _format_title(run: RunStatus, folder: Path) -> Text:
    from rich.text import Text

    state = run.state
    if run.state == "superseded" and run.superseded_by:
        state = f"superseded by {_relate(run.superseded_by[-1], folder)}"
    if run.state in {"retired", "retiring"}:
        state = f"retired on {run.ended[:10]}" if run.ended else "its retirement was interrupted"
    method = f"{run.method} " if run.method else ""
    made = f", {method}without {_shorten(run.forgot.split(','))}" if run.forgot else ""
    kind = " (approximate)" if run.exact is False else ""
    style = {"damaged": "red", "unfinished": "yellow", "retired": "dim"}.get(run.state, "")
    text = Text(_clean(_relate(run.path, folder)), style="bold")
    return text.append(_clean(f"  {state}{made}{kind}"), style=f"not bold {style}")


def _list_lines(run: RunStatus, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines about a run, each with its style."""
    if run.problem:
        yield run.problem.partition("; ")[0], "red"
    for names, held in _group(run.holds):
        verb, style = ("holds", "red") if held.is_sure else ("may hold", "yellow")
        parts = ", ".join(map(_format_part, held.remnants))
        why = f" ({WHY[held.reason]})" if held.reason in WHY else ""
        yield f"{verb} {_shorten(names)}{': ' if parts else ''}{parts}{why}", style
    for audit in run.audits:
        when = f"audited on {audit.finished[:10]}"
        if audit.problem:
            yield f"{audit.path.name} is damaged", "red"
        elif run.judged_these_weights(audit):
            yield f"{when} about {audit.forgot}: {audit.verdict}", ""
        else:
            yield f"{when}: {audit.verdict}, but of other weights", "yellow"
    for one in run.erased:
        rounds = one.what
        by = f" for {_relate(resolve(run.path / one.run), folder)}" if one.run else ""
        if one.finished is None:
            yield f"erasing {rounds}{by} was interrupted", "red"
        else:
            yield f"erased on {one.finished[:10]}{by}: {rounds}, {format_bytes(one.bytes)}", "dim"
    if run.left:
        yield f"not written by feduhb: {_shorten(run.left)}", "yellow"


def _list_answers(found: Status, base: Path) -> Iterator[tuple[str, str]]:
    """Yield a line, with its style, for each leaver of which something is left, and one for all others."""

    def name(paths: Iterable[Path]) -> str:
        return ", ".join(_relate(path, base) for path in paths)

    for one in found.leavers:
        if one.held_by:
            yield f"Of {one} something is left in {name(one.held_by)}.", "red"
        if one.may_be_held_by:
            yield f"Of {one} something may be left in {name(one.may_be_held_by)}.", "yellow"
    clear = [str(one) for one in found.leavers if not one.held_by and not one.may_be_held_by]
    if clear:
        yield f"Nothing of {_shorten(clear)} is left in these runs.", "green"
    if not found.leavers:
        yield "None of these runs has forgotten anybody.", ""
    if found.unread:
        yield f"Could not be read: {name(found.unread)}.", "yellow"


def _group(holds: Iterable[Held]) -> list[tuple[list[str], Held]]:
    """Return what is left, each with the names of all leavers of which exactly that is left."""
    groups: dict[tuple[object, ...], tuple[list[str], Held]] = {}
    for one in holds:
        groups.setdefault((one.reason, one.remnants), ([], one))[0].append(one.leaver)
    return [*groups.values()]


def _format_part(one: Remnant) -> str:
    if one.part not in {"history", "kept models"}:
        return f"{one.part} {format_bytes(one.bytes)}"
    if not one.rounds:
        return f"{one.part} (a link)"
    if one.part == "kept models":
        return f"{one.rounds} kept model{'s'[: one.rounds != 1]}, {format_bytes(one.bytes)}"
    rounds = "1 round" if one.rounds == 1 else f"{one.rounds} rounds"
    return f"history of {rounds}, {format_bytes(one.bytes)}"


def format_bytes(count: int) -> str:
    """Return a number of bytes in words, such as 2.6 kB."""
    size, unit = float(count), 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.3g} {UNITS[unit]}"


def _shorten(names: Iterable[str]) -> str:
    listed = [*names]
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more


def _relate(path: Path, folder: Path) -> str:
    """Return a path for people: relative to a folder, if it lies there."""
    from feduhb.runs.lineage import shorten

    if path == folder:
        return path.name
    return str(path.relative_to(folder) if path.is_relative_to(folder) else shorten(path))


def _clean(text: str) -> str:
    """Return a text without control characters, which a file's name could send to the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
