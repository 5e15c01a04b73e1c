"""Work spread over processes returns completely and in order, or raises an error."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from audit.jobs import die, die_if_odd, double, refuse, use_pipe
from feduhb.errors import DataError, RunFolderError
from feduhb.runs.workers import AHEAD, spread, spread_ready


@pytest.fixture(scope="module", autouse=True)
def forked_workers():
    """Here the processes are real ones."""


@pytest.fixture(autouse=True)
def _importable(monkeypatch, tmp_path):
    """Let the other processes find the jobs, and a torch that is quickly imported: these jobs compute nothing."""
    (tmp_path / "torch.py").write_text("def set_num_threads(count): assert count == 1\n")
    for path in (Path(__file__).parents[1], tmp_path):
        monkeypatch.syspath_prepend(path)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers):
    found = list(spread(double, range(7), workers))
    assert [value for value, _ in found] == [2 * n for n in range(7)]
    who = {process for _, process in found}
    assert who == {os.getpid()} if workers == 1 else os.getpid() not in who
    assert len(who) <= workers  # each process takes one job after another


@pytest.mark.slow
def test_jobs_are_drawn_when_there_is_somebody_for_them():
    drawn = []

    def jobs():
        for number in itertools.count():
            drawn.append(number)
            yield number

    stream = spread(double, jobs(), 2)
    assert next(stream)[0] == 0
    assert len(drawn) <= 2 * AHEAD + 1
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_a_long_job_does_not_keep_the_others_from_beginning(tmp_path):
    """The first job ends only once the fifth has run."""
    os.mkfifo(tmp_path / "pipe")
    done = ["read", "first", "second", "third", "write"]
    found = list(spread(use_pipe, [(str(tmp_path / "pipe"), what) for what in done], 2))
    assert found == ["written", *done[1:]]


def test_what_cannot_travel_is_done_here():
    found = list(spread(lambda number: (number, os.getpid()), range(3), 2))
    assert found == [(n, os.getpid()) for n in range(3)]


@pytest.mark.slow
def test_an_error_keeps_its_kind_and_words():
    with pytest.raises(DataError, match="no 0 here"):
        list(spread(refuse, range(3), 2))


def test_a_job_that_others_cannot_read_is_done_here(monkeypatch):
    known_here = ModuleType("known_here")
    known_here.double = lambda number: double(number)  # pyright: ignore[reportAttributeAccessIssue]
    known_here.double.__module__, known_here.double.__qualname__ = "known_here", "double"
    monkeypatch.setitem(sys.modules, "known_here", known_here)
    assert {process for _, process in spread(known_here.double, range(2), 2)} == {os.getpid()}


def test_nothing_is_imported_from_the_working_directory(monkeypatch, tmp_path):
    place = tmp_path / "received"
    place.mkdir()
    for name in ("queue", "pickle", "feduhb", "sitecustomize"):
        (place / f"{name}.py").write_text(f"open('{name}-ran', 'w')\n")
    monkeypatch.chdir(place)
    assert [value for value, _ in spread(double, range(2), 2)] == [0, 2]
    assert not [*place.glob("*-ran")]


SPREADING = """
import os, signal, sys
from audit.jobs import wait_forever
from feduhb.runs.workers import spread
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    list(spread(wait_forever, sys.argv[1:], 2))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_the_workers_without_a_word(tmp_path):
    pipes = [tmp_path / "first", tmp_path / "second"]
    for pipe in pipes:
        os.mkfifo(pipe)
    paths = os.pathsep.join(map(str, (tmp_path, Path(__file__).parents[1])))
    spreading = subprocess.Popen(
        [sys.executable, "-c", SPREADING, *pipes], stderr=subprocess.PIPE, process_group=0,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    for pipe in pipes:
        assert pipe.read_text() == "at work"  # blocks until a worker has begun this job
    os.killpg(spreading.pid, signal.SIGINT)  # as a terminal does
    _, said = spreading.communicate(timeout=60)  # until the workers have ended too
    assert (spreading.returncode, said) == (130, b"")


@pytest.mark.slow
def test_a_process_that_dies_is_reported():
    with pytest.raises(RunFolderError, match=r"ended early \(exit status -9\); start again"):
        list(spread(die, [os.getpid()] * 2, 2))


@pytest.mark.slow
def test_a_job_whose_process_died_may_be_given_up_while_the_others_go_on():
    found = list(spread(die_if_odd, range(5), 2, lambda job, error: f"{job}: {error}"[:24]))
    assert found == [0, "1: a worker process ende", 2, "3: a worker process ende", 4]


def test_nothing_to_do():
    assert list(spread(double, [], 2)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_ready_depends_on_what_has_ended(workers):
    """5 needs 1 and 2. Who asks for the next job is told which ones run."""
    waiting, ended, seen = [5, 2, 1], [], []

    def find_next(running):
        seen.append(len(running))
        ready = [one for one in waiting if one < 5 or {1, 2} <= {*ended}]
        if not ready:
            return None
        waiting.remove(ready[0])
        return ready[0]

    for job, (value, _) in spread_ready(double, find_next, workers):
        assert value == 2 * job
        ended.append(job)
    assert sorted(ended[:2]) == [1, 2]
    assert ended[2:] == [5]
    assert max(seen) == workers - 1


def test_a_ready_job_whose_process_died_is_not_lost():
    jobs = [1, 2]
    found = spread_ready(
        die_if_odd,
        lambda _: jobs.pop() if jobs else None,
        2,
        lambda job, error: f"{job}: {error}"[:24],
    )
    assert str(dict(found)[1]).startswith("1: a worker process")
