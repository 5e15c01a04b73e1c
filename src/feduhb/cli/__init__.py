"""The command line: one file per command, and the commands that other packages register as `feduhb.commands`.

Such a package names a function in its entry points, and typer makes a command of its signature. `Data`, `Json`, `answering`
and `parse_numbers` let it take the options and give the answers of the built-in commands.
"""

from __future__ import annotations

import os

import typer

from feduhb.cli.audit import audit
from feduhb.cli.compare import compare
from feduhb.cli.demo import demo
from feduhb.cli.options import CommandGroup, Data, Json, answering, join_lines, parse_numbers, print_version
from feduhb.cli.report import report
from feduhb.cli.retire import retire
from feduhb.cli.status import status
from feduhb.cli.train import train
from feduhb.cli.unlearn import unlearn
from feduhb.cli.verify import verify

# Threads that wait for each other by spinning take the cores from others; set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

app = typer.Typer(
    name="feduhb",
    cls=CommandGroup,
    help="Exact federated unlearning: forget clients, rows or classes by retraining fast with Polyak's heavy ball.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)
app.callback(invoke_without_command=True)(print_version)
for _command in (demo, train, unlearn, compare, audit, report, retire, status, verify):
    app.command(help=join_lines(_command.__doc__ or ""))(_command)
main = app  # what the console script calls

__all__ = ["Data", "Json", "answering", "app", "main", "parse_numbers"]
