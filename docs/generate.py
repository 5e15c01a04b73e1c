"""Writes docs/cli.md from the command line's own help, and docs/api.md, so that they cannot drift from the code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")


def command_line() -> str:
    """Return the help of every command, as a terminal shows it, on one page."""
    import click
    from typer.main import get_command

    from feduhb.cli import app

    group = get_command(app)
    commands = group.list_commands(click.Context(group)) if isinstance(group, click.Group) else []
    pages = [
        "# The command line",
        _help("feduhb"),
        *(f"## feduhb {name}\n\n{_help('feduhb', name)}" for name in commands),
    ]
    return "\n\n".join(pages) + "\n"


def _help(*command: str) -> str:
    plain = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "TERM": "dumb", "NO_COLOR": "1"}
    arguments = [sys.executable, "-m", "feduhb", *command[1:], "--help"]
    shown = subprocess.run(arguments, env=plain, check=True, capture_output=True, text=True).stdout
    lines = [line.rstrip() for line in shown.strip("\n").replace("python -m feduhb", "feduhb").splitlines()]
    return "```text\n" + "\n".join(lines).strip("\n") + "\n```"


if __name__ == "__main__":
    import generate_api

    PAGE.write_text(command_line())
    generate_api.PAGE.write_text(generate_api.write_reference())
