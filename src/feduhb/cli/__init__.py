"""The command line: `feduhb demo | train | unlearn | compare | audit | report | theorem | reproduce`."""

from __future__ import annotations

import inspect
import os
from typing import Annotated

import typer

from feduhb.cli import checks, paper, runs

# Threads that wait for each other by spinning take the cores from whoever could work; set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

app = typer.Typer(
    name="feduhb",
    help="Exact federated unlearning: forget clients, rows or classes by retraining fast with Polyak's heavy ball.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)


def main() -> None:
    """Run the command line."""
    app()


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        from feduhb import __version__

        typer.echo(f"feduhb {__version__}")
        raise typer.Exit


def unfolded(text: str) -> str:
    """Give each paragraph in one line, for the terminal to break where it is full; one that begins with \\b stays as it is."""
    parts = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split()) for part in parts)


for command in (
    runs.demo,
    runs.train,
    runs.unlearn,
    runs.compare,
    checks.audit,
    checks.report,
    checks.theorem,
    paper.reproduce,
):
    app.command(help=unfolded(command.__doc__ or ""))(command)
