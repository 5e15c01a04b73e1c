"""Runs `feduhb` and kills it with SIGKILL at a counted moment, so that a test needs no luck.

python killing.py COUNT KIND FILE ARGUMENTS...

A moment is a call or return on the main thread while the run is carried out (KIND "any"), or one that touches the
disk (KIND "disk"). Loading code and data come before and are not counted, so that kills fall into the rounds.
At the COUNT-th of them the process kills itself; with COUNT 0 it runs to its end. Either way FILE
receives, on a normal end, the number of moments there were.
"""

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
    from feduhb.experiment import plans

    def moment(frame: FrameType, event: str, what: Any) -> None:  # noqa: ARG001
        nonlocal seen
        if kind == "disk" and not (event in ("c_call", "c_return") and what.__name__ in DISK):
            return
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    carry_out = plans.carry_out

    def counted(*args: Any, **kwargs: Any) -> Any:
        sys.setprofile(moment)
        try:
            return carry_out(*args, **kwargs)
        finally:
            sys.setprofile(None)

    plans.carry_out = counted
    sys.argv = ["feduhb", *arguments]
    try:
        feduhb.cli.main()
    finally:
        Path(file).write_text(str(seen))


if __name__ == "__main__":
    main()
