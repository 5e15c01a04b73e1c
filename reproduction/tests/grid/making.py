"""Make a cell in a process of its own, and kill the process with SIGKILL at a counted call that touches the disk.

python making.py FOLDER MOMENT

With MOMENT 0 the process runs to its end.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from feduhb.audit.attacks import misr
from feduhb_reproduction.cell import Job, make_cell
from grid.small import BACKDOORED, FEW_TREES, one_cell

DISK = {"write", "fsync", "rename", "replace", "close", "mkdir", "unlink", "rmdir"}


def main() -> None:
    out, kill_at = Path(sys.argv[1]), int(sys.argv[2])
    seen = 0

    def count_moment(frame: FrameType, event: str, what: Any) -> None:  # noqa: ARG001
        nonlocal seen
        if event in ("c_call", "c_return") and what.__name__ in DISK:
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    misr.TREES = {**misr.TREES, **FEW_TREES}
    (place,) = one_cell(out, parts=(BACKDOORED,)).places()
    if kill_at:
        sys.setprofile(count_moment)
    make_cell(Job(place=place, out=out, engine="pool"))


if __name__ == "__main__":
    main()
