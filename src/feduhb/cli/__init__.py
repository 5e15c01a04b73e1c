"""The command line: `feduhb demo | train | unlearn | compare | audit | report | theorem | reproduce`, one file each."""

from __future__ import annotations

import inspect
import os

import typer

from feduhb.cli.audit import audit
from feduhb.cli.compare import compare
from feduhb.cli.demo import demo
from feduhb.cli.options import print_version
from feduhb.cli.report import report
from feduhb.cli.reproduce import reproduce
from feduhb.cli.theorem import theorem
from feduhb.cli.train import train
from feduhb.cli.unlearn import unlearn

# Threads that wait for each other by spinning take the cores from others; set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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


app.callback(invoke_without_command=True)(print_version)
for command in (demo, train, unlearn, compare, audit, report, theorem, reproduce):
    app.command(help=join_lines(command.__doc__ or ""))(command)
