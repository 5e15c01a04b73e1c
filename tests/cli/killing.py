"""Runs `feduhb` and kills it with SIGKILL at a counted moment, so that a test needs no luck.

python killing.py COUNT KIND FILE ARGUMENTS...

A moment is a call or return on the main thread (KIND "any"), or a call that touches the disk (KIND "disk").
At the COUNT-th of them the process kills itself; with COUNT 0 it runs to its end. Either way FILE
receives, on a normal end, the number of moments there were.
"""

import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

DISK = {"write", "fsync", "rename", "replace", "flush", "close", "mkdir", "unlink"}


def main() -> None:
    count, kind, file, *arguments = sys.argv[1:]
    last, seen = int(count), 0

    import feduhb.cli

    importlib.import_module(
        "feduhb.experiment.runner"
    )  # the moments are those of the run, not of torch's import

    def moment(frame: FrameType, event: str, what: Any) -> None:  # noqa: ARG001
        nonlocal seen
        if kind == "disk" and not (event in ("c_call", "c_return") and what.__name__ in DISK):
            return
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.argv = ["feduhb", *arguments]
    sys.setprofile(moment)
    try:
        feduhb.cli.main()
    finally:
        sys.setprofile(None)
        Path(file).write_text(str(seen))


if __name__ == "__main__":
    main()
