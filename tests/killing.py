"""Runs `feduhb` and kills it with SIGKILL at a counted moment, so that a test needs no luck.

A moment is a call or return on the main thread while the plan is executed (kind "any"), or one that touches the disk
(kind "disk"). Loading code and data come before and are not counted, so that kills fall into the rounds. At the
``kill_at``-th of them the process kills itself; with 0 it runs to its end.

Commands run in children that are forked off one process, which has loaded torch and does nothing else: a child begins at
once, and is a process of its own that really dies.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

DISK = {"write", "fsync", "rename", "replace", "flush", "close", "mkdir", "unlink"}
Kind = Literal["any", "disk"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    returncode: int  # negative: the signal that killed it
    stdout: str
    stderr: str
    moments: int  # that it had, if it was not killed


class Killer:
    """Starts commands, and kills them."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def feduhb(self, *arguments: object, kill_at: int = 0, kind: Kind = "any") -> Ended:
        """Run a command to its end, or to its kill_at-th moment."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        job = {"arguments": list(map(str, arguments)), "kill_at": kill_at, "kind": kind}
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        return Ended(**json.loads(self._server.stdout.readline()))


@contextmanager
def started(path: str | None = None) -> Generator[Killer]:
    """Start the process that commands are forked off; it ends with the block. ``path`` comes first on its PYTHONPATH."""
    paths = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, __file__]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            yield Killer(server)
        finally:
            server.kill()


def serve() -> None:
    """Fork a child for each job that comes in, and answer how it ended."""
    for module in ("feduhb.api", "feduhb.cli", "feduhb.data.load"):
        importlib.import_module(module)  # once, for all children
    for line in sys.stdin:
        job = json.loads(line)
        with tempfile.TemporaryDirectory() as scratch:
            child = os.fork()
            if child == 0:
                _run(Path(scratch), **job)
            _, status = os.waitpid(child, 0)
            count = Path(scratch) / "moments"
            moments = int(count.read_text()) if count.exists() else 0
            told = {name: (Path(scratch) / name).read_text() for name in ("stdout", "stderr")}
        answer = {"returncode": os.waitstatus_to_exitcode(status), "moments": moments, **told}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _run(scratch: Path, arguments: list[str], kill_at: int, kind: Kind) -> None:
    """Run one command in this process, and end it."""
    import feduhb.cli
    from feduhb import api

    seen = 0

    def moment(frame: FrameType, event: str, what: Any) -> None:  # noqa: ARG001
        nonlocal seen
        if kind == "disk" and not (event in ("c_call", "c_return") and what.__name__ in DISK):
            return
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    execute = api.execute

    def counted(*args: Any, **kwargs: Any) -> Any:
        sys.setprofile(moment)
        try:
            return execute(*args, **kwargs)
        finally:
            sys.setprofile(None)

    api.execute = counted
    code = 1
    with (scratch / "stdout").open("w") as out, (scratch / "stderr").open("w") as told:
        os.dup2(out.fileno(), 1)
        os.dup2(told.fileno(), 2)
        try:
            feduhb.cli.app(arguments, standalone_mode=True)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        finally:
            (scratch / "moments").write_text(str(seen))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


if __name__ == "__main__":
    serve()
