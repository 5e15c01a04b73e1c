"""What the commands share: options, answers in JSON, errors in one line, and how commands of other packages are found."""

from __future__ import annotations

import contextlib
import glob
import inspect
import json as json_format
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperGroup

from feduhb.cli import quit_at_once
from feduhb.core.plugins import find_plugin, list_plugins
from feduhb.errors import ConfigError, FeduhbError

if TYPE_CHECKING:
    from types import FrameType

    from feduhb.runs.plan import Show

CONTINUE = "finished rounds are kept; continue with --resume"
GROUP = "feduhb.commands"
REPRODUCTION = {  # commands of the package feduhb-reproduction, and what they do
    "theorem": "Measure the paper's theorem.",
    "reproduce": "Repeat the paper's experiments.",
    "study": "Compare faster exact methods, and stop rules, on many federations.",
    "benchmark": "Audit every method on the same requests.",
}
INSTALL = "pip install -c constraints.txt ./reproduction"


def list_runs(incomplete: str) -> list[str]:
    """Return the run folders whose path begins with an incomplete word, for shell completion.

    If there are none, the shell completes the names of files and folders.
    """
    parent, slash, start = incomplete.rpartition("/")
    place, first = Path(f"{parent}{slash}" or "."), f"{glob.escape(start)}*"
    files = [file for depth in (first, f"{first}/*") for file in place.glob(f"{depth}/config.toml")]
    names = sorted(str(file.parent.relative_to(place)) for file in files)
    return [f"{parent}{slash}{name}" for name in names if start or not name.startswith(".")]


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", autocompletion=list_runs)
]
Forget = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="Clients (c00,c01), rows of a client (c02:0-9+12) or a class (class:3), separated by commas. "
        "Rows are counted from 0 in the data that the client joined with.",
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of rounds; 40 if not given, whatever the training used. PGA, FedAF, rollback and methods that read a history set their own number."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Folder with the mnist or cifar10 files; if not given, FEDUHB_DATA or a download. For a table that was moved: its file.",
    ),
]
TensorBoard = Annotated[
    Path | None,
    typer.Option(
        "--tensorboard",
        metavar="FOLDER",
        help="Write scores and costs of every round for TensorBoard; needs the extra tensorboard.",
    ),
]
DataFrom = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="A function of yours without arguments that returns the run's feduhb.Federation: package.module:function, or "
        "file.py:function relative to the working directory. For runs made in Python, and for runs whose own code you do not "
        "trust yet: see feduhb trust.",
    ),
]
MethodFrom = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE:CLASS",
        help="The class of the method by which a run was made, if it is your own: package.module:Class, or file.py:Class "
        "relative to the working directory. May be repeated.",
    ),
]
Keep = Annotated[
    str,
    typer.Option(
        help="Which model to keep: last, or best, the one with the best main score on the clients' held-out data."
    ),
]
Record = Annotated[
    str,
    typer.Option(
        metavar="WHAT",
        help="Record held-out (loss and score of the clients' held-out data) or distance (to the fresh model) in every round, "
        "separated by a comma, so that feduhb.replay can try stop rules on them. A rule that needs them records them anyway.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue after a crash; the result is the same, bit for bit.")
]


def print_version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Print the version and exit if the user gave --version."""
    if version:
        from feduhb import __version__

        typer.echo(f"feduhb {__version__}")
        raise typer.Exit


def name_folder(run: Path, word: str) -> Path:
    """Return the folder RUN-WORD beside a run."""
    from feduhb.runs.files import resolve

    place = resolve(run)
    return place.with_name(f"{place.name}-{word}")


def choose_show(json: bool, tensorboard: Path | None) -> Show:
    """Return how a command shows rounds: in lines, or only on a terminal beside JSON; and for TensorBoard if that was asked for."""
    word = "auto" if json else "lines"
    if tensorboard is None:
        return word
    from feduhb.runs.tracking import TensorBoard

    return [word, TensorBoard(tensorboard)]


def parse_settings(given: list[str]) -> dict[str, float]:
    """Parse texts such as NAME=NUMBER; whole numbers become int."""
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


def parse_record(text: str) -> tuple[Any, ...]:
    """Parse what a run records, such as held-out,distance; the run checks the words."""
    return tuple(part.strip().replace("-", "_") for part in text.split(",") if part.strip())


def parse_numbers(option: str, text: str, example: str = "0,0.3,0.9") -> tuple[float, ...]:
    """Parse numbers that are separated by commas."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found:
        raise ConfigError(f"{option} {text!r} is not a list of numbers; write for example {option} {example}")
    return found


def print_run(answer: dict[str, Any], folder: Path | None, json: bool) -> None:
    """Add a finished run to the answer, and print one line about it."""
    from feduhb.runs.folder import RunFolder

    assert folder is not None  # noqa: S101 (these runs always have one)
    result = RunFolder(folder).result()
    answer.update(run=str(folder), **result)
    name = result["method"] if "unlearn" in RunFolder(folder).config() else "train"
    if not json:
        scores = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in result["scores"].items())
        kept = f"; kept: round {result['kept_round']}" if "kept_round" in result else ""
        typer.echo(f"{name}: {result['rounds']} rounds, {scores}; {result['stopped']}{kept}\n{folder}")


def write_pages(answer: dict[str, Any], runs: list[Path], out: Path, json: bool) -> None:
    """Write the report about some runs, and print its table."""
    from rich.console import Console

    from feduhb.report import read_runs, write_report
    from feduhb.report.tables import list_json_rows, make_terminal_tables

    views = read_runs(runs)
    written = write_report(runs, out)
    answer.update(runs=list_json_rows(views), written=[str(path) for path in written])
    if not json:
        Console().print(make_terminal_tables(views))
        typer.echo("\n".join(str(path) for path in written))


@contextlib.contextmanager
def raise_on_interrupt() -> Generator[None]:
    """Make Ctrl-C a KeyboardInterrupt inside the block, so that a command can keep what it has finished.

    Compiled code of a library may swallow it and fail with an error of its own, which then counts as the interrupt.
    """
    if signal.getsignal(signal.SIGINT) is not quit_at_once:
        yield
        return
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if received and not isinstance(error, FeduhbError | OSError | typer.Exit):
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, quit_at_once)


@contextlib.contextmanager
def answering(json: bool, interrupted: str = "start again") -> Generator[dict[str, Any]]:
    """Collect a command's answer and print it if ``json`` is True; print an error as one line and exit with 2.

    Args:
        interrupted: what an interrupted command keeps, and how to continue.
    """
    answer: dict[str, Any] = {}
    try:
        with raise_on_interrupt():
            yield answer
    except (FeduhbError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError):  # a file or folder that is out of reach
            where = f"{error.filename}: " if error.filename else ""
            message = f"{where}{error.strerror or error}; check that file or folder, and start again"
        if json:
            answer["error"] = {"kind": type(error).__name__, "message": message}
            typer.echo(json_format.dumps(answer))
        typer.echo(f"feduhb: {message}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo(f"feduhb: interrupted; {interrupted}", err=True)
        raise typer.Exit(130) from None
    if json:
        typer.echo(json_format.dumps(answer, indent=2 if sys.stdout.isatty() else None))


class CommandGroup(TyperGroup):
    """The built-in commands and those of other packages, which are imported only when they are run or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands: the built-in ones, then those of other packages."""
        return list(dict.fromkeys([*super().list_commands(ctx), *REPRODUCTION, *list_plugins(GROUP)]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by name; None if no package has it."""
        return super().get_command(ctx, cmd_name) or find_command(cmd_name)


def find_command(name: str) -> click.Command | None:
    """Return a command of another package, or one that prints why it cannot be used; None if no package has it."""
    try:
        function = find_plugin(GROUP, name)
        if function is not None:
            return make_command(name, function)
    except ConfigError as error:
        return make_refusal(name, str(error), "Not available: the package that has it cannot be imported.")
    except Exception as error:  # typer refuses a signature in several ways
        return make_refusal(
            name,
            f"{name!r} of {GROUP} is not a command ({error}); repair or uninstall its package",
            "Not available: what its package registers is not a command.",
        )
    if name not in REPRODUCTION:
        return None
    return make_refusal(
        name,
        f"`feduhb {name}` is in the package feduhb-reproduction, which is not installed; in a clone: {INSTALL}",
        f"{REPRODUCTION[name]} Needs the package feduhb-reproduction; in a clone: {INSTALL}",
    )


def make_command(name: str, function: Callable[..., Any], **settings: Any) -> click.Command:
    """Return the command that a function's signature and docstring describe."""
    function = raise_on_interrupt()(function)  # it may not use `answering`
    lone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    panel = "Repeat the paper and compare methods" if name in REPRODUCTION else "Commands of other packages"
    lone.command(
        name, help=join_lines(function.__doc__ or ""), rich_help_panel=panel, context_settings=settings
    )(function)
    return typer.main.get_command(lone)


def make_refusal(name: str, reason: str, help_text: str) -> click.Command:
    """Return a command that prints a reason and exits with status 2, whatever its arguments are."""

    def refuse(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        with answering("--json" in (words or [])):
            raise ConfigError(reason)

    refuse.__doc__ = help_text
    return make_command(name, refuse, ignore_unknown_options=True)


def join_lines(text: str) -> str:
    """Return each paragraph in one line, for the terminal to wrap; one that begins with \\b stays as it is."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split()) for part in parts)
