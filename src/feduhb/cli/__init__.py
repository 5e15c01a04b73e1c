"""The command line: one file per command, and the commands that other packages register as `feduhb.commands`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from feduhb.cli.audit import audit
from feduhb.cli.compare import compare
from feduhb.cli.demo import demo
from feduhb.cli.options import print_version
from feduhb.cli.report import report
from feduhb.cli.train import train
from feduhb.cli.unlearn import unlearn
from feduhb.core.plugins import find_plugin, list_plugins
from feduhb.errors import ConfigError

# Threads that wait for each other by spinning take the cores from others; set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

GROUP = "feduhb.commands"
ELSEWHERE = {
    "theorem": "Measure the paper's theorem.",
    "reproduce": "Make the paper's tables and figures again.",
}  # commands of the package feduhb-reproduction
INSTALL = "pip install -c constraints.txt ./reproduction"

app = typer.Typer(
    name="feduhb",
    help="Exact federated unlearning: forget clients, rows or classes by retraining fast with Polyak's heavy ball.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)
main = app  # what the console script calls


def join_lines(text: str) -> str:
    """Return each paragraph in one line, for the terminal to wrap; one that begins with \\b stays as it is."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split()) for part in parts)


def find_command(name: str) -> Callable[..., Any] | None:
    """Return the command that another package registered, or one that prints why it cannot be used."""
    try:
        return find_plugin(GROUP, name)
    except ConfigError as error:
        return make_refusal(f"{error}", "Not available: the package that has it cannot be imported.")


def make_refusal(reason: str, help_text: str) -> Callable[..., Any]:
    """Return a command that prints a reason and exits with status 2, whatever its arguments are."""

    def refuse(_words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        typer.echo(f"feduhb: {reason}", err=True)
        raise typer.Exit(2)

    refuse.__doc__ = help_text
    return refuse


def add_commands(target: typer.Typer) -> None:
    """Add the built-in commands, then those of other packages."""
    built_in = {command.__name__: command for command in (demo, train, unlearn, compare, audit, report)}
    missing = {
        name: make_refusal(
            f"`feduhb {name}` is in the package feduhb-reproduction, which is not installed; in a clone: {INSTALL}",
            f"{what} Needs the package feduhb-reproduction; in a clone: {INSTALL}",
        )
        for name, what in ELSEWHERE.items()
    }
    others = {name: find_command(name) for name in list_plugins(GROUP) if name not in built_in}
    for name, command in {**built_in, **missing, **others}.items():
        if command is not None:
            loose = {"ignore_unknown_options": True} if command.__name__ == "refuse" else None
            target.command(name, help=join_lines(command.__doc__ or ""), context_settings=loose)(command)


app.callback(invoke_without_command=True)(print_version)
add_commands(app)
