"""`feduhb.retire` deletes a run that another run has replaced, and nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb.cli import app
from feduhb.errors import ConfigError, RequestError, RunFolderError
from feduhb.runs.folder import RunFolder
from feduhb.runs.lineage import Ancestor, read_ancestors
from runs.retiring import LEAVER, federation, read_files, train, unlearn

KEPT = {"retired.json", "later.json", ".lock"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A training "a", the run "b" that replaces it, and a comparison of "a", which has forgotten the leaver too."""
    place = tmp_path_factory.mktemp("retired")
    trained = train(place / "a")
    feduhb.compare(trained, [LEAVER], ["retrain"], rounds=1, out=place / "a-compare", show=None)
    unlearn(trained, LEAVER, place / "b")
    return place


@pytest.fixture
def runs(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "runs")


@pytest.fixture(scope="module")
def chained(made, tmp_path_factory) -> Path:
    """The same runs, and the run "c", which served a second request from "b"."""
    place = shutil.copytree(made, tmp_path_factory.mktemp("chained") / "runs")
    unlearn(feduhb.open_run(place / "b", federation()), "c02", place / "c")
    return place


@pytest.fixture
def chain(chained, tmp_path) -> Path:
    return shutil.copytree(chained, tmp_path / "runs")


def invoke(*arguments: object) -> tuple[int, str]:
    """Run a command; return its exit status and what it printed."""
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    return ended.exit_code, ended.output


def test_it_deletes_what_knows_the_leaver_and_leaves_a_tombstone(runs):
    before, new = read_files(runs / "a"), read_files(runs / "b")
    result = RunFolder(runs / "a").result()
    (tombstone,) = feduhb.retire(runs / "a")
    assert {path.name for path in (runs / "a").iterdir()} == KEPT
    assert tombstone == json.loads((runs / "a" / "retired.json").read_text())
    assert tombstone["weights_sha256"] == result["weights_sha256"]
    assert tombstone["leavers"] == LEAVER
    assert tombstone["begun"] <= tombstone["finished"]
    assert tombstone["unaudited"] is None
    replaced = RunFolder(runs / "b").result()["weights_sha256"]
    assert (tombstone["replaced_by"]["run"], tombstone["replaced_by"]["weights_sha256"]) == ("../b", replaced)
    audit = hashlib.sha256(new["audit.json"]).hexdigest()
    assert tombstone["audits"] == [{"run": "../b", "verdict": "forgotten", "forgot": LEAVER, "sha256": audit}]
    deleted = {entry["name"]: entry for entry in tombstone["deleted"]}
    assert {*deleted} == {"state.safetensors", "rounds.jsonl", "result.json", "config.toml", "history"}
    for name in {*deleted} - {"history"}:
        assert deleted[name]["sha256"] == hashlib.sha256(before[name]).hexdigest()
        assert deleted[name]["bytes"] == len(before[name])
    assert read_files(runs / "b") == new


def test_the_digest_of_a_deleted_folder_is_that_of_its_list_of_files(runs):
    inside = read_files(runs / "a" / "history")
    lines = sorted(f"{hashlib.sha256(content).hexdigest()} {name}" for name, content in inside.items())
    (tombstone,) = feduhb.retire(runs / "a")
    (entry,) = [entry for entry in tombstone["deleted"] if entry["name"] == "history"]
    assert entry["sha256"] == hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert (entry["files"], entry["bytes"]) == (len(inside), sum(map(len, inside.values())))


def test_a_retired_run_cannot_be_opened_and_says_which_run_replaced_it(runs):
    feduhb.retire(runs / "a")
    words = r"a was retired on \d{4}-\d\d-\d\d, see its retired.json; use .*b, which replaced it"
    with pytest.raises(RunFolderError, match=words):
        feduhb.open_run(runs / "a", federation())
    with pytest.raises(RunFolderError, match=words):
        train(runs / "a")  # a new run must not be written over the tombstone
    code, text = invoke("report", runs / "a")
    assert code == 2
    assert "a was retired on" in text


def test_the_new_run_opens_and_takes_the_next_request_without_a_warning(runs, capsys):
    feduhb.retire(runs / "a")
    opened = feduhb.open_run(runs / "b", federation("c00", "c02", "c03"))
    third = unlearn(opened, "c02", runs / "c", audited=False)
    assert "no longer exists" not in capsys.readouterr().err
    assert [one.path.name for one in third.earlier] == ["b", "a"]
    assert read_ancestors(runs / "c")[1].is_retired
    (tombstone,) = feduhb.retire(runs / "b", replaced_by=third, unaudited="a test")
    assert tombstone["leavers"] == "c02"
    assert tombstone["holding"] == ["../a-compare/retrain"]
    assert (runs / "b" / "audit.json").exists(), "the evidence of the first request stays"


def test_an_ancestor_is_retired_after_the_run_between(chain):
    """The audit of the run between, which stays, covers the first request."""
    feduhb.retire(chain / "b")
    (tombstone,) = feduhb.retire(chain / "a")
    assert tombstone["replaced_by"]["run"] == "../c"
    assert tombstone["leavers"] == "c01,c02"
    assert [(a["run"], a["forgot"]) for a in tombstone["audits"]] == [("../c", "c02"), ("../b", LEAVER)]


def test_a_repeated_call_changes_nothing(runs):
    first = feduhb.retire(runs / "a")
    before = read_files(runs)
    assert feduhb.retire(runs / "a") == first
    assert read_files(runs) == before


@pytest.mark.parametrize("how", ["unfinished", "unaudited", "other weights", "bad"])
def test_it_refuses_while_the_new_run_is_not_finished_and_audited(runs, how):
    audit, result = runs / "b" / "audit.json", runs / "b" / "result.json"
    if how == "unfinished":
        result.unlink()
        words = "b, which replaces .*a, has not finished; continue it with --resume"
    elif how == "unaudited":
        audit.unlink()
        words = "b, which replaces .*a, has no audit about c01; audit it: feduhb audit .*b --original .*a, or give a reason"
    elif how == "other weights":
        audit.write_text(
            audit.read_text().replace(RunFolder(runs / "b").result()["weights_sha256"], "0" * 64)
        )
        words = "has no audit about c01"
    else:
        audit.write_text(audit.read_text().replace('"word": "forgotten"', '"word": "inconclusive"'))
        words = "the audit of .*b says 'inconclusive', so .*a may still be needed"
    before = read_files(runs)
    with pytest.raises(RunFolderError, match=words):
        feduhb.retire(runs / "a")
    with pytest.raises(RunFolderError, match=words):
        feduhb.retire(runs / "a", replaced_by=runs / "b")
    assert read_files(runs) == before
    if how != "unfinished":
        (tombstone,) = feduhb.retire(runs / "a", unaudited="the server has no data")
        assert tombstone["unaudited"] == "the server has no data"
        assert [a["verdict"] for a in tombstone["audits"]] == (["inconclusive"] if how == "bad" else [])


def test_an_audit_of_another_request_does_not_count(chain):
    (chain / "b" / "audit.json").unlink()
    with pytest.raises(RunFolderError, match=r"c, which replaces .*a, has no audit about c01"):
        feduhb.retire(chain / "a", replaced_by=chain / "c")


def test_it_refuses_a_run_that_nothing_replaces(runs, made):
    with pytest.raises(RunFolderError, match=r"no run replaces .*b; unlearn it first"):
        feduhb.retire(runs / "b")
    with pytest.raises(RequestError, match=r"a has forgotten nothing, .*so it does not replace it"):
        feduhb.retire(runs / "b", replaced_by=runs / "a", unaudited="why not")
    with pytest.raises(RunFolderError, match="cannot replace itself"):
        feduhb.retire(runs / "a", replaced_by=runs / "a")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        feduhb.retire(runs)
    with pytest.raises(ConfigError, match="has no folder"):
        feduhb.retire(feduhb.train(federation(), 1, epochs=1, show=None))
    with pytest.raises(ConfigError, match=r"the reason .* is empty"):
        feduhb.retire(runs / "a", unaudited=" ")
    assert {name: read_files(runs / name) for name in "ab"} == {
        name: read_files(made / name) for name in "ab"
    }


def test_of_two_runs_that_could_replace_it_one_must_be_named(runs):
    trained = feduhb.open_run(runs / "a", federation())
    unlearn(trained, "c02", runs / "b2", audited=False)
    with pytest.raises(RunFolderError, match=r"several runs could replace .*a: .*b, .*b2; name one"):
        feduhb.retire(runs / "a", unaudited="a test")
    (tombstone,) = feduhb.retire(runs / "a", replaced_by=runs / "b2", unaudited="a test")
    assert tombstone["holding"] == ["../a-compare/retrain", "../b"], "these have not forgotten c02"


def test_it_waits_for_nobody_who_is_writing_the_run(runs):
    shutil.copytree(runs / "a", runs / "copy")
    before = read_files(runs / "a")
    with (
        RunFolder(runs / "copy").claim(),
        pytest.raises(RunFolderError, match=r"another process is writing .*copy; wait for it, or stop it"),
    ):
        feduhb.retire(runs / "a", siblings=True)
    assert read_files(runs / "a") == before


def test_siblings_are_listed_and_taken_along(runs):
    """Copies, runs of other requests and trainings of the same data hold the leaver; comparisons do not."""
    trained = feduhb.open_run(runs / "a", federation())
    shutil.copytree(runs / "a", runs / "backup" / "of-a")
    other = unlearn(trained, "c02", runs / "other", audited=False, erase_history=False)
    unlearn(other, LEAVER, runs / "both", audited=False, erase_history=False)
    train(runs / "again", rounds=1)
    feduhb.train(federation("c00", "c02"), 1, epochs=1, out=runs / "unrelated", show=None)
    interrupted = runs / "unfinished"
    shutil.copytree(runs / "other", interrupted)
    (interrupted / "result.json").unlink()
    free = {name: read_files(runs / name) for name in ("b", "both", "unrelated", "a-compare")}
    holding = ["again", "backup/of-a", "other", "unfinished"]
    (tombstone,) = feduhb.retire(runs / "a")
    assert tombstone["holding"] == [f"../{name}" for name in holding]
    tombstones = feduhb.retire(runs / "a", siblings=True)
    assert tombstones[-1] == tombstone
    for name, taken in zip(holding, tombstones, strict=False):
        assert taken == json.loads((runs / name / "retired.json").read_text())
        assert taken["replaced_by"]["weights_sha256"] == tombstone["replaced_by"]["weights_sha256"]
        assert not [*(runs / name).rglob("*.safetensors")]
    assert {name: read_files(runs / name) for name in free} == free
    assert feduhb.retire(runs / "a", siblings=True) == [tombstone], "none is left"


def test_links_are_not_followed_and_strange_files_stay(runs, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(runs / "a" / "history", elsewhere)
    (runs / "a" / "history").symlink_to(elsewhere)
    (runs / "a" / "audit-work" / "deep").mkdir(parents=True)
    (runs / "a" / "audit-work" / "deep" / "out").symlink_to(runs / "b")
    (runs / "a" / "names.json").symlink_to(tmp_path / "nowhere")
    (runs / "a" / "model.pt").write_bytes(b"exported")
    (runs / "a" / "notes").mkdir()
    before, new = read_files(elsewhere), read_files(runs / "b")
    (runs / "link").symlink_to(runs / "a")
    (tombstone,) = feduhb.retire(runs / "link")
    assert read_files(elsewhere) == before
    assert read_files(runs / "b") == new
    assert {path.name for path in (runs / "a").iterdir()} == {*KEPT, "model.pt", "notes"}
    assert tombstone["left"] == ["model.pt", "notes"]
    links = {entry["name"]: entry["link"] for entry in tombstone["deleted"] if "link" in entry}
    assert links == {"history": str(elsewhere), "names.json": str(tmp_path / "nowhere")}


def test_a_new_run_inside_the_old_folder_is_refused(runs):
    shutil.move(runs / "b", runs / "a" / "history" / "b")
    with pytest.raises(RunFolderError, match=r"lies in .*a, which is to be deleted; move it away"):
        feduhb.retire(runs / "a", replaced_by=runs / "a" / "history" / "b")
    assert (runs / "a" / "history" / "b" / "state.safetensors").exists()


def test_an_interrupted_retirement_is_named_and_finished(runs, monkeypatch, capsys):
    def fail(path):
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fail)
        with pytest.raises(feduhb.FeduhbError, match="Input/output error"):
            feduhb.retire(runs / "a")
    with pytest.raises(RunFolderError, match=r"retiring .*a was interrupted; finish it: feduhb retire .*a"):
        feduhb.open_run(runs / "a", federation())
    assert not Ancestor.at(runs / "a").is_there
    unlearn(feduhb.open_run(runs / "b", federation()), "c02", runs / "c", audited=False)
    assert "retiring" in capsys.readouterr().err
    (tombstone,) = feduhb.retire(runs / "a")
    assert tombstone["finished"] is not None
    assert {path.name for path in (runs / "a").iterdir()} == KEPT


def test_a_damaged_tombstone_is_one_line(runs):
    (runs / "a" / "retired.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"retired.json is damaged; restore a backup"):
        feduhb.open_run(runs / "a", federation())
