"""`feduhb benchmark` on a tiny federation: served, audited, printed, continued, never made twice."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb import Request
from feduhb.cli import app
from feduhb.errors import AnswerError, ConfigError, DataError
from feduhb_reproduction.benchmark import design
from feduhb_reproduction.benchmark import make as module
from feduhb_reproduction.cell import load_federation, make_request
from feduhb_reproduction.cell_plan import Job
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.grids import read_grid
from feduhb_reproduction.reproduce import CellsError

TEXT = """
title = "a toy"
chosen = "Nothing was tried."
data = "breast-cancer"
clients = 3
forget = "c00"
rounds = 2
epochs = 1
batch_size = 32
lr = 0.1
seeds = [0, 1]
public = 30
relearn = 1

[[parts]]
partitions = ["iid"]
"""
OWN = """
from dataclasses import dataclass
from typing import ClassVar

import feduhb


@dataclass(frozen=True)
class Short(feduhb.Retrain):
    name: ClassVar[str] = "short"
    step_size: float = 0.5


@dataclass(frozen=True)
class Rows(feduhb.Retrain):
    name: ClassVar[str] = "rows"
    serves: ClassVar[tuple[str, ...]] = ("rows",)


@dataclass(frozen=True)
class Clients(feduhb.Retrain):
    name: ClassVar[str] = "clients"
    serves: ClassVar[tuple[str, ...]] = ("clients",)


@dataclass(frozen=True)
class Wild(feduhb.Retrain):
    name: ClassVar[str] = "wild"
    scale: float = float("inf")
    rounds = 1

    def tell(self, state, answers):
        return type(state)(feduhb.Retrain.tell(self, state, answers).params * self.scale)


@dataclass(frozen=True)
class Huge(Wild):
    name: ClassVar[str] = "huge"
    scale: float = 1e38
"""
METHODS = ("feduhb", "retrain", "finetune", "fedaf")
NAME = "iid-all-s0"


@pytest.fixture(scope="module", autouse=True)
def few_methods():
    """Two exact methods, one approximate, one that cannot forget clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(design, "list_methods", lambda: list(METHODS))
        patch.setattr(sys, "path", [*sys.path])
        yield


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "toy.toml"
    path.write_text(text)
    return path


def invoke(*words: str | Path):
    return CliRunner().invoke(app, ["benchmark", *map(str, words)])


def refuse(*words: str | Path) -> str:
    ended = invoke(*words)
    assert ended.exit_code == 2, ended.output
    return ended.stderr.splitlines()[-1]


def read(out: Path) -> Cell:
    return Cell.read(out / "cells" / f"{NAME}.json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One cell, made by the command, and what the command printed."""
    folder = tmp_path_factory.mktemp("benchmark")
    ended = invoke(write(folder), "--out", folder / "out", "--engine", "pool", "--seeds", "0")
    assert ended.exit_code == 0, ended.output
    return folder / "out", ended.stdout


@pytest.mark.slow
def test_every_method_serves_the_same_request_and_is_audited(made):
    cell = read(made[0])
    assert set(cell.runs) == set(METHODS)
    for name in ("feduhb", "retrain", "finetune"):
        track = cell.runs[name]
        assert track.rounds == 2
        assert track.exact is (name != "finetune")
        assert track.sums["client_epochs"] == 4
        assert track.sums["leaver_epochs"] == 0
        on_canaries = [
            one for one in track.audit["membership"] if one["attack"] == "loss" and one["canaries"]
        ]
        assert set(on_canaries[0]["auc"]) == {"unlearned", "original", "retrain"}
        assert track.audit["relearn"]["most"] == 1
    assert cell.runs["retrain"].audit["distance"]["l2"] == 0
    assert cell.runs["finetune"].audit["distance"]["l2"] > 0
    assert cell.runs["finetune"].audit["requires"] == ["the old model"]
    assert cell.runs["finetune"].sums["stored_bytes"] > cell.runs["retrain"].sums["stored_bytes"] == 0
    assert cell.runs["fedaf"].stopped == "refused"
    assert cell.made["command"] == "feduhb benchmark toy.toml --engine pool"
    assert cell.made["alone"] is False


@pytest.mark.slow
def test_the_table_is_printed_and_written(made):
    out, printed = made
    lines = printed.splitlines()
    assert lines[0] == "breast cancer (iid)"
    assert lines[1].split()[:3] == ["method", "exact", "accuracy"]
    assert [line.split()[0] for line in lines[2:6]] == ["original", "FedUHB", "Retrain", "FineTune"]
    assert "FedAF refused: fedaf cannot forget clients, only rows or classes; use feduhb or retrain." in lines
    assert "4 of 4 runs are done" in lines
    page = (out / "README.md").read_text()
    assert page.startswith("# Every method, side by side (a toy)\n")
    assert "1 cells of 2, made by `feduhb benchmark toy.toml --engine pool`" in page
    assert "Nothing was tried." in page
    assert (out / "work.png").stat().st_size > 0
    assert not [path for path in (out / "work").iterdir() if path.is_dir()], (
        "models that know the data are gone"
    )


@pytest.mark.slow
def test_what_is_recorded_is_not_run_again(made, monkeypatch):
    monkeypatch.setattr(module, "fill_cell", None)
    again = invoke(made[0].parent / "toy.toml", "--out", made[0], "--seeds", "0", "--json")
    told = json.loads(again.stdout)
    assert (told["done"], told["missing"]) == (4, 0)
    listed = invoke(made[0].parent / "toy.toml", "--out", made[0], "--dry-run")
    assert listed.stdout == "4 of 8 runs are done\nmissing: iid-all-s1 (4)\n"


@pytest.mark.slow
def test_an_interrupted_cell_continues_to_the_same_weights(made, tmp_path, monkeypatch):
    """First a call is interrupted, then one has too little time for all methods, then one ends the cell."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    command = (write(tmp_path), "--out", tmp_path / "out", "--engine", "pool", "--seeds", "0")
    with monkeypatch.context() as patch:
        patch.setattr(module, "audit_all", interrupt)
        ended = invoke(*command)
    assert ended.exit_code == 130
    assert "start again to continue" in ended.stderr
    work = tmp_path / "out" / "work" / NAME
    before = {path: path.stat().st_mtime_ns for path in work.glob("*/state.safetensors")}
    assert {path.parent.name for path in before} == {"original", "retrain", "feduhb", "finetune"}
    with monkeypatch.context() as patch:
        ticks = itertools.count()  # the clock is read when the command, the cell and each of its runs begin
        clock = SimpleNamespace(time=lambda: 30.0 * next(ticks), perf_counter=time.perf_counter)
        patch.setattr(module, "time", clock)
        assert "2 of 4 runs are done" in invoke(*command, "--minutes", "1.8").stdout
    assert set(read(tmp_path / "out").runs) == {"retrain", "feduhb"}
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", lambda _: None)
        assert invoke(*command).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before, "no round was run again"
    assert _list_weights(read(tmp_path / "out")) == _list_weights(read(made[0]))


@pytest.mark.slow
def test_a_run_that_goes_on_when_the_time_is_over_is_interrupted_and_continued(made, tmp_path, monkeypatch):
    """The clock is read when the command, the cell and each run begin, and after each round of a run."""
    command = (write(tmp_path), "--out", tmp_path / "out", "--engine", "pool", "--seeds", "0")
    ticks = itertools.count()
    clock = SimpleNamespace(time=lambda: 30.0 * next(ticks), perf_counter=time.perf_counter)
    with monkeypatch.context() as patch:
        patch.setattr(module, "time", clock)
        assert "1 of 4 runs are done" in invoke(*command, "--minutes", "2.6").stdout
    # It was read by the command, the cell, Retrain, its two rounds, FedUHB and its first round.
    assert next(ticks) == 7
    begun = tmp_path / "out" / "work" / NAME / "feduhb"
    assert len((begun / "rounds.jsonl").read_text().splitlines()) == 1
    assert invoke(*command).exit_code == 0
    assert _list_weights(read(tmp_path / "out")) == _list_weights(read(made[0]))


def test_own_methods_come_first_and_rapid_retrain_last():
    runs = {"feduhb": "feduhb", "rapidretrain": "rapidretrain", "wu": "wu", "Mine": "mine.py:Mine"}
    assert list(dict(sorted(runs.items(), key=module._rank))) == ["Mine", "feduhb", "wu", "rapidretrain"]


def _list_weights(cell: Cell) -> dict[str, str]:
    return {name: track.weights for name, track in cell.runs.items()}


@pytest.mark.slow
def test_a_method_of_ones_own_gets_a_row(made, tmp_path, monkeypatch):
    """It alone is added, beside numbers that are there, and it runs again when its file has changed."""
    out = shutil.copytree(made[0], tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    command = (write(tmp_path), "--method", "mine.py:Short", "--out", out, "--engine", "pool", "--seeds", "0")
    ended = invoke(*command)
    assert ended.exit_code == 0, ended.output
    (row,) = [line.split() for line in ended.stdout.splitlines() if line.startswith("*")]
    assert row[:3] == ["*", "Short", "yes"]
    cell = read(out)
    assert set(cell.runs) == {*METHODS, "Short"}
    assert cell.runs["Short"].weights not in _list_weights(read(made[0])).values()
    assert {name: cell.runs[name] for name in METHODS} == read(made[0]).runs
    assert "5 of 5 runs" in invoke(*command, "--dry-run").stdout
    Path("mine.py").write_text(OWN + "# changed\n")
    assert "missing: iid-all-s0 (1)" in invoke(*command, "--dry-run").stdout


@pytest.mark.slow
def test_a_method_of_ones_own_that_cannot_serve_the_request_is_refused_in_a_line(made, tmp_path, monkeypatch):
    out = shutil.copytree(made[0], tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    Path("theirs.py").write_text(OWN)
    line = refuse(
        write(tmp_path), "--method", "theirs.py:Rows", "--out", out, "--engine", "pool", "--seeds", "0"
    )
    assert line.startswith(
        "feduhb: 1 of 1 cells are not complete: iid-all-s0: Rows: rows cannot forget clients, only rows"
    )
    assert read(out).runs == read(made[0]).runs


@pytest.mark.slow
def test_a_method_that_nobody_named_and_that_cannot_serve_the_request_is_recorded(tmp_path, monkeypatch):
    """An installed plug-in must not stop the cells of others."""
    monkeypatch.chdir(tmp_path)
    Path("installed.py").write_text(OWN)
    module.fill_cell(make_job(tmp_path), {"retrain": "retrain", "Rows": "installed.py:Rows"})
    refused = read(tmp_path).runs["Rows"]
    assert (refused.stopped, refused.failed) == (
        "refused",
        "rows cannot forget clients, only rows; use feduhb or retrain",
    )


def make_job(out: Path, rows: bool = False) -> Job:
    (place, *_) = design.read_benchmark(write(out)).places()
    return Job(place=replace(place, rows=rows), out=out, engine="pool")


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [ConfigError("the GPU's memory ran out"), AnswerError("client c01 could not train (CUDA error)")]
)
def test_a_run_that_fails_stays_missing_and_the_others_are_written(tmp_path, monkeypatch, error):
    serve = feduhb.unlearn

    def fail(*given, method, **more):
        if method == "finetune":
            raise error
        return serve(*given, method=method, **more)

    with monkeypatch.context() as patch:
        patch.setattr(module.feduhb, "unlearn", fail)
        with pytest.raises(CellsError, match=re.escape(f"finetune: {error}")):
            module.fill_cell(make_job(tmp_path), {name: name for name in METHODS})
    assert set(read(tmp_path).runs) == {*METHODS} - {"finetune"}
    module.fill_cell(make_job(tmp_path), {"finetune": "finetune"})
    assert read(tmp_path).runs["finetune"].failed is None


@pytest.mark.slow
def test_a_model_that_is_not_finite_is_recorded_as_diverged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wild.py").write_text(OWN)
    module.fill_cell(make_job(tmp_path), {"Wild": "wild.py:Wild"}, own=frozenset({"Wild"}))
    wild = read(tmp_path).runs["Wild"]
    assert wild.stopped == "diverged"
    assert "the model is not finite" in str(wild.failed)


@pytest.mark.slow
def test_a_model_that_cannot_be_audited_is_left_out_of_the_audits(tmp_path, monkeypatch):
    """Its weights are finite, and its outputs are not. The others are audited together, once."""
    audited: list[list[str]] = []
    audit = module.audit_all

    def count(runs, **more):
        audited.append([run.method.name for run in runs])
        return audit(runs, **more)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "audit_all", count)
    Path("huge.py").write_text(OWN)
    wanted = {"Huge": "huge.py:Huge", "retrain": "retrain", "finetune": "finetune"}
    module.fill_cell(make_job(tmp_path), wanted, own=frozenset({"Huge"}))
    found = read(tmp_path).runs
    assert (found["Huge"].stopped, found["Huge"].rounds) == ("diverged", 1)
    assert found["Huge"].failed == "the model's outputs are not finite on some examples"
    assert found["finetune"].audit
    assert found["finetune"].failed is None
    assert audited == [["retrain", "finetune"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "stopped"), [(DataError("3 of the 8 scores are not finite"), "diverged"), (AnswerError("died"), None)]
)  # fmt: skip
def test_audits_that_one_run_stops_are_made_one_by_one(made, tmp_path, monkeypatch, capfd, error, stopped):
    audit = module.audit_all

    def fail(runs, *given, **more):
        if any(run.method.name == "finetune" for run in runs):
            raise error
        return audit(runs, *given, **more)

    monkeypatch.setattr(module, "audit_all", fail)
    with nullcontext() if stopped else pytest.raises(CellsError, match=f"^finetune: {error}$"):
        module.fill_cell(make_job(tmp_path), {name: name for name in METHODS})
    found = read(tmp_path).runs
    assert found["feduhb"].audit == read(made[0]).runs["feduhb"].audit  # alone as together
    assert set(found) == ({*METHODS} if stopped else {*METHODS} - {"finetune"})
    assert stopped is None or (found["finetune"].stopped, found["finetune"].failed) == (stopped, str(error))
    line = f"{NAME}: audits are made one by one, because together they failed: {error}\n"
    assert line in capfd.readouterr().err


@pytest.mark.slow
def test_audits_that_fail_for_another_reason_leave_all_audited_runs_missing(tmp_path, monkeypatch):
    """The runs are kept, so that the next call need only audit them."""
    calls: list[int] = []

    def fail(runs, **_):
        calls.append(len(runs))
        raise MemoryError("full")

    job, wanted = make_job(tmp_path), {name: name for name in METHODS}
    with monkeypatch.context() as patch:
        patch.setattr(module, "audit_all", fail)
        with pytest.raises(CellsError, match=r"^audits: MemoryError: full$"):
            module.fill_cell(job, wanted)
    assert calls == [3]
    assert set(read(tmp_path).runs) == {"fedaf"}
    before = {path: path.stat().st_mtime_ns for path in job.work.glob("*/state.safetensors")}
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", lambda _: None)
        module.fill_cell(job, wanted)
    assert set(read(tmp_path).runs) == {*METHODS}
    assert {path: path.stat().st_mtime_ns for path in before} == before, "no round was run again"


@pytest.mark.slow
def test_a_cell_of_rows_forgets_what_the_leavers_planted(tmp_path, monkeypatch):
    """FedAF serves such a request; the leavers stay, and a method of one's own that cannot serve it is recorded."""
    asked: list[Request] = []
    serve = feduhb.unlearn
    monkeypatch.setattr(module.feduhb, "unlearn", lambda *given, **more: (asked.append(given[1]), serve(*given, **more))[1])  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("by_clients.py").write_text(OWN)
    job = make_job(tmp_path, rows=True)
    wanted = {
        "retrain": "retrain",
        "fedaf": "fedaf",
        "federaser": "federaser",
        "Clients": "by_clients.py:Clients",
    }
    module.fill_cell(job, wanted, own=frozenset({"Clients"}))
    cell = Cell.read(tmp_path / "cells" / "iid-all-rows-s0.json")
    (request, *_) = asked
    client = load_federation(job.place).clients["c00"]
    assert client.marked is not None
    assert request == Request(rows={"c00": tuple(client.keys[client.marked].tolist())})
    assert cell.runs["fedaf"].audit["membership"]
    assert cell.runs["retrain"].sums["client_epochs"] == 6
    assert {name: track.stopped for name, track in cell.runs.items() if track.failed} == {
        "federaser": "refused",
        "Clients": "refused",
    }


def test_planted_rows_are_the_canaries_and_those_with_the_trigger():
    place = replace(next(design.read_benchmark(design.find_benchmark("mnist-5k")).places()), rows=True)
    federation = load_federation(place)
    rows = make_request(place, federation).rows
    examples, trigger = federation.clients["c00"], federation.backdoor
    assert trigger is not None
    assert examples.marked is not None
    triggered = trigger.detect(examples.all()[0])
    assert list(rows) == ["c00"]
    assert len(rows["c00"]) == int((examples.marked | triggered).sum()) > int(triggered.sum()) > 0


def test_only_benchmarks_have_parts_of_rows(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text('data = "mnist-5k"\n[[parts]]\npartitions = ["iid"]\nrows = true\n')
    with pytest.raises(ConfigError, match="rows = true, which is for benchmarks"):
        read_grid(path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mnsit"], "there is no benchmark 'mnsit'; choose breast-cancer or cifar10 or mnist or mnist-5k, or give the path of a .toml file"),
        (["no.toml"], "there is no benchmark file no.toml; write one"),
        (["--method", "nothing"], "'nothing'"),
        (["--method", "none.py:Mine"], "the code of none.py:Mine is not found; give module:Class or file.py:Class"),
        (["--method", "a.py:Mine", "--method", "b.py:Mine"], "two methods would have the name Mine in the table"),
        (["--seeds", "9"], "the grid has no seed 9; choose from 0, 1, 2, 3, 4"),
        (["--only", "idd"], "no cell's name begins with 'idd'"),
        (["--engine", "steam"], "no engine 'steam'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_made(tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    ended = invoke(*words)
    assert ended.exit_code == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("feduhb: ")
    assert says in line
    assert not list(tmp_path.iterdir())


def test_a_folder_of_other_settings_is_refused(tmp_path, made):
    out = shutil.copytree(made[0], tmp_path / "out")
    line = refuse(write(tmp_path, TEXT.replace("lr = 0.1", "lr = 0.2")), "--out", out)
    assert "was made with lr = 0.1, not 0.2; choose another --out" in line


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("shadows = { iid = 3 }", "shadows is 3; give 0, or an even number of 4 or more"),
        ("shadows = { idd = 4 }", "shadows names 'idd', which no part has; choose from iid"),
        ("relearn = -3", "relearn is -3; give a number of rounds"),
    ],
)
def test_bad_settings_of_audits_are_refused_before_anything_runs(tmp_path, line, says):
    assert says in refuse(write(tmp_path, TEXT.replace("relearn = 1", line)), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("minutes", ["nan", "-5", "0"])
def test_minutes_are_above_zero(tmp_path, minutes):
    line = refuse(write(tmp_path), "--out", tmp_path / "out", "--minutes", minutes)
    assert line == f"feduhb: --minutes is {float(minutes)}; give a positive number, such as 8"


def test_a_key_that_is_no_setting_is_refused(tmp_path):
    assert "sedes" in refuse(write(tmp_path, TEXT.replace("seeds", "sedes")))
