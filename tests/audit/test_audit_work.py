"""An audit takes up its own work alone: whatever lies in the audited folder, it decides by what it computed itself."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import feduhb
from audit.auditing import QUIET
from feduhb.audit import audit as auditing
from feduhb.audit import procedure
from feduhb.audit.audit import audit
from feduhb.audit.procedure import AuditSettings
from feduhb.audit.result import Audit, read_audit
from feduhb.audit.work import LIST, open_work
from feduhb.errors import RunFolderError, StorageError
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import digest_weights, save_state
from feduhb.runs.folder import WORK, RunFolder, versions
from feduhb.runs.private import find_audits, find_work

CHEAP: dict[str, Any] = {"canaries": 0, **QUIET}
HOW: dict[str, Any] = {"epochs": 1, "batch_size": 8, "engine": "loop", "show": None}
ROUNDS = 2


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The folders of a training and of an honest run that forgot a client."""
    folder = tmp_path_factory.mktemp("made")
    federation = feduhb.load("digits", clients=4, per_client=30, held_out=0.5, model="softmax")
    trained = feduhb.train(federation, ROUNDS, out=folder / "old", **HOW)
    feduhb.unlearn(trained, ["c00"], method="retrain", rounds=ROUNDS, out=folder / "new", show=None)
    return folder


@pytest.fixture
def runs(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "runs")


def audit_in(folder: Path, **changes: Any) -> Audit:
    return audit(feduhb.open_run(folder / "new"), feduhb.open_run(folder / "old"), **CHEAP, **changes)


def put_weights(folder: Path, params: Any) -> None:
    """Put weights into a finished run folder as if its run had made them."""
    files = RunFolder(folder)
    save_state(files.state_path, Plain(params), ROUNDS)
    result = json.loads(files.result_path.read_text()) | {"weights_sha256": digest_weights(params)}
    files.result_path.write_text(json.dumps(result))


def interrupt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Audit until the attacks begin; return the folder of the audit's work."""

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(procedure, "attack_by_loss", fail)
        with pytest.raises(KeyboardInterrupt):
            audit_in(folder)
    return find_work(folder / "new")


@pytest.mark.slow
def test_work_planted_in_the_audited_folder_is_not_taken_up(runs):
    """The original's weights, with counterfactuals beside them that seem to give the same weights."""
    kept = audit_in(runs, keep=True)
    assert kept.verdict.word in ("forgotten", "useless")
    fake = feduhb.open_run(runs / "old").params * (1 + 1e-6)  # its very bits would be seen at once
    planted = runs / "new" / WORK
    for place in (runs / "new", *planted.glob("noise-*"), *planted.glob("never-*")):
        put_weights(place, fake)
    mark = {  # by which earlier versions recognised their own work
        "settings": asdict(AuditSettings(canaries=0, relearn=0)), "weights": digest_weights(fake), "request": "c00",
        "original_seed": feduhb.open_run(runs / "old").seed, "versions": versions(),
    }  # fmt: skip
    (planted / "audit-settings.json").write_text(json.dumps(mark))
    found = audit_in(runs)
    assert found.exactness is not None
    assert not found.exactness.exact
    assert found.verdict.word not in ("forgotten", "not caught")
    assert any(f"new/{WORK} was there before this audit and was not used" in note for note in found.notes)
    assert planted.exists()


@pytest.mark.slow
def test_a_planted_link_is_named_and_stays(runs, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (runs / "new" / WORK).symlink_to(elsewhere)
    found = audit_in(runs, exactness=False)
    assert any("It is a link. Look at it" in note for note in found.notes)
    assert (elsewhere / "file").exists()
    assert (runs / "new" / WORK).is_symlink()


@pytest.mark.slow
def test_an_interrupted_audit_is_continued_with_what_it_signed(runs, monkeypatch):
    whole = audit_in(runs)
    work = interrupt(runs, monkeypatch)
    finished = {path.parent.name for path in work.glob("*/result.json")}
    assert {name.split("-")[0] for name in finished} == {"retrain", "noise", "never"}
    assert not (runs / "new" / WORK).exists()
    # Half of a run, a file that nobody signed and a link are made again or deleted.
    [never] = work.glob("never-*")
    RunFolder(never).result_path.unlink()
    (work / "more").mkdir()
    (work / "more" / "link").symlink_to(runs)
    found = audit_in(runs)
    [note] = [note for note in found.notes if "interrupted audit" in note]
    assert all(name in note for name in finished - {never.name})
    assert never.name not in note
    assert "more" not in note
    assert replace(found, **dict.fromkeys(("notes", "finished", "seconds", "cost"), whole.notes)) == replace(
        whole, **dict.fromkeys(("notes", "finished", "seconds", "cost"), whole.notes)
    )
    assert not work.parent.exists()


@pytest.mark.slow
def test_changed_work_is_made_again(runs, monkeypatch):
    fake = feduhb.open_run(runs / "old").params * (1 + 1e-6)
    put_weights(runs / "new", fake)
    work = interrupt(runs, monkeypatch)
    changed = [*work.glob("noise-*"), *work.glob("never-*")]
    for place in changed:
        put_weights(place, fake)
    found = audit_in(runs)
    [note] = [note for note in found.notes if "interrupted audit" in note]
    assert not any(place.name in note for place in changed)
    assert found.exactness is not None
    assert not found.exactness.exact


@pytest.mark.slow
@pytest.mark.parametrize("change", ["settings", "data", "signature", "another key", "damaged"])
def test_work_with_other_inputs_or_signature_is_not_taken_up(runs, monkeypatch, change):
    work = interrupt(runs, monkeypatch)
    run, trained = feduhb.open_run(runs / "new"), feduhb.open_run(runs / "old")
    more: dict[str, Any] = {"margin": 0.07} if change == "settings" else {}
    if change == "data":
        x, y = run.original.test.all()
        run, trained = (
            replace(one, original=one.original.replace(test=(x + 1, y)), federation=one.federation.replace(test=(x + 1, y)))
            for one in (run, trained)
        )  # fmt: skip
    if change == "signature":
        listed = json.loads((work / LIST).read_text())
        [never] = work.glob("never-*")
        (never / "result.json").write_text((never / "result.json").read_text() + " ")
        listed["files"].pop(f"{never.name}/result.json")
        (work / LIST).write_text(json.dumps(listed))
    if change == "another key":
        (find_audits() / "key").unlink()
    if change == "damaged":
        (work / LIST).write_text("[" * 100_000)
    found = audit(run, trained, **CHEAP, **more)
    assert not [note for note in found.notes if "interrupted audit" in note]


@pytest.mark.slow
def test_the_work_is_deleted_before_the_audit_is_written(runs, monkeypatch):
    publish, seen = auditing._publish, []

    def look(folder: Path) -> None:
        seen.append((find_work(folder).exists(), read_audit(folder)))
        publish(folder)

    monkeypatch.setattr(auditing, "_publish", look)
    found = audit_in(runs, exactness=False)
    assert seen == [(False, None)]
    assert read_audit(runs / "new") == found


def test_the_auditors_folder_is_hidden_from_the_repeated_runs(runs):
    run, work = feduhb.open_run(runs / "new"), find_work(runs / "new")
    hidden = auditing._list_folders([run], work)
    assert {find_audits(), runs / "new", runs / "old"} <= {*hidden}


def test_a_folder_that_others_can_enter_is_refused(runs, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDUHB_STATE", str(tmp_path / "state"))
    find_audits().mkdir(parents=True)
    find_audits().chmod(0o755)
    with pytest.raises(StorageError, match=r"audits is not private to this user; .* by FEDUHB_STATE"):
        audit_in(runs)
    find_audits().rmdir()
    find_audits().symlink_to(tmp_path)
    with pytest.raises(StorageError, match="audits is a link"):
        audit_in(runs)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_something_else_in_the_place_of_the_file_is_refused_before_any_work(runs, kind):
    file = runs / "new" / "audit.json"
    file.mkdir() if kind == "folder" else file.symlink_to(runs / "target")
    with pytest.raises(RunFolderError, match=rf"audit\.json is a {kind}; move it away"):
        audit_in(runs)
    assert not (runs / "target").exists()
    assert not find_work(runs / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("earlier", "name"),
    [
        (b'{"finished": "../../outside"}', "audit-damaged.json"),
        (b"[" * 100_000, "audit-damaged.json"),
        (b"\xff\xfe", "audit-damaged.json"),
    ],
    ids=["path", "nested", "not UTF-8"],
)
def test_a_damaged_earlier_audit_is_kept_beside(runs, earlier, name):
    (runs / "new" / "audit.json").write_bytes(earlier)
    with pytest.raises(RunFolderError, match="delete it and audit the run again"):
        read_audit(runs / "new")
    found = audit_in(runs, exactness=False)
    assert (runs / "new" / name).read_bytes() == earlier
    assert read_audit(runs / "new") == found
    later = audit_in(runs, exactness=False)
    assert read_audit(runs / "new") == later
    [kept] = (runs / "new").glob("audit-2*.json")
    assert Audit.from_json(kept.read_text()) == found


@pytest.mark.slow
def test_interrupted_audits_are_retired_too(runs, monkeypatch):
    audit_in(runs, exactness=False)
    work = interrupt(runs, monkeypatch)
    [tombstone] = feduhb.retire(runs / "old", unaudited="a test")
    assert [Path(name).name for name in tombstone["holding"]] == [WORK]
    assert work.exists()
    [later] = feduhb.retire(runs / "old", siblings=True)
    assert later["deleted"][-1]["name"].endswith(f"{work.parent.name}/{WORK}")
    assert not work.exists()


@pytest.mark.slow
def test_the_work_of_an_audit_goes_with_its_run(runs, monkeypatch):
    """A run that is itself replaced: its own interrupted audit knows the leavers of both requests."""
    again = feduhb.unlearn(feduhb.open_run(runs / "new"), ["c01"], rounds=1, out=runs / "newer", show=None)
    assert again.folder is not None
    work = interrupt(runs, monkeypatch)
    feduhb.retire(runs / "new", replaced_by=runs / "newer", unaudited="a test")
    assert not work.exists()


def test_work_whose_deletion_failed_is_not_taken_up(tmp_path, monkeypatch):
    """It is incomplete: an audit that continued with it could not be repeated until somebody deleted it by hand."""
    monkeypatch.setenv("FEDUHB_STATE", str(tmp_path / "state"))

    def delete_half(path):
        (path / "retrain" / "state").unlink()
        raise StorageError("no")

    def work_and_fail():
        with open_work(tmp_path / "run", {}, keep=False) as work:
            (work.path / "retrain").mkdir()
            for name in ("state", "result"):
                (work.path / "retrain" / name).touch()
            with monkeypatch.context() as patch:
                patch.setattr(sys.modules["feduhb.audit.work"], "remove", delete_half)
                work.finish(None)

    with pytest.raises(StorageError):
        work_and_fail()
    with open_work(tmp_path / "run", {}, keep=False) as work:
        assert work.taken_up == []
        assert not (work.path / "retrain").exists()
