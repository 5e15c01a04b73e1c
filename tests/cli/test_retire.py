"""`feduhb retire` and `feduhb unlearn --retire`, as a person and as a program would use them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb.cli import app
from feduhb.runs.folder import RunFolder

pytestmark = pytest.mark.slow

CONFIG = """
seed = 4
[federation]
data = "digits"
clients = 4
model = "softmax"
[train]
rounds = 4
epochs = 1
lr = 0.2
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("retire")
    (place / "config.toml").write_text(CONFIG)
    invoke("train", place / "config.toml", "--out", place / "first")
    return place / "first"


@pytest.fixture
def run(trained, tmp_path, monkeypatch) -> Path:
    """The training, in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "runs/first")
    return Path("runs/first")


def invoke(*arguments: object, code: int = 0) -> str:
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    assert ended.exit_code == code, ended.output
    return ended.output


def unlearn(run: Path, *more: object, code: int = 0) -> str:
    return invoke("unlearn", run, "--forget", "c01", "--rounds", 4, "--out", "runs/second", *more, code=code)


def test_unlearn_audits_and_retires(run):
    said = unlearn(run, "--retire")
    assert "feduhb without c01: FORGOTTEN" in said
    assert said.splitlines()[-1].startswith("retired runs/first: ")
    assert said.splitlines()[-1].endswith(" bytes deleted; runs/first/retired.json lists them")
    tombstone = json.loads((run / "retired.json").read_text())
    assert [a["verdict"] for a in tombstone["audits"]] == ["forgotten"]
    assert not (run / "state.safetensors").exists()
    assert feduhb.open_run("runs/second").forgot == feduhb.Request(("c01",))
    words = "runs/first was retired on 20"
    assert words in invoke("unlearn", run, "--forget", "c02", code=2)
    assert words in invoke("report", run, code=2)
    assert words in invoke("audit", "runs/second", "--original", run, code=2)
    Path("config.toml").write_text(CONFIG)
    assert words in invoke("train", "config.toml", "--out", run, code=2)


def test_unlearn_retires_without_an_audit_if_there_is_a_reason(run):
    answer = json.loads(unlearn(run, "--retire", "--unaudited", "no data", "--json").splitlines()[-1])
    (tombstone,) = answer["retired"]
    assert tombstone["unaudited"] == "no data"
    assert tombstone["audits"] == []
    assert answer["holding"] == []
    assert "audits" not in answer
    assert answer["weights_sha256"] == tombstone["replaced_by"]["weights_sha256"]


@pytest.mark.parametrize("more", [("--unaudited", "no data"), ("--retire", "--unaudited", " ")])
def test_a_reason_without_its_option_is_refused_before_anything_runs(run, more):
    said = unlearn(run, *more, code=2)
    assert (
        "--unaudited gives a reason to --retire the old run without an audit; give both, or neither" in said
    )
    assert not Path("runs/second").exists()


def test_an_audit_that_does_not_pass_keeps_the_old_run(run):
    """One round with almost no step leaves a model that knows nothing."""
    said = unlearn(run, "--step-size", 1e-6, "--rounds", 1, "--retire", code=2)
    assert "the audit of runs/second says 'useless', so runs/first may still be needed" in said
    assert feduhb.open_run(run).params is not None
    assert RunFolder(Path("runs/second")).is_finished()


def test_siblings_are_listed_and_deleted_only_after_a_yes(run, monkeypatch):
    shutil.copytree(run, "runs/copy")
    unlearn(run)
    alone = ("retire", run, "--unaudited", "no data")
    said = invoke(*alone, "--siblings", code=2)
    assert "These folders hold c01 and would be deleted too:\n  runs/copy\n" in said
    assert "nobody can confirm that; add --yes to delete them, or omit --siblings" in said
    assert RunFolder(run).is_finished()
    said = invoke(*alone)
    words = "these folders still hold c01: runs/copy; to delete them too: feduhb retire runs/first --siblings"
    assert words in said
    assert RunFolder(Path("runs/copy")).is_finished()
    monkeypatch.setattr(sys.modules["feduhb.cli.retire"], "can_ask", lambda: True)
    ended = CliRunner().invoke(app, [*map(str, alone), "--siblings"], input="n\n")
    assert ended.exit_code == 2
    assert "nothing was deleted; omit --siblings to retire this run alone" in ended.output
    ended = CliRunner().invoke(app, [*map(str, alone), "--siblings"], input="y\n")
    assert ended.exit_code == 0, ended.output
    assert "retired runs/copy: " in ended.output
    assert not Path("runs/copy/state.safetensors").exists()


def test_a_person_is_told_what_is_left(run):
    unlearn(run)
    (run / "exported.pt").write_bytes(b"weights")
    (run / "audit-work").symlink_to("/nowhere")
    Path("runs/second/audit-work").mkdir()
    said = invoke("retire", run, "--unaudited", "no data")
    assert "  only links were deleted, not what they point to: audit-work -> /nowhere\n" in said
    assert "  left, because feduhb did not write it: exported.pt\n" in said
    words = "these folders still hold c01: runs/second/audit-work; to delete them too: feduhb retire runs/first --siblings"
    assert words in said
    answer = json.loads(invoke("retire", run, "--json"))
    assert answer["holding"] == [str(Path("runs/second/audit-work").resolve())]
    assert "deleted runs/second/audit-work, whose models knew c01" in invoke(
        "retire", run, "--siblings", "--yes"
    )
    assert not Path("runs/second/audit-work").exists()


def test_unlearn_names_the_command_that_takes_siblings_along(run):
    shutil.copytree(run, "runs/copy")
    said = unlearn(run, "--retire", "--unaudited", "no data")
    assert said.endswith("runs/copy; to delete them too: feduhb retire runs/first --siblings\n")
    invoke("retire", run, "--siblings", "--yes")
    assert not Path("runs/copy/state.safetensors").exists()


def test_a_run_that_may_hold_the_leaver_is_deleted_only_if_named(run):
    Path("config.toml").write_text(CONFIG.replace("seed = 4", "seed = 5"))  # other examples for c01
    invoke("train", "config.toml", "--out", "runs/else")
    unlearn(run)
    said = invoke("retire", run, "--unaudited", "no data", "--siblings", "--yes")
    assert "these folders may hold c01, because a client of that name took part: runs/else; " in said
    assert said.endswith("look at each, and if it does: feduhb retire runs/first --also runs/else\n")
    answer = json.loads(invoke("retire", run, "--siblings", "--yes", "--json"))
    assert (answer["holding"], answer["may_hold"]) == ([], [str(Path("runs/else").resolve())])
    assert RunFolder(Path("runs/else")).is_finished()
    assert "retired runs/else: " in invoke("retire", run, "--also", "runs/else")
    assert not Path("runs/else/state.safetensors").exists()
