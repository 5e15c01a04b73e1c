"""The command line: one file per command, and the commands that other packages register as `feduhb.commands`.

Such a package names a function in its entry points, and typer makes a command of its signature. `Data`, `Json`, `answering`
and `parse_numbers` let it take the options and give the answers of the built-in commands.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from feduhb.core.lazy import import_lazily

if TYPE_CHECKING:
    from feduhb.cli.commands import app as app
    from feduhb.cli.options import Data as Data
    from feduhb.cli.options import Json as Json
    from feduhb.cli.options import answering as answering
    from feduhb.cli.options import parse_numbers as parse_numbers

# Threads that wait for each other by spinning take the cores from others; set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__getattr__, __dir__, __all__ = import_lazily(
    __name__, {"commands": ["app"], "options": ["Data", "Json", "answering", "parse_numbers"]}
)


def main() -> None:
    """Run a command; the console script calls this.

    Until a command begins its work, Ctrl-C ends the program at once, in one line. A KeyboardInterrupt would not do: some
    libraries swallow it while they import others, and continue without them.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the caller ignores Ctrl-C
        with contextlib.suppress(ValueError):  # only the main thread may set it
            signal.signal(signal.SIGINT, quit_at_once)
    from feduhb.cli.commands import app

    app()


def quit_at_once(*_: object) -> None:
    """End the program with one line and the status of an interrupted one."""
    os.write(2, b"feduhb: interrupted\n")
    os._exit(130)


__all__ += ["main"]
