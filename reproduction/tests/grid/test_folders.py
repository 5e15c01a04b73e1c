"""The folder of a grid: drawn from whatever is there, and refused at once where it is another grid's."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feduhb.cli import app
from feduhb.errors import RunFolderError, StorageError
from feduhb.runs.files import disk_errors
from feduhb_reproduction import reproduce as module
from feduhb_reproduction.cells import Place
from feduhb_reproduction.federations import check_cells
from feduhb_reproduction.grids import Grid, Part
from feduhb_reproduction.reproduce import check_progress, reproduce
from grid.small import written
from paper.cells import cell, place

pytestmark = pytest.mark.slow

PART = Part(partitions=("iid",), per_client=(525,))
GRID = Grid(data="mnist", parts=(PART,), seeds=(0,))  # its cell is that of `place()`
OTHER: dict[str, Any] = {
    "held_out": 0.25,
    "data": "cifar10", "partition": "shards:2", "per_client": 3000, "backdoor": True, "seed": 1, "clients": 10,
    "forget": "c02", "rounds": 10, "epochs": 1, "batch_size": 32, "lr": 0.01, "momentum": 0.8, "scale": 0.5,
    "momenta": (0.3,), "steps": (2.0,), "model": "mlp", "fedrecover": {"warmup": 3}, "timed": True,
    "canaries": True, "public": 40, "relearn": 10, "shadows": 16, "rows": True,
}  # fmt: skip


def typed(*words: str | Path):
    """What a command answers."""
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def refused(*words: str | Path) -> str:
    """The one line of a command that is refused."""
    ended = typed(*words)
    assert ended.exit_code == 2, ended.output
    (line,) = ended.stderr.splitlines()
    return line


@pytest.fixture
def some_fail(monkeypatch):
    """Cells come without training, and those with a backdoor not at all."""

    def make(job, show):  # noqa: ARG001
        if job.place.backdoor:
            raise ZeroDivisionError("one")
        cell(job.place).write(job.file.parent)

    monkeypatch.setattr(module, "make_cell", make)


@pytest.fixture
def no_computing(monkeypatch):
    """Nothing may be fetched or trained."""

    def forbidden(*_, **__):
        raise AssertionError

    monkeypatch.setattr(module, "load_dataset", forbidden)
    monkeypatch.setattr(module, "make_cell", forbidden)


@pytest.mark.usefixtures("some_fail")
def test_a_cell_that_fails_takes_no_table_from_the_others(tmp_path):
    out = tmp_path / "paper"
    ended = typed(written(tmp_path), "--out", out)
    assert ended.exit_code == 2
    assert ended.stderr.splitlines()[-1] == (
        "feduhb: 2 of 6 cells could not be made, the others are done: iid-40-backdoor-s0, iid-40-backdoor-s1: "
        "ZeroDivisionError: one"
    )
    assert "4 of 6 cells are done" in ended.stdout
    assert str(out / "tables.md") in ended.stdout, "what was drawn is named"
    assert "iid, 40 images a client" in (out / "tables.md").read_text()
    assert (out / "curves-40.png").exists()


@pytest.mark.usefixtures("some_fail")
def test_the_cells_that_are_there_are_drawn_though_all_that_were_asked_for_fail(tmp_path):
    out = tmp_path / "paper"
    typed(written(tmp_path), "--out", out, "--only", "iid-40-s")
    (out / "tables.md").unlink()
    ended = typed(written(tmp_path), "--out", out, "--only", "iid-40-backdoor", "--json")
    told = json.loads(ended.stdout)
    assert told["error"]["kind"] == "CellsError"
    assert told["error"]["message"].startswith("2 of 2 cells could not be made: iid-40-backdoor-s0, ")
    assert told["missing"] == ["iid-40-backdoor-s0", "iid-40-backdoor-s1"]
    assert str(out / "tables.md") in told["written"]
    assert (out / "tables.md").exists()


@pytest.mark.usefixtures("some_fail")
def test_where_no_cell_is_there_nothing_is_drawn(tmp_path):
    ended = typed(written(tmp_path), "--out", tmp_path / "paper", "--only", "iid-40-backdoor")
    assert not (tmp_path / "paper" / "tables.md").exists()
    assert ended.stderr.splitlines()[-1].endswith("iid-40-backdoor-s1: ZeroDivisionError: one")


@pytest.mark.usefixtures("some_fail")
def test_a_report_that_fails_too_does_not_hide_the_cells_that_failed(tmp_path, monkeypatch):
    def full(_):
        raise StorageError("the disk is full")

    monkeypatch.setattr("feduhb_reproduction.report.write_paper", full)
    line = typed(written(tmp_path), "--out", tmp_path / "paper").stderr.splitlines()[-1]
    assert line.startswith("feduhb: 2 of 6 cells could not be made, the others are done: ")
    assert line.endswith("; the report on the others failed too: the disk is full")


@pytest.mark.parametrize("more", [["--missing"], []])
@pytest.mark.usefixtures("no_computing")
def test_a_folder_of_another_data_set_is_refused_at_once(tmp_path, more):
    path = cell(place("shards:2", 3000, 3)).write(tmp_path / "cells")
    line = refused("cifar10", "--out", tmp_path, *more)
    assert (
        line
        == f"feduhb: {path} was made with data = 'mnist', not 'cifar10'; choose another --out for this grid"
    )


@pytest.mark.parametrize("name", [field.name for field in fields(Place)])
@pytest.mark.usefixtures("no_computing")
def test_a_folder_is_refused_for_what_its_report_would_be_refused_for(tmp_path, name):
    stranger = cell(place(**{"partition": "dirichlet:0.1", name: OTHER[name]}))
    stranger.write(tmp_path / "cells")
    try:
        check_cells([cell(), stranger])
    except RunFolderError:
        with pytest.raises(
            RunFolderError, match=f"was made with {name}.* choose another --out for this grid"
        ):
            reproduce(GRID, tmp_path, show=None)
    else:
        assert [each.name for each in check_progress(GRID, tmp_path).missing] == ["iid-525-s0"]


@pytest.mark.usefixtures("no_computing")
def test_a_grid_that_grows_keeps_its_folder(tmp_path):
    cell().write(tmp_path / "cells")
    more = (
        Part(partitions=("iid",), per_client=(525,), momenta=(0.5,), steps=(2.0,), timed=True),
        Part(partitions=("shards:2",)),
        Part(partitions=("iid",), per_client=(525, 3000), backdoor=True),
    )
    found = check_progress(Grid(data="mnist", parts=more, seeds=(0, 1)), tmp_path)
    assert dict(found.partly) == {"iid-525-s0": "momentum-0.5, step-2"}
    assert len(found.missing) == 8
    assert check_progress(GRID, tmp_path).missing == ()


@pytest.mark.usefixtures("no_computing")
def test_a_copy_that_its_report_would_be_refused_for_is_told_of_before(tmp_path):
    path = cell().write(tmp_path / "cells")
    path.with_name("iid-525-s0 (1).json").write_bytes(path.read_bytes())
    with pytest.raises(RunFolderError, match=r"\(1\).json holds the cell iid-525-s0; .* delete it"):
        check_progress(GRID, tmp_path)


@pytest.mark.parametrize("more", [["--missing"], []])
@pytest.mark.parametrize(("file", "out"), [("paper", "paper"), ("paper", "paper/mnist"), ("cells", ".")])
@pytest.mark.usefixtures("no_computing")
def test_a_file_is_no_folder(tmp_path, file, out, more):
    (tmp_path / file).write_text("kept")
    line = refused("mnist", "--out", tmp_path / out, *more)
    assert line == f"feduhb: {tmp_path / file} is not a folder; choose another --out"
    assert (tmp_path / file).read_text() == "kept"


def test_seeds_are_shown_by_seeds(tmp_path):
    line = refused(written(tmp_path), "--out", tmp_path, "--seeds", "a")
    assert line == "feduhb: --seeds 'a' is not a list of numbers; write for example --seeds 0,1"


def test_a_full_disk_speaks_of_no_option_that_is_not_there(tmp_path, monkeypatch):
    def full(job, show):  # noqa: ARG001
        with disk_errors(job.file):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "make_cell", full)
    line = refused(written(tmp_path), "--out", tmp_path / "paper", "--only", "iid-40-s0")
    assert line.endswith("free some space and resume: what was finished is kept")
    told = json.loads(typed(written(tmp_path), "--out", tmp_path / "paper", "--json").stdout)
    assert "--resume" not in told["error"]["message"]


@pytest.mark.usefixtures("no_computing")
def test_a_link_to_nothing_is_no_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    line = refused("mnist", "--out", tmp_path / "link", "--missing")
    assert line == f"feduhb: {tmp_path / 'link'} is not a folder; choose another --out"


@pytest.mark.usefixtures("no_computing")
def test_a_folder_that_cannot_be_looked_into_is_said_in_a_line(tmp_path):
    out = tmp_path / ("x" * 300)
    line = refused("mnist", "--out", out, "--missing")
    assert line == f"feduhb: cannot look into {out}: File name too long; choose another --out"
