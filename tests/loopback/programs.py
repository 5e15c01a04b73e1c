"""Start programs, read their logs, and stop them by their process ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 10.0  # seconds that a program has to end by itself after it was asked to


class FederationError(RuntimeError):
    """A program did not start or ended badly; the message names the log to read."""


class Program:
    """A process in a session of its own: Ctrl-C reaches the process that started it, not the program.

    Args:
        name: how messages call it.
        log: the file that its output is appended to.
        handles: open files that it inherits.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        cwd: Path,
        handles: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.log = log
        self._is_reaped = False
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                cwd=cwd,
                pass_fds=handles,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def read_whole_log(self) -> str:
        """Return the log, including the output of earlier programs of this name."""
        return self.log.read_text(errors="replace")

    def read_log(self) -> str:
        """Return what this program has logged since its start."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def kill(self) -> None:
        """Kill the program and its children at once, as a power cut would."""
        if not self._is_reaped:  # afterwards the process id may belong to another process
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._is_reaped = True

    def terminate(self) -> None:
        """Ask the program to end, and do not wait for it."""
        if self.is_running:
            self.process.terminate()

    def stop(self) -> None:
        """Ask the program to end, and kill it if it does not."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        self.kill()


def exit_on_signals() -> None:
    """Exit this process by SystemExit on Ctrl-C, SIGTERM or a closed terminal, so that `with` blocks are left.

    Signals that the process was started to ignore, as under nohup, stay ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
