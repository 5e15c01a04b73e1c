"""A grid interrupted anywhere goes on when it is started again, and finds the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feduhb_reproduction.cell import Job, make_cell
from feduhb_reproduction.grids import Part
from grid.small import facts, one_cell

PART = Part(partitions=("dirichlet:0.5",), per_client=(40,), backdoor=True, momenta=(0.5,))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    (found,) = one_cell(tmp_path_factory.mktemp("grid"), parts=(PART,)).places()
    return found


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """What the cell finds when nothing stops it, and how many rounds are shown on the way."""
    seen = []

    def step(what, rounds):  # noqa: ARG001
        return lambda record: seen.append((what, record.round))

    job = Job(place=place, out=tmp_path_factory.mktemp("whole"), engine="pool")
    make_cell(job, step)
    return facts(job.file), seen


@pytest.mark.parametrize("share", [0.0, 0.2, 0.45, 0.7, 1.0])
def test_an_interruption_costs_nothing_but_time(place, whole, tmp_path, share):
    expected, rounds = whole
    last = round(share * (len(rounds) - 1))
    count = 0

    def step(what, rounds):  # noqa: ARG001
        def tell(record):  # noqa: ARG001
            nonlocal count
            count += 1
            if count - 1 == last:
                raise KeyboardInterrupt

        return tell

    job = Job(place=place, out=tmp_path, engine="pool")
    with pytest.raises(KeyboardInterrupt):
        make_cell(job, step)
    assert not (tmp_path / "cells").exists()
    again = []
    make_cell(job, lambda what, _: lambda record: again.append((what, record.round)))
    assert facts(job.file) == expected
    finished = {what for what, _ in rounds[: last + 1]} - {rounds[last][0]}
    assert not finished & {what for what, _ in again}  # a run that had ended is not run again


SCRIPT = """
import sys
from pathlib import Path
from grid.small import one_cell
from grid.test_interrupted import PART
from feduhb.audit.attacks import misr
from feduhb_reproduction.cell import Job, make_cell

misr.TREES = {**misr.TREES, "max_iter": 5, "max_bins": 8}
out, kill = Path(sys.argv[1]), int(sys.argv[2])
(place,) = one_cell(out, parts=(PART,)).places()
if kill:
    import os, signal
    seen = 0
    DISK = {"write", "fsync", "rename", "replace", "close", "mkdir", "unlink", "rmdir"}
    def moment(frame, event, what):
        global seen
        if event in ("c_call", "c_return") and what.__name__ in DISK:
            seen += 1
            if seen == kill:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(moment)
make_cell(Job(place=place, out=out, engine="pool"))
"""


@pytest.mark.parametrize("moment", [900, 2100])
def test_a_kill_at_any_write_costs_nothing_but_time(whole, tmp_path, moment):
    def ran(kill: int) -> int:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(kill)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1]
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    assert ran(moment) == -signal.SIGKILL
    assert ran(0) == 0
    assert facts(tmp_path / "cells" / "dirichlet-0.5-40-backdoor-s0.json") == whole[0]
