"""A request made of a run whose place another has taken does not bring back whom that one has forgotten."""

from __future__ import annotations

import shutil

import pytest
from typer.testing import CliRunner

import feduhb
from federations import ragged
from feduhb.cli import app
from feduhb.data.request import Request
from feduhb.errors import RequestError, RunFolderError
from feduhb.runs.lineage import LINEAGE, check_revival, read_successors


def revived(run, asked):
    """Return the warning for a request that would bring a forgotten client back."""
    total, told = asked if run.forgot is None else run.forgot.merge(asked), []
    check_revival(run.folder, total, allow=True, warn=told.append)
    return told[0] if told else None


HOW = {"epochs": 1, "batch_size": 8, "show": None}
CONFIG = """
[federation]
data = "digits"
clients = 5
model = "softmax"
[train]
rounds = 1
epochs = 1
"""


@pytest.fixture
def runs(tmp_path):
    """A training, and the run that forgot one of its clients."""
    first = feduhb.train(ragged(), 1, out=tmp_path / "first", **HOW)
    second = feduhb.unlearn(first, ["elk"], rounds=1, out=tmp_path / "second", show=None)
    return feduhb.open_run(tmp_path / "first", ragged()), second


def test_who_would_come_back_is_named_with_the_run_to_take(runs):
    first, second = runs
    told = revived(first, Request.parse("cat"))
    assert told is not None
    assert f"{second.folder} came from {first.folder} and has forgotten elk" in told
    assert f"would bring elk back: unlearn {second.folder} instead, or forget cat,elk" in told


@pytest.mark.parametrize("asked", ["elk", "elk,cat"])
def test_the_same_request_once_more_and_a_larger_one_bring_nobody_back(runs, asked):
    assert revived(runs[0], Request.parse(asked)) is None


def test_the_run_that_came_out_takes_the_next_request(runs):
    assert revived(runs[1], Request.parse("cat")) is None
    third = feduhb.unlearn(runs[1], ["cat"], rounds=1, show=None)
    assert str(third.forgot) == "cat,elk"


def test_in_python_it_is_refused_too_unless_it_is_asked_for(runs, tmp_path, capsys):
    first = runs[0]
    with pytest.raises(
        RequestError, match=r"would bring elk back: .*To serve the request all the same: --allow-revival"
    ):
        feduhb.unlearn(first, ["cat"], rounds=1, out=tmp_path / "third", show=None)
    assert not (tmp_path / "third").exists()
    third = feduhb.unlearn(first, ["cat"], rounds=1, allow_revival=True, show=None)
    assert "elk" in third.federation.clients
    assert "would bring elk back" in capsys.readouterr().err


def test_a_client_that_is_not_there_is_said_first(runs):
    """Otherwise the advice would be to name it too."""
    with pytest.raises(
        RequestError, match=r"^there is no client 'cta'; did you mean cat\? The clients are ant, bee, cat"
    ):
        feduhb.unlearn(runs[0], ["cta"], rounds=1, show=None)
    with pytest.raises(
        RequestError, match=r"^this run has already forgotten elk; leave it out of the request$"
    ):
        feduhb.unlearn(runs[1], ["cat", "elk"], rounds=1, show=None)


def test_a_comparison_takes_nobodys_place(tmp_path, capsys):
    first = feduhb.train(ragged(), 1, out=tmp_path / "first", **HOW)
    feduhb.compare(first, ["elk"], ["retrain"], rounds=1, out=tmp_path / "compared", show=None)
    feduhb.unlearn(first, ["cat"], rounds=1, show=None)
    assert "bring" not in capsys.readouterr().err
    assert not read_successors(tmp_path / "first")


def test_a_later_run_that_was_deleted_counts_no_more(runs):
    shutil.rmtree(runs[1].folder)
    assert revived(runs[0], Request.parse("cat")) is None


@pytest.mark.parametrize("damage", ["", "{", "3", "null", "missing"])
def test_a_damaged_or_missing_lineage_does_not_switch_the_guard_off(runs, damage):
    path = runs[0].folder / LINEAGE
    path.unlink() if damage == "missing" else path.write_text(damage)
    with pytest.raises(RunFolderError, match=r"lineage.json is (damaged|missing); restore it from a backup"):
        feduhb.unlearn(runs[0], ["cat"], rounds=1, show=None)


def test_a_run_that_cannot_be_marked_is_named(runs, tmp_path, capsys):
    """As in a read-only folder, which root would not notice."""
    (runs[1].folder / ".lineage.lock").mkdir()
    feduhb.unlearn(runs[1], ["cat"], rounds=1, out=tmp_path / "third", show=None)
    told = capsys.readouterr().err
    assert f"{runs[1].folder} could not be marked as superseded by {tmp_path / 'third'}" in told
    assert read_successors(runs[0].folder) == [runs[1].folder, tmp_path / "third"]


def test_of_two_requests_at_the_same_moment_one_is_served(runs, tmp_path, monkeypatch):
    """The second is checked before the first is recorded, and again when it is to be recorded itself."""
    monkeypatch.setattr("feduhb.api.check_revival", lambda *_, **__: None)
    with pytest.raises(RequestError, match="would bring elk back"):
        feduhb.unlearn(runs[0], ["cat"], rounds=1, out=tmp_path / "third", show=None)
    assert read_successors(runs[0].folder) == [runs[1].folder]
    assert not (tmp_path / "third" / "config.toml").exists()


def test_all_later_runs_are_known_not_only_the_next(runs, tmp_path):
    feduhb.unlearn(runs[1], ["cat"], rounds=1, out=tmp_path / "third", show=None)
    told = revived(feduhb.open_run(tmp_path / "first", ragged()), Request.parse("elk,bee"))
    assert told is not None
    assert "third came from" in told
    assert "would bring cat back" in told


def test_a_run_may_be_named_through_a_link(runs, tmp_path):
    (tmp_path / "far" / "away").mkdir(parents=True)
    link = tmp_path / "far" / "away" / "current"
    link.symlink_to(runs[0].folder)
    assert revived(feduhb.open_run(link, ragged()), Request.parse("cat"))


NOTING = """
import os, sys
from pathlib import Path
from feduhb.runs.lineage import supersede

folder, child = Path(sys.argv[1]), os.fork()
for number in range(40):
    with supersede([folder], folder / f"{bool(child)}-{number}", None, print):
        pass
if child:
    assert os.waitpid(child, 0) == (child, 0)
"""


def test_two_that_note_at_once_lose_nothing(commands, tmp_path):
    (tmp_path / "note.py").write_text(NOTING)
    ended = commands.run_script(tmp_path / "note.py", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert len(read_successors(tmp_path)) == 80


def test_both_may_be_moved_together(runs, tmp_path):
    place = tmp_path / "elsewhere"
    place.mkdir()
    for run in runs:
        shutil.move(run.folder, place)
    moved = feduhb.open_run(place / "first", ragged())
    assert f"{place / 'second'} came from" in (revived(moved, Request.parse("cat")) or "")


@pytest.mark.slow
def test_on_the_command_line_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text(CONFIG)

    def feduhb_(*words):
        return CliRunner().invoke(app, list(words))

    assert feduhb_("train", "config.toml", "--out", "runs/first").exit_code == 0
    assert feduhb_("unlearn", "runs/first", "--forget", "c00", "--rounds", "1").exit_code == 0
    for more in ([], ["--out", "runs/other"]):
        ended = feduhb_("unlearn", "runs/first", "--forget", "c02", "--rounds", "1", *more)
        assert ended.exit_code == 2
        assert "unlearn runs/first-feduhb instead, or forget c00,c02" in ended.stderr
        assert not (tmp_path / "runs" / "other").exists()
    ended = feduhb_("unlearn", "runs/first", "--forget", "c2", "--rounds", "1")
    assert ended.stderr.startswith(
        "feduhb: there is no client 'c2'; did you mean c02? The clients are c00, c01"
    )
    insisting = (
        "unlearn",
        "runs/first",
        "--forget",
        "c02",
        "--rounds",
        "1",
        "--out",
        "runs/other",
        "--allow-revival",
    )
    assert feduhb_(*insisting).exit_code == 0
    ended = feduhb_("unlearn", "runs/first-feduhb", "--forget", "c02", "--rounds", "1")
    assert ended.exit_code == 0, ended.output


def test_a_later_run_whose_config_is_a_link_to_nothing_is_not_taken_for_deleted(runs):
    path = runs[1].folder / "config.toml"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(RunFolderError, match=r"config\.toml cannot be read"):
        revived(runs[0], Request.parse("cat"))
