"""Ctrl-C: it ends the program at once while modules are imported, and is a KeyboardInterrupt while a command works."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator
from typing import Any


def quit_on_interrupt() -> None:
    """Make Ctrl-C end the program in one line, with status 130, until a command begins its work.

    A KeyboardInterrupt would not do: some libraries swallow it while they import others, and continue without them.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the caller ignores Ctrl-C
        with contextlib.suppress(ValueError):  # only the main thread may set it
            signal.signal(signal.SIGINT, _quit)


@contextlib.contextmanager
def raise_on_interrupt() -> Generator[None]:
    """Make Ctrl-C a KeyboardInterrupt inside the block, so that a command can keep what it has finished."""
    if signal.getsignal(signal.SIGINT) is not _quit:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _quit)


def _quit(*_: Any) -> None:
    os.write(2, b"feduhb: interrupted\n")
    os._exit(130)
