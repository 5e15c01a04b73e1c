"""The app with all commands of this package."""

from __future__ import annotations

import typer

from feduhb.cli.audit import audit
from feduhb.cli.compare import compare
from feduhb.cli.demo import demo
from feduhb.cli.export import export
from feduhb.cli.options import CommandGroup, join_lines, print_version
from feduhb.cli.report import report
from feduhb.cli.retire import retire
from feduhb.cli.status import status
from feduhb.cli.table import table
from feduhb.cli.train import train
from feduhb.cli.trust import trust
from feduhb.cli.unlearn import unlearn
from feduhb.cli.verify import verify

app = typer.Typer(
    name="feduhb",
    cls=CommandGroup,
    help="Exact federated unlearning: forget clients, rows or classes by retraining fast with Polyak's heavy ball.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.callback(invoke_without_command=True)(print_version)
for _command in (demo, train, unlearn, compare, audit, report, export, retire, status, verify, trust, table):
    app.command(help=join_lines(_command.__doc__ or ""))(_command)
