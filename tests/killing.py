"""Run `feduhb` in children of a fork server, and kill it with SIGKILL at a counted moment, so that a test needs no luck.

A moment is a call or return on the main thread while a plan is executed or a run is retired (kind "any"), or one that
touches the disk (kind "disk"). Loading code and data come before and are not counted, so that kills fall into the rounds. At the
``kill_at``-th moment the process kills itself; with 0 it runs to its end.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from forking import Ended, Forks

DISK = {"write", "fsync", "rename", "replace", "flush", "close", "mkdir", "unlink"}
Kind = Literal["any", "disk"]


@dataclass(frozen=True)
class Counted(Ended):
    """How a command ended, and how many moments it had; 0 if it was killed."""

    moments: int


class Commands(Forks):
    """Runs the command line in children of a process that has imported it and read a data set."""

    def feduhb(
        self,
        *arguments: object,
        kill_at: int = 0,
        kind: Kind = "any",
        largest_file: int = 0,
        cwd: Path | None = None,
    ) -> Counted:
        """Run a command to its end, or to its kill_at-th moment.

        Args:
            largest_file: the size in bytes beyond which the operating system refuses to write, as on a full disk; 0: none.
        """
        with tempfile.TemporaryDirectory() as scratch:
            count = Path(scratch) / "moments"
            ended = self.run("killing:run_feduhb", count, kill_at, kind, largest_file, *arguments, cwd=cwd)
            moments = int(count.read_text()) if count.exists() else 0
        return Counted(ended.returncode, ended.stdout, ended.stderr, moments)


def run_feduhb() -> None:
    """Run one command in this process; sys.argv holds what `Commands.feduhb` was given."""
    import feduhb.cli
    from feduhb.runs import prepare
    from feduhb.runs.retire import Retirement

    count, kill_at, kind, largest_file, *arguments = sys.argv[1:]
    seen = 0

    def count_moment(frame: FrameType, event: str, what: Any) -> None:  # noqa: ARG001
        nonlocal seen
        if kind == "disk" and not (event in ("c_call", "c_return") and what.__name__ in DISK):
            return
        seen += 1
        if seen == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)

    def count_moments_of(function: Callable[..., Any]) -> Callable[..., Any]:
        def run_counted(*args: Any, **kwargs: Any) -> Any:
            sys.setprofile(count_moment)
            try:
                return function(*args, **kwargs)
            finally:
                sys.setprofile(None)

        return run_counted

    prepare.execute = count_moments_of(prepare.execute)
    Retirement.carry_out = count_moments_of(Retirement.carry_out)
    if size := int(largest_file):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    sys.argv = ["feduhb", *arguments]
    try:
        feduhb.cli.main()
    finally:
        Path(count).write_text(str(seen))
