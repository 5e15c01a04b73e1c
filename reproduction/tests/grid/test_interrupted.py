"""A grid interrupted anywhere goes on when it is started again, and finds the same."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from feduhb_reproduction.cell import Job, make_cell
from grid.small import BACKDOORED, facts, one_cell

pytestmark = pytest.mark.slow
MAKING = Path(__file__).with_name("making.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    (found,) = one_cell(tmp_path_factory.mktemp("grid"), parts=(BACKDOORED,)).places()
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


@pytest.mark.parametrize("share", [0.0, 0.45, 1.0])
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


@pytest.mark.parametrize("moment", [900, 2100])
def test_a_kill_at_any_write_costs_nothing_but_time(commands, whole, tmp_path, moment):
    def make(kill: int) -> int:
        done = commands.run_script(MAKING, tmp_path, kill)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    assert make(moment) == -signal.SIGKILL
    assert make(0) == 0
    assert facts(tmp_path / "cells" / "dirichlet-0.5-40-backdoor-s0.json") == whole[0]
