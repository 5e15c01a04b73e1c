"""Work spread over processes returns completely and in order, or raises an error."""

import itertools
import os
from pathlib import Path

import pytest

from audit.jobs import die, die_if_odd, double, refuse
from feduhb.errors import DataError, RunFolderError
from feduhb.runs.workers import spread


@pytest.fixture(autouse=True)
def _importable(monkeypatch, tmp_path):
    """Let the other processes find the jobs, and a torch that is quickly imported: these jobs compute nothing."""
    (tmp_path / "torch.py").write_text("def set_num_threads(count): assert count == 1\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])]))


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
    assert len(drawn) <= 4
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_what_cannot_travel_is_done_here():
    found = list(spread(lambda number: (number, os.getpid()), range(3), 2))
    assert found == [(n, os.getpid()) for n in range(3)]


@pytest.mark.slow
def test_an_error_keeps_its_kind_and_words():
    with pytest.raises(DataError, match="no 0 here"):
        list(spread(refuse, range(3), 2))


def test_a_job_that_others_cannot_read_is_done_here(monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    assert {process for _, process in spread(double, range(2), 2)} == {os.getpid()}


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
