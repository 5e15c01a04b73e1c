"""A grid that grows: what is added is run, and nothing else again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb.cli import app
from feduhb.errors import RunFolderError
from feduhb_reproduction import cell as module
from feduhb_reproduction.cell_plan import Job, list_lacking, merge_places
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.grids import Part
from feduhb_reproduction.reproduce import check_progress, reproduce
from feduhb_reproduction.tables import format_markdown
from grid.small import TEXT, facts, one_cell, written

pytestmark = pytest.mark.slow

SMALL = Part(partitions=("iid",), per_client=(40,), momenta=(0.5,))
LARGE = replace(SMALL, momenta=(0.3, 0.5), steps=(0.7, 2.0))
NAME = "iid-40-s0"


def make(folder: Path, part: Part, **how):
    """Make a grid of that part alone."""
    return reproduce(one_cell(folder, parts=(part,)), folder / "paper", engine="pool", show=None, **how)


def cell_of(folder: Path) -> Path:
    return folder / "paper" / "cells" / f"{NAME}.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The large cell, made at once."""
    folder = tmp_path_factory.mktemp("whole")
    make(folder, LARGE)
    return cell_of(folder)


@pytest.fixture
def small(tmp_path, whole) -> Path:
    """A folder with the small cell, as an earlier grid would have made it."""
    cell = Cell.read(whole)
    place = replace(cell.place, momenta=SMALL.momenta, steps=SMALL.steps)
    kept = {
        name: track for name, track in cell.runs.items() if name not in {"momentum-0.3", "step-0.7", "step-2"}
    }
    replace(cell, place=place, runs=kept).write(tmp_path / "paper" / "cells")
    return tmp_path


def test_a_cell_that_grew_is_the_cell_made_at_once(small, whole, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the training is not repeated")

    monkeypatch.setattr(feduhb, "train", refuse, raising=False)
    assert make(small, LARGE, command="later").missing == ()
    assert facts(cell_of(small)) == facts(whole)
    assert list(Cell.read(cell_of(small)).runs) == list(Cell.read(whole).runs)
    assert not (small / "paper" / "work" / NAME).exists()


def test_who_added_what_is_told(small):
    before = Cell.read(cell_of(small)).made
    make(small, LARGE, command="later")
    cell = Cell.read(cell_of(small))
    assert {key: cell.made[key] for key in before} == dict(before)
    (added,) = cell.made["added"]
    assert added["runs"] == ["momentum-0.3", "step-0.7", "step-2"]
    assert {*before} == {*added} - {"runs"}
    assert [origin["command"] for origin in cell.origins] == [before["command"], "later"]
    assert "and `later`" in format_markdown([cell])


def test_a_second_growth_keeps_the_first_in_its_records(small):
    make(small, replace(SMALL, momenta=(0.3, 0.5)))
    make(small, LARGE)
    added = [entry["runs"] for entry in Cell.read(cell_of(small)).made["added"]]
    assert added == [["momentum-0.3"], ["step-0.7", "step-2"]]


def test_what_a_cell_lacks_is_listed_by_run(small):
    found = check_progress(one_cell(small, parts=(LARGE,)), small / "paper")
    assert str(found) == f"0 of 1 cells are done\nmissing: {NAME} (momentum-0.3, step-0.7, step-2)"
    file = written(small, _text(steps=[0.7, 2.0]))
    command = ["reproduce", str(file), "--out", str(small / "paper"), "--missing", "--json"]
    told = json.loads(CliRunner().invoke(app, command).stdout)
    assert told["missing"] == [NAME]
    assert told["partly"] == {NAME: "step-0.7, step-2"}


def test_a_grid_that_shrank_finds_its_cell_done_and_loses_nothing(small, whole):
    make(small, LARGE)
    assert make(small, SMALL).missing == ()
    assert facts(cell_of(small)) == facts(whole)


def test_an_added_run_that_diverges_is_a_result(small):
    make(small, replace(SMALL, steps=(1e30,)))
    cell = Cell.read(cell_of(small))
    assert cell.runs["step-1e+30"].failed is not None
    assert cell.made["added"][0]["engine"]["name"] == "pool"


def test_a_growth_that_was_interrupted_goes_on(small, whole, monkeypatch):
    def interrupted(job, trained, planned, show):
        unlearn(job, trained, dict(list(planned.items())[:1]), show)
        raise KeyboardInterrupt

    unlearn = module._unlearn
    before = cell_of(small).read_text()
    monkeypatch.setattr(module, "_unlearn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(small, LARGE)
    monkeypatch.undo()
    assert cell_of(small).read_text() == before
    assert (small / "paper" / "work" / NAME / "momentum-0.3" / "result.json").exists()
    make(small, LARGE)
    assert facts(cell_of(small)) == facts(whole)


def test_a_cell_made_among_others_is_made_again_alone_where_it_is_to_be_timed(small, whole):
    crowded = Cell.read(cell_of(small))
    replace(crowded, made={**crowded.made, "alone": False}).write(cell_of(small).parent)
    timed = replace(SMALL, timed=True)
    found = check_progress(one_cell(small, parts=(timed,)), small / "paper")
    assert str(found) == f"0 of 1 cells are done\nmissing: {NAME} (its seconds)"
    assert check_progress(one_cell(small, parts=(SMALL,)), small / "paper").missing == ()
    assert make(small, timed).missing == ()
    again = Cell.read(cell_of(small))
    assert again.made["alone"] is True
    assert {name: track.weights for name, track in again.runs.items()} == {
        name: track.weights for name, track in Cell.read(whole).runs.items() if name in crowded.runs
    }


def test_runs_that_were_kept_from_among_others_are_not_taken_for_timed_ones(tmp_path):
    make(tmp_path, replace(SMALL, momenta=()), keep=True)
    crowded = Cell.read(cell_of(tmp_path))
    replace(crowded, made={**crowded.made, "alone": False}).write(cell_of(tmp_path).parent)
    make(tmp_path, replace(SMALL, momenta=(), timed=True))
    again = Cell.read(cell_of(tmp_path))
    assert again.runs["retrain"].weights == crowded.runs["retrain"].weights
    assert again.runs["retrain"].of("client_seconds") != crowded.runs["retrain"].of("client_seconds")


def test_what_an_untimed_try_left_is_cleared_away_by_the_timed_one(tmp_path):
    left = tmp_path / "paper" / "work" / NAME / "original" / "history"
    left.mkdir(parents=True)
    make(tmp_path, replace(SMALL, momenta=(), timed=True))
    assert not left.parents[1].exists()


def test_a_cell_that_is_timed_again_keeps_the_runs_that_its_grid_no_longer_asks_for(small):
    crowded = Cell.read(cell_of(small))
    replace(crowded, made={**crowded.made, "alone": False}).write(cell_of(small).parent)
    make(small, replace(SMALL, momenta=(), timed=True))
    assert set(Cell.read(cell_of(small)).runs) == set(crowded.runs)


def test_other_settings_are_refused_whatever_is_added(small):
    grid = one_cell(small, parts=(LARGE,), lr=0.04)
    with pytest.raises(RunFolderError, match=r"was made with lr = 0.05, not 0.04; choose another --out"):
        check_progress(grid, small / "paper")


def test_a_cell_that_is_not_there_lacks_its_training_too(tmp_path):
    (place,) = one_cell(tmp_path, parts=(LARGE,)).places()
    job = Job(place=place, out=tmp_path)
    assert list_lacking(place, job.file)[:2] == ("original", "retrain")
    assert merge_places(place, replace(place, steps=(1.5,))).steps == (0.7, 1.5, 2.0)


def _text(steps: list[float]) -> str:
    part = TEXT[TEXT.index("[[parts]]") :]
    head = TEXT.removesuffix(part).replace("seeds = [0, 1]", "seeds = [0]")
    return f"{head}[[parts]]\npartitions = ['iid']\nper_client = [40]\nmomenta = [0.5]\nsteps = {steps}\n"
