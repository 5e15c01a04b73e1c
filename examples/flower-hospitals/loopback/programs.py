"""Programs that are started, watched through their logs, and stopped by their process ids."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE = 10.0  # seconds a program has to end by itself once asked


class FederationError(RuntimeError):
    """Something did not come up, or ended badly; the words name the log to read."""


class Program:
    """A process in a session of its own, so that Ctrl-C reaches whoever started it and not the program.

    Args:
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
        self.command = tuple(command)
        self.log = log
        self._ended = False
        self._from = log.stat().st_size if log.exists() else 0
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
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def text(self) -> str:
        """Give the whole log, with what earlier programs of this name wrote into it."""
        return self.log.read_text(errors="replace")

    def said(self) -> str:
        """Give what it has logged since it was started."""
        return self.log.read_bytes()[self._from :].decode(errors="replace")

    def kill(self) -> None:
        """End it and its children as a power cut would: no farewell."""
        if not self._ended:  # its process id may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._ended = True

    def ask_to_end(self) -> None:
        """Let it say its farewells."""
        if self.running:
            self.process.terminate()

    def stop(self) -> None:
        """Ask it to end; end it where it does not."""
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        self.kill()
