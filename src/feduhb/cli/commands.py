"""The app with all commands of this package."""

from __future__ import annotations

import typer

from feduhb.cli.audit import audit
from feduhb.cli.compare import compare
from feduhb.cli.demo import demo
from feduhb.cli.export import export
from feduhb.cli.forecast import forecast
from feduhb.cli.options import CommandGroup, join_lines, print_version
from feduhb.cli.report import report
from feduhb.cli.retire import retire
from feduhb.cli.status import status
from feduhb.cli.table import table
from feduhb.cli.train import train
from feduhb.cli.trust import trust
from feduhb.cli.unlearn import unlearn
from feduhb.cli.verify import verify

HELP = """Exact federated unlearning: forget clients, rows or classes by retraining fast with Polyak's heavy ball.

    Begin with feduhb demo. A request to be forgotten, from the training to the end:

    \b
      feduhb train federation.toml --out runs/first
      feduhb unlearn runs/first --forget c00
      feduhb audit runs/first-feduhb --original runs/first
      feduhb retire runs/first

    feduhb COMMAND --help explains a command and shows an example."""
PANELS = {
    "Train and unlearn": (demo, train, unlearn, compare),
    "Check and report": (audit, report, verify, export),
    "Serve requests": (status, forecast, retire),
    "Use your own data and code": (table, trust),
}

app = typer.Typer(
    name="feduhb",
    cls=CommandGroup,
    help=join_lines(HELP),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.callback(invoke_without_command=True)(print_version)
for _panel, _commands in PANELS.items():
    for _command in _commands:
        app.command(help=join_lines(_command.__doc__ or ""), rich_help_panel=_panel)(_command)
