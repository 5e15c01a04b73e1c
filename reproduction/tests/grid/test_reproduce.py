"""A small grid on real images, end to end: made once, gone on with after any interruption, listed where incomplete."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feduhb.cli import app
from feduhb.errors import ConfigError, RunFolderError, StorageError
from feduhb.runs.files import hold_lock
from feduhb_reproduction import reproduce as module
from feduhb_reproduction.cell import ATTACKED, clear_away, make_cell
from feduhb_reproduction.cell_plan import Job
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.grids import Part, read_grid
from feduhb_reproduction.reproduce import check_progress, reproduce
from grid.small import TEXT, attempt_with_few_trees, facts, killed_at_the_first_backdoor, one_cell, written

pytestmark = pytest.mark.slow

METHODS = {"retrain", "federaser", "fedrecover", "fedrecover-corrected", "feduhb", "feduhb-on"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The whole grid, by the command; its folder and what the command answered."""
    folder = tmp_path_factory.mktemp("grid")
    command = [
        "reproduce",
        str(written(folder)),
        "--out",
        str(folder / "paper"),
        "--engine",
        "pool",
        "--json",
    ]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    return folder / "paper", json.loads(ended.stdout)


def test_the_command_makes_every_cell_and_draws_the_paper(made):
    folder, answer = made
    assert len(answer["done"]) == 6
    assert answer["missing"] == []
    assert sorted(p.stem for p in (folder / "cells").iterdir()) == sorted(answer["done"])
    names = {name.rsplit("/", 1)[-1] for name in answer["written"]}
    assert {
        "tables.md",
        "table-1.tex",
        "curves-40.png",
        "forgetting.png",
        "beta.png",
        "lambda-40.png",
    } <= names
    assert "## Table I" in (folder / "tables.md").read_text()


def test_a_cell_holds_every_run_and_who_made_it(made):
    cell = Cell.read(made[0] / "cells" / "dirichlet-0.5-40-s0.json")
    assert set(cell.runs) == METHODS | {"original", "momentum-0.5", "step-2"}
    assert {name: track.exact for name, track in cell.runs.items() if not track.exact} == dict.fromkeys(
        ("federaser", "fedrecover", "fedrecover-corrected"), False
    )
    for track in cell.runs.values():
        assert len(track.of("test_accuracy")) == track.rounds == len(track.of("client_seconds"))
        assert set(track.scores) == {"forgotten", "retained"}
    assert set(cell.misr["boosted trees"]) == set(ATTACKED)
    assert cell.made["command"] == "feduhb reproduce small.toml --engine pool"
    assert cell.made["engine"]["name"] == "pool"
    assert cell.made["alone"] is True
    assert {"commit", "device", "versions", "finished", "seconds"} <= set(cell.made)


def test_the_backdoor_is_measured_where_it_was_planted_and_changes_nothing_for_exact_methods(made):
    planted, clean = (Cell.read(made[0] / "cells" / f"iid-40{word}-s0.json") for word in ("-backdoor", ""))
    assert all(track.of("backdoor") for track in planted.runs.values())
    assert not any(track.of("backdoor") for track in clean.runs.values())
    same = {name for name in clean.runs if clean.runs[name].weights == planted.runs[name].weights}
    assert same == {"retrain", "feduhb", "feduhb-on"}  # whoever remains never saw it


def test_momentum_nought_and_a_step_of_one_are_retrain(made, tmp_path):
    whole = Cell.read(made[0] / "cells" / "iid-40-s0.json")
    whole.write(tmp_path / "cells")
    asked = replace(whole.place, momenta=(0.0,), steps=(1.0,))
    path = make_cell(Job(place=asked, out=tmp_path, engine="pool"))
    assert path is not None
    runs = Cell.read(path).runs
    weights = {runs[name].weights for name in ("momentum-0", "step-1", "retrain")}
    assert weights == {whole.runs["retrain"].weights} != {whole.runs["feduhb-on"].weights}


def test_the_rule_only_watches(made):
    cell = Cell.read(made[0] / "cells" / "iid-40-s0.json")
    ruled, on = cell.runs["feduhb"], cell.runs["feduhb-on"]
    assert ruled.rounds < on.rounds == 6
    assert "fell below 10 x its standard deviation" in ruled.stopped
    assert on.of("moved")[: ruled.rounds] == ruled.of("moved")
    assert on.stopped == "all 6 scheduled rounds were run"


def test_going_on_gives_the_weights_of_a_run_that_never_had_a_rule(made, tmp_path):
    grid = one_cell(tmp_path, scale=1e-9)  # a rule that never fires
    reproduce(grid, tmp_path / "paper", engine="pool", show=None)
    free = Cell.read(tmp_path / "paper" / "cells" / "iid-40-s0.json")
    ended = Cell.read(made[0] / "cells" / "iid-40-s0.json")
    assert free.runs["feduhb"].weights == free.runs["feduhb-on"].weights == ended.runs["feduhb-on"].weights
    assert free.runs["feduhb"].weights != ended.runs["feduhb"].weights


def test_what_is_done_is_never_done_again(made, monkeypatch):
    def forbidden(*_):
        raise AssertionError

    monkeypatch.setattr(module, "make_cell", forbidden)
    grid = read_grid(written(made[0].parent))
    assert reproduce(grid, made[0], engine="pool", show=None).missing == ()


def test_what_is_missing_is_listed_and_nothing_else_is_made(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "paper")
    path = folder / "cells" / "iid-40-s1.json"
    kept = path.read_text()
    path.unlink()
    command = ["reproduce", str(written(tmp_path)), "--out", str(folder), "--missing"]
    ended = CliRunner().invoke(app, command)
    assert ended.stdout.startswith("5 of 6 cells are done\nmissing: iid-40-s1")
    assert not path.exists()
    path.write_text(kept)  # as if made on another machine
    assert check_progress(read_grid(written(tmp_path)), folder).missing == ()


def test_seeds_and_words_choose_cells(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "paper")
    for path in (folder / "cells").iterdir():
        path.unlink()
    grid = read_grid(written(tmp_path))
    found = reproduce(grid, folder, engine="pool", seeds=[1], only=["iid-40-s"], show=None)
    assert [place.name for place in found.done] == ["iid-40-s1"]
    assert facts(folder / "cells" / "iid-40-s1.json") == facts(made[0] / "cells" / "iid-40-s1.json")


def test_several_cells_at_once_find_the_same(made, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(module, "attempt_cell", attempt_with_few_trees)
    grid = read_grid(written(tmp_path))
    only = ["iid-40-s0", "iid-40-backdoor"]
    reproduce(grid, tmp_path / "paper", engine="pool", workers=2, only=only, show=None)
    for name, alone in (("iid-40-s0", True), ("iid-40-backdoor-s0", False), ("iid-40-backdoor-s1", False)):
        path = tmp_path / "paper" / "cells" / f"{name}.json"
        assert Cell.read(path).made["alone"] is alone  # one that is timed has the machine to itself
        assert facts(path) == facts(made[0] / "cells" / f"{name}.json")


def test_cells_of_other_settings_are_refused(made, tmp_path):
    grid = read_grid(written(tmp_path, TEXT.replace("lr = 0.05", "lr = 0.04")))
    with pytest.raises(RunFolderError, match=r"was made with lr = 0.05, not 0.04; choose another --out"):
        reproduce(grid, made[0], engine="pool", show=None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workers": 0}, "workers is 0; give 1 or more"),
        ({"seeds": [7]}, "no seed 7; choose from 0, 1"),
        ({"only": ["idd"]}, "no cell's name begins with 'idd'; names are like iid-40-s0"),
        ({"engine": "steam"}, "no engine 'steam'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_made(tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        reproduce(read_grid(written(tmp_path)), tmp_path / "paper", show=None, **changes)
    assert not (tmp_path / "paper").exists()


def test_a_run_that_diverges_is_a_result(tmp_path):
    part = Part(partitions=("iid",), per_client=(40,), steps=(1e30,))
    (place,) = one_cell(tmp_path, parts=(part,)).places()
    job = Job(place=place, out=tmp_path, engine="pool")
    assert make_cell(job) == job.file
    cell = Cell.read(job.file)
    broken = cell.runs["step-1e+30"]
    assert broken.failed is not None
    assert broken.rounds < 6
    assert cell.runs["retrain"].failed is None
    assert list(cell.runs)[-1] == "step-1e+30"
    assert not (tmp_path / "work" / place.name).exists()


def test_run_folders_are_kept_on_request(tmp_path):
    (place,) = one_cell(tmp_path).places()
    make_cell(Job(place=place, out=tmp_path, engine="pool", keep=True))
    assert {path.name for path in (tmp_path / "work" / place.name).iterdir()} == METHODS | {"original"}


def test_a_cell_that_another_process_is_at_is_left_to_it(tmp_path):
    (place,) = one_cell(tmp_path).places()
    job = Job(place=place, out=tmp_path, engine="pool")
    with hold_lock(job.lock) as mine:
        assert mine
        assert make_cell(job) is None
        clear_away(job)
    assert not job.file.exists()
    assert not job.work.exists()


def test_a_cell_that_was_done_meanwhile_is_not_done_again(made, tmp_path):
    shutil.copytree(made[0] / "cells", tmp_path / "cells")
    (place,) = one_cell(tmp_path).places()
    before = (tmp_path / "cells" / f"{place.name}.json").stat().st_mtime_ns
    assert make_cell(Job(place=place, out=tmp_path, engine="pool")) is None
    assert (tmp_path / "cells" / f"{place.name}.json").stat().st_mtime_ns == before


def test_what_a_kill_left_of_a_finished_cell_is_cleared_away(made, tmp_path):
    folder = shutil.copytree(made[0], tmp_path / "paper")
    left = folder / "work" / "iid-40-s0-timed" / "original" / "history"
    left.mkdir(parents=True)
    reproduce(read_grid(written(tmp_path)), folder, engine="pool", show=None)
    assert not left.exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (StorageError("the disk is full"), "the disk is full"),
        (ZeroDivisionError("one"), "ZeroDivisionError: one"),
    ],
)
def test_one_cell_that_cannot_be_made_does_not_stop_the_others(tmp_path, monkeypatch, error, says):
    tried = []

    def sometimes(job, show):  # noqa: ARG001
        tried.append(job.place.name)
        if job.place.backdoor:
            raise error

    monkeypatch.setattr(module, "make_cell", sometimes)
    with pytest.raises(RunFolderError) as told:
        reproduce(read_grid(written(tmp_path)), tmp_path / "paper", engine="pool", show=None)
    assert len(tried) == 6
    assert str(told.value).startswith(
        f"2 of 6 cells could not be made, the others are done: iid-40-backdoor-s0, iid-40-backdoor-s1: {says}"
    )


def test_a_cell_whose_process_is_killed_does_not_stop_the_others(tmp_path, monkeypatch):
    """Real processes: the one that makes the first cell with a backdoor ends as if the machine had run out of memory."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(module, "attempt_cell", killed_at_the_first_backdoor)
    with pytest.raises(RunFolderError) as told:
        reproduce(read_grid(written(tmp_path)), tmp_path / "paper", engine="pool", workers=2, show=None)
    assert str(told.value).startswith(
        "1 of 6 cells could not be made, the others are done: iid-40-backdoor-s0: a worker process ended early"
    )


@pytest.mark.parametrize("seeds", ["nan", "0.7", "x"])
def test_seeds_that_are_no_numbers(tmp_path, seeds):
    ended = CliRunner().invoke(
        app, ["reproduce", str(written(tmp_path)), "--out", str(tmp_path), "--seeds", seeds]
    )
    assert ended.exit_code == 2
    assert "feduhb: --seeds" in ended.stderr
