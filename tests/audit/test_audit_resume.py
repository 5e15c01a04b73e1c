"""kill -9 in the middle of an audit, and the same command again: nothing is trained twice, and the numbers are the same."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import feduhb
from audit.auditing import QUIET
from feduhb.audit.audit import WORK, audit
from feduhb.audit.work import LIST
from feduhb.errors import RunFolderError
from feduhb.runs.folder import RunFolder
from feduhb.runs.private import find_work
from killing import Commands

SHADOWING = Path(__file__).with_name("shadowing.py")
CLOCKS = ("finished", "seconds", "cost", "versions")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run and its retrained successor, in folders."""
    folder = tmp_path_factory.mktemp("runs")
    federation = feduhb.load("digits", clients=4, per_client=30, held_out=0.5, model="softmax")
    how = {"epochs": 1, "batch_size": 8, "engine": "pool", "show": None}
    original = feduhb.train(federation, 2, out=folder / "original", **how)
    retrain = feduhb.unlearn(
        original, ["c00", "c01"], method="retrain", rounds=2, out=folder / "retrain", show=None
    )
    return folder, original, retrain


def audit_in_process(commands: Commands, folder: Path, kill_at: int = 0) -> tuple[int, list[str]]:
    """Audit in another process; return its exit code and what it trained."""
    done = commands.run_script(SHADOWING, folder, kill_at)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout.split()


def facts(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "audit" / "audit.json").read_text())
    found["notes"] = [note for note in found["notes"] if "interrupted audit" not in note]
    return {key: value for key, value in found.items() if key not in CLOCKS}


def copied(runs, tmp_path) -> Path:
    for name in ("original", "retrain"):
        shutil.copytree(runs[0] / name, tmp_path / name)
    return tmp_path


def test_a_second_audit_of_a_run_does_not_take_the_firsts_work_away(runs, tmp_path):
    folder = copied(runs, tmp_path)
    unlearned, trained = (feduhb.open_run(folder / name) for name in ("retrain", "original"))
    with (
        RunFolder(folder / "audit").claim(),
        pytest.raises(RunFolderError, match="another process is writing"),
    ):
        audit(unlearned, trained, out=folder / "audit", **QUIET)
    assert not find_work(folder / "audit").exists()


@pytest.fixture(scope="module")
def whole(commands, runs, tmp_path_factory):
    """An audit that was never killed."""
    folder = copied(runs, tmp_path_factory.mktemp("whole"))
    code, trained = audit_in_process(commands, folder)
    assert code == 0
    return folder, trained


def test_killed_after_the_third_shadow(commands, runs, whole, tmp_path):
    folder, (reference, everything) = copied(runs, tmp_path), whole
    code, before = audit_in_process(commands, folder, kill_at=3)
    assert code == -signal.SIGKILL
    signed = json.loads((find_work(folder / "audit") / LIST).read_text())["files"]
    spoken = {Path(name).stem for name in signed if name.startswith("shadow-")}
    assert 2 <= len(spoken) < 6
    assert not (folder / "audit" / "audit.json").exists()
    code, after = audit_in_process(commands, folder)
    assert code == 0
    assert spoken < set(before)
    assert not spoken & set(after)  # none that had spoken is trained anew
    assert {name for name in after if name.startswith("shadow")} == {
        name for name in everything if name.startswith("shadow")
    } - spoken
    assert all(name.startswith("shadow") for name in after)  # nor any other run
    assert facts(folder) == facts(reference)
    notes = json.loads((folder / "audit" / "audit.json").read_text())["notes"]
    [note] = [note for note in notes if "interrupted audit" in note]
    assert f"{len(spoken)} shadow federations." in note
    assert "rehearsal" in note
    assert not find_work(folder / "audit").parent.exists()


@pytest.mark.slow
def test_everything_was_trained_once(whole):
    _, trained = whole
    kinds = {name.split("-")[0] for name in trained}
    assert kinds == {"retrain", "noise", "never", "rehearsal", "shadow"}
    assert len(trained) == len(set(trained))
    assert sum(name.startswith("shadow") for name in trained) == 6


def test_the_work_folder_is_deleted_at_the_end_unless_it_is_kept(runs, tmp_path):
    _, original, retrain = runs
    cheap = {"canaries": 0, **QUIET}
    audit(retrain, original, out=tmp_path, **cheap)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "audit.json"]
    audit(retrain, original, out=tmp_path, keep=True, **cheap)
    kept = {path.name.split("-")[0] for path in (tmp_path / WORK).iterdir()}
    assert kept == {"retrain", "noise", "never"}
    with pytest.raises(RunFolderError, match="audit-work is there already, so the runs of this audit cannot"):
        audit(retrain, original, out=tmp_path, keep=True, **cheap)


def test_nothing_is_written_beside_runs_that_have_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    federation = feduhb.load("digits", clients=4, per_client=20, model="softmax")
    original = feduhb.train(federation, 1, epochs=1, show=None)
    audit(feduhb.unlearn(original, ["c00"], rounds=1, show=None), original, canaries=0, **QUIET)
    assert not list(tmp_path.iterdir())
