"""What the commands share: options, answers in JSON, errors in one line."""

from __future__ import annotations

import contextlib
import json as json_format
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any

import typer

from feduhb.errors import ConfigError, FeduhbError

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)
]
Forget = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        show_default=False,
        help="Clients (c00,c01), rows of a client (c02:0-9+12) or a class (class:3), separated by commas. "
        "Rows are counted from 0 in the data that the client joined with.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where the files of mnist or cifar10 are; else FEDUHB_DATA, else downloaded.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, for a program to read.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on after a crash: the result is the same, bit for bit.")
]


def print_version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Print the version and exit, if asked to."""
    if version:
        from feduhb import __version__

        typer.echo(f"feduhb {__version__}")
        raise typer.Exit


def folder_beside(run: Path, word: str) -> Path:
    """Return a folder beside a run, named after it."""
    place = run.resolve()
    return place.with_name(f"{place.name}-{word}")


def parse_settings(given: list[str]) -> dict[str, float]:
    """Return the settings in texts such as NAME=NUMBER, whole numbers as int."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = int(value) if value.strip().lstrip("-").isdigit() else float(value)
        except ValueError:
            raise ConfigError(
                f"--set {text!r} is not NAME=NUMBER; write for example --set correction=0"
            ) from None
    return found


def parse_numbers(option: str, text: str, example: str = "0,0.3,0.9") -> tuple[float, ...]:
    """Return the numbers in a text, separated by commas."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise ConfigError(f"{option} {text!r} is not a list of numbers; write for example {option} {example}")
    return found


def print_run(answer: dict[str, Any], folder: Path | None, json: bool) -> None:
    """Add a finished run to the answer, and print it in a sentence."""
    from feduhb.runs.folder import RunFolder

    assert folder is not None  # noqa: S101 (these runs always have one)
    result = RunFolder(folder).result()
    answer.update(run=str(folder), **result)
    name = result["method"] if "unlearn" in RunFolder(folder).config() else "train"
    if not json:
        scores = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in result["scores"].items())
        typer.echo(f"{name}: {result['rounds']} rounds, {scores}; {result['stopped']}\n{folder}")


def write_pages(answer: dict[str, Any], runs: list[Path], out: Path, json: bool) -> None:
    """Write the report on some runs, and print its table."""
    from rich.console import Console

    from feduhb.report import read_runs, write_report
    from feduhb.report.tables import as_json, rich_table

    views = read_runs(runs)
    written = write_report(runs, out)
    answer.update(runs=as_json(views), written=[str(path) for path in written])
    if not json:
        Console().print(rich_table(views))
        typer.echo("\n".join(str(path) for path in written))


CONTINUE = "finished rounds are kept, go on with --resume"


@contextlib.contextmanager
def answering(json: bool, interrupted: str = "start again") -> Generator[dict[str, Any]]:
    """Collect a command's answer; print it as JSON if wanted; print an error in one line and exit 2.

    Args:
        interrupted: what is kept of a command that is interrupted, and how to go on.
    """
    answer: dict[str, Any] = {}
    try:
        yield answer
    except FeduhbError as error:
        if json:
            told = {"kind": type(error).__name__, "message": str(error)}
            typer.echo(json_format.dumps({**answer, "error": told}))
        typer.echo(f"feduhb: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo(f"feduhb: interrupted; {interrupted}", err=True)
        raise typer.Exit(130) from None
    if json:
        typer.echo(json_format.dumps(answer, indent=2 if sys.stdout.isatty() else None))
