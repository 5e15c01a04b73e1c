"""A small study on real images: made in pieces, continued, never made twice."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feduhb import Retrain
from feduhb.cli import app
from feduhb.errors import ConfigError, RunFolderError
from feduhb_reproduction.cell_plan import Planned, Recorded
from feduhb_reproduction.cells import Cell, cell_file
from feduhb_reproduction.reproduce import CellsError
from feduhb_reproduction.study import make as module
from feduhb_reproduction.study.choose import FILE
from feduhb_reproduction.study.cost import estimate_minutes
from feduhb_reproduction.study.criteria import read_results
from feduhb_reproduction.study.design import Candidates, Part, find_study, read_study
from feduhb_reproduction.study.make import check_study, estimate_study, run_study
from feduhb_reproduction.study.page import render_study
from study.series import LONG, ROUNDS, study

SMALL = Part(data="digits", partitions=("iid",), per_client=(40,))
CLOCKS = ("client_seconds", "server_seconds", "evaluate_seconds")


def small(**changes):
    return study(federations=(SMALL,), tune=(1,), report=(3,), **changes)


def read(out, seed: int) -> Cell:
    return Cell.read(out / "digits" / "cells" / f"iid-40-s{seed}.json")


def facts(cell: Cell):
    kept = {
        name: {key: values for key, values in run.series.items() if key not in CLOCKS}
        for name, run in cell.runs.items()
    }
    return {name: (run.weights, run.sums, kept[name]) for name, run in cell.runs.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    return out, run_study(
        small(), out, engine="pool", workers=2, show=None
    )  # what jobs hold travels to another process


@pytest.mark.slow
def test_one_call_tunes_chooses_and_reports(made):
    out, found = made
    assert not found.missing
    assert found.choice is not None
    assert found.choice.rule is not None
    tuned, reported = read(out, 1), read(out, 3)
    assert set(tuned.runs) == {"retrain", "feduhb", "nesterov-momentum-0.5", "nesterov-momentum-0.9"}
    assert set(reported.runs) == {*found.choice.families.values(), "federaser", "fedrecover"}
    for cell in (tuned, reported):
        rounds = {name: run.rounds for name, run in cell.runs.items()}
        assert rounds[found.choice.fast.run] == LONG
        assert rounds["retrain"] == (LONG if found.choice.fast.run == "retrain" else ROUNDS)
        series = cell.runs[found.choice.fast.run].series
        assert {"distance", "held_out_loss", "held_out_accuracy"} <= set(series)
        assert len(series["held_out_accuracy"]) == LONG
        assert cell.place.held_out == 0.25
        assert not any(run.scores for run in cell.runs.values()), "nothing reads them, and scoring takes time"
    assert reported.runs["feduhb"].rounds == LONG
    assert not [path for path in (out / "digits" / "work").iterdir() if path.is_dir()]


@pytest.mark.slow
def test_a_half_done_study_continues_to_the_same_numbers(made, tmp_path, monkeypatch):
    """Two runs, then the time is over; then a run fails; then the rest. What was there is not run again."""
    plan, served, serve = small(), [], module.serve_request

    def remember(job, trained, name, *rest):
        served.append((job.place.seed, name))
        if len(served) == 4:
            raise OSError("no space left")
        return serve(job, trained, name, *rest)

    monkeypatch.setattr(module, "serve_request", remember)
    monkeypatch.setattr(module, "time", _Clock(lambda: 0.0 if len(served) < 2 else math.inf))
    halted = run_study(plan, tmp_path, engine="pool", minutes=1, show=None)
    assert served == [(1, "retrain"), (1, "feduhb")]
    assert set(read(tmp_path, 1).runs) == {"retrain", "feduhb"}
    assert halted.done == 2
    assert not (tmp_path / FILE).exists()
    page = "\n".join(render_study(read_results(plan, tmp_path), {}))
    assert "2 tuning runs are there" in page
    assert "| FedUHB | 1 | " in page
    monkeypatch.setattr(module, "time", time)
    with pytest.raises(
        CellsError, match="1 of 2 cells could not be made: digits/iid-40-s1: OSError: no space left"
    ):
        run_study(plan, tmp_path, engine="pool", show=None)
    assert set(read(tmp_path, 1).runs) == {"retrain", "feduhb", "nesterov-momentum-0.5"}
    run_study(plan, tmp_path, engine="pool", show=None)
    assert served.count((1, "retrain")) == served.count((1, "feduhb")) == 1
    whole = made[0]
    assert json.loads((tmp_path / FILE).read_text()) == json.loads((whole / FILE).read_text())
    for seed in (1, 3):
        assert facts(read(tmp_path, seed)) == facts(read(whole, seed))


class _Clock:
    """A clock that a test sets."""

    def __init__(self, time_of_day):
        self.time = time_of_day
        self.perf_counter = time.perf_counter


@pytest.mark.slow
def test_what_is_there_is_never_run_again(made, monkeypatch):
    monkeypatch.setattr(module, "serve_request", None)
    assert not run_study(small(), made[0], engine="pool", show=None).missing


def test_a_free_worker_begins_what_can_begin(tmp_path, monkeypatch):
    """Of six workers two replay histories, four tune, and none waits: the others run what is reported whatever is chosen."""
    begun = []

    def begin_all(function, find_next, workers, lost):  # noqa: ARG001
        while (task := find_next(begun)) is not None:
            begun.append(task)
        return iter(())

    monkeypatch.setattr(module, "spread_ready", begin_all)
    run_study(study(), tmp_path, engine="pool", workers=6, show=None)
    cells = [(task.job.place.seed, task.is_replay, {*task.plan}) for task in begun]
    assert cells[:2] == 2 * [(3, True, {"federaser", "fedrecover"})]
    assert [seed for seed, _, _ in cells[2:6]] == [1, 1, 2, 2]
    assert cells[6:] == 2 * [(4, False, {"retrain"})]
    assert len({task.cell for task in begun}) == 8, "no cell is made twice at a time"


@pytest.mark.parametrize("minutes", [-1.0, 0.0, math.nan])
def test_minutes_that_are_not_positive_are_refused(tmp_path, minutes):
    with pytest.raises(ConfigError, match=r"minutes is .*; give a positive number"):
        run_study(small(), tmp_path, engine="pool", minutes=minutes, show=None)


def test_seeds_and_words_choose_cells(tmp_path):
    plan = study()
    every = check_study(plan, tmp_path)
    assert (every.done, len(every.missing), every.later) == (0, 8, 4)
    few = check_study(plan, tmp_path, seeds=[1], only=["digits/iid"])
    assert [place.name for place, _ in few.missing] == ["iid-40-s1"]
    with pytest.raises(ConfigError, match="the study has no seed 9; choose from 1, 2, 3, 4"):
        check_study(plan, tmp_path, seeds=[9])
    with pytest.raises(
        ConfigError, match="no cell's name begins with 'mnist'; names are like digits/iid-40-s1"
    ):
        check_study(plan, tmp_path, only=["mnist"])


@pytest.mark.slow
def test_cells_of_another_study_are_refused(made):
    with pytest.raises(RunFolderError, match="was made with lr"):
        check_study(small(lr=0.1, candidates=(Candidates(family="Retrain", method="retrain"), Candidates(family="FedUHB", method="feduhb"), small().candidates[2])), made[0])  # fmt: skip


def test_the_estimate_is_about_what_cells_of_the_study_took():
    """The first runs of MNIST's cells, which were made on a GPU one after the other."""
    study, results = read_study(find_study("study")), Path(__file__).parents[3] / "results" / "study"
    places = [place for place in study.places((1,)) if place.data == "mnist"]
    cells = [Cell.read(path) for place in places if (path := cell_file(results / "mnist", place)).exists()]
    alone = [cell for cell in cells if cell.made["alone"]]
    assert alone
    for cell in alone:
        record: dict[bool, tuple[Recorded, ...]] = {True: ("held_out",), False: ()}
        plan = {
            name: Planned(Retrain(), rounds=run.rounds, record=record[bool(run.of("held_out_loss"))])
            for name, run in cell.runs.items()
            if not any(name in later["runs"] for later in cell.origins[1:])
        }
        assert estimate_minutes([(cell.place, plan)]) == pytest.approx(cell.made["seconds"] / 60, rel=0.25)


def test_a_round_that_was_not_measured_has_no_estimate(tmp_path):
    whole, quick = (read_study(find_study(name)) for name in ("study", "study-quick"))
    assert {one.whole for one in estimate_study(quick, tmp_path)} == {None}
    assert 80 < sum(one.whole or 0 for one in estimate_study(whole, tmp_path)) < 95


def test_the_command_estimates_before_anything_runs(tmp_path):
    ended = CliRunner().invoke(app, ["study", "--dry-run", "--out", str(tmp_path / "there")])
    assert ended.exit_code == 0, ended.output
    assert "0 of 972 runs are done" in ended.stdout
    assert "604 runs wait until candidates have been compared" in ended.stdout
    assert "minutes for the runs that can begin now" in ended.stdout
    assert "missing in all, in this order: tuning 252 runs, " in ended.stdout
    assert not (tmp_path / "there").exists()
