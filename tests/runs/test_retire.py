"""`feduhb.retire` deletes a run that another run has replaced, and nothing else."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import feduhb
from feduhb.cli import app
from feduhb.errors import ConfigError, RequestError, RunFolderError
from feduhb.runs.folder import RunFolder
from feduhb.runs.lineage import Ancestor, read_ancestors, write_lineage
from feduhb.runs.retire import plan_retirement
from feduhb.runs.siblings import list_data
from runs.retiring import LEAVER, draw, federation, read_files, train, unlearn

KEPT = {"retired.json", "lineage.json", "erased.json", ".lock"}


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


def train_other(folder: Path, *names: str) -> Path:
    """Train other data with another seed; by default a client has the leaver's name."""
    clients = {name: draw(f"other {name}", 20) for name in names or (LEAVER, "zz")}
    other = feduhb.Federation(clients, draw("other", 20), torch.nn.Linear(6, 3), seed=77)
    feduhb.train(other, 1, epochs=1, out=folder, show=None)
    return folder


def invoke(*arguments: object) -> tuple[int, str]:
    """Run a command; return its exit status and what it printed."""
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    return ended.exit_code, ended.output


def refuse(monkeypatch: pytest.MonkeyPatch, operation: str, place: Path) -> None:
    """Let the file system refuse to list a folder, or to read anything in it."""
    real = {name: getattr(Path, name) for name in ("iterdir", "stat", "open")}

    def is_refused(name: str, path: Path) -> bool:
        return path == place if name == "iterdir" else operation == "stat" and place in path.parents

    def ask(name: str, path: Path, *args, **options):
        if is_refused(name, path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real[name](path, *args, **options)

    for name in real:
        monkeypatch.setattr(
            Path, name, lambda path, *args, _name=name, **options: ask(_name, path, *args, **options)
        )


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


def test_it_refuses_a_run_that_has_only_a_clients_name_in_common(runs, tmp_path):
    other = train_other(tmp_path / "elsewhere" / "other")
    before = read_files(other)
    with pytest.raises(
        RequestError, match=r"b did not come from .*other and was not trained on the same data"
    ):
        feduhb.retire(other, replaced_by=runs / "b")
    assert read_files(other) == before


def test_a_second_training_on_the_same_data_is_replaced_too(runs):
    train(runs / "again", rounds=1)
    (tombstone,) = feduhb.retire(runs / "again", replaced_by=runs / "b")
    assert (tombstone["leavers"], tombstone["replaced_by"]["run"]) == (LEAVER, "../b")


def test_it_refuses_a_new_run_that_knows_what_the_old_one_had_forgotten(runs):
    trained = feduhb.open_run(runs / "a", federation())
    unlearn(trained, "c02", runs / "b2", audited=False, erase_history=False)
    words = r"b2 has forgotten c02, and .*b has not, so it would bring c02 back; name a run that has forgotten c01,c02"
    before = read_files(runs)
    with pytest.raises(RequestError, match=words):
        feduhb.retire(runs / "b2", replaced_by=runs / "b")
    assert read_files(runs) == before


def test_of_two_runs_that_could_replace_it_one_must_be_named(runs):
    trained = feduhb.open_run(runs / "a", federation())
    unlearn(trained, "c02", runs / "b2", audited=False, allow_revival=True)
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


def test_a_run_with_a_leavers_name_may_hold_it_and_is_deleted_only_if_named(runs):
    """The copy of the leaver's data differs by one example here, and elsewhere may be somebody else's."""
    changed = federation()
    x, y = changed.clients[LEAVER].all()
    changed = changed.replace(clients={**changed.clients, LEAVER: (x[1:], y[1:])})
    feduhb.train(changed, 1, epochs=1, out=runs / "changed", show=None)
    train_other(runs / "other")
    before = read_files(runs / "other")
    first = feduhb.retire(runs / "a", siblings=True)
    assert (first[0]["holding"], first[0]["may_hold"]) == ([], ["../changed", "../other"])
    assert RunFolder(runs / "changed").is_finished()
    for strange in (runs / "b", runs / "nowhere"):
        with pytest.raises(RequestError, match="is not among the folders that hold or may hold c01"):
            feduhb.retire(runs / "a", also=[strange])
    taken = feduhb.retire(runs / "a", also=[runs / "changed"])
    assert taken[-1] == first[0]
    assert taken[0]["finished"] is not None
    assert not (runs / "changed" / "state.safetensors").exists()
    assert feduhb.retire(runs / "a", also=[runs / "changed"]) == first, "a repeated call changes nothing"
    assert read_files(runs / "other") == before


def test_a_registered_name_is_a_name_too(runs):
    (runs / "a" / "names.json").write_text(json.dumps({LEAVER: "clinic"}))
    other = train_other(runs / "other", "key-1", "zz")
    assert feduhb.retire(runs / "a")[0]["may_hold"] == []
    (runs / "b" / "names.json").write_text(json.dumps({LEAVER: "clinic"}))
    (other / "names.json").write_text(json.dumps({"key-1": "clinic", "zz": ""}))
    assert plan_retirement(runs / "a").may_hold == (other,)


def test_a_class_may_be_held_by_every_client(runs):
    trained = feduhb.open_run(runs / "a", federation())
    unlearn(trained, "class:2", runs / "c", audited=False, allow_revival=True)
    train_other(runs / "other", "c00")
    train_other(runs / "stranger", "zz")
    (tombstone,) = feduhb.retire(runs / "a", replaced_by=runs / "c", unaudited="a test")
    assert tombstone["may_hold"] == ["../other"]


@pytest.mark.parametrize("name", ["named", "listed"])
def test_a_folder_that_holds_another_run_now_is_not_deleted(runs, name):
    """Lineage and tombstones name folders, and a folder can be used again."""
    place = runs / name
    if name == "named":
        write_lineage(runs / "a", [], ["../b", f"../{name}"])
    else:
        shutil.copytree(runs / "a", place)
        assert feduhb.retire(runs / "a")[0]["holding"] == [f"../{name}"]
        shutil.rmtree(place)
    before = read_files(train_other(place))
    tombstones = feduhb.retire(runs / "a", siblings=True)
    assert len(tombstones) == 1
    assert read_files(place) == before


def test_what_an_audit_left_is_listed_and_deleted_with_the_siblings(runs):
    """The new run and a run that has forgotten the leaver too keep everything else."""
    owners = [runs / "a-compare" / "retrain", runs / "b"]
    untouched = {owner: read_files(owner) for owner in owners}
    for owner in owners:
        shutil.copytree(runs / "a", owner / "audit-work" / "original")
    shutil.copytree(runs / "a", runs / "evidence" / "audit-work" / "original")  # by audit(out="evidence")
    left = ["../a-compare/retrain/audit-work", "../b/audit-work", "../evidence/audit-work"]
    inside = read_files(runs / "b" / "audit-work")
    (tombstone,) = feduhb.retire(runs / "a")
    assert tombstone["holding"] == left
    assert read_files(runs / "b" / "audit-work") == inside
    with (
        RunFolder(runs / "b").claim(),
        pytest.raises(RunFolderError, match=r"another process is writing .*b; wait for it, or stop it"),
    ):
        feduhb.retire(runs / "a", siblings=True)
    assert read_files(runs / "b" / "audit-work") == inside
    (later,) = feduhb.retire(runs / "a", siblings=True)
    assert later == json.loads((runs / "a" / "retired.json").read_text())
    entries = [entry for entry in later["deleted"] if entry not in tombstone["deleted"]]
    assert [entry["name"] for entry in entries] == left
    assert entries[1]["bytes"] == sum(map(len, inside.values()))
    assert all(entry["when"] >= tombstone["finished"] for entry in entries)
    assert {**later, "deleted": tombstone["deleted"]} == tombstone
    assert {owner: read_files(owner) for owner in owners} == untouched
    assert not [*runs.rglob("audit-work")]
    assert feduhb.retire(runs / "a", siblings=True) == [later], "none is left"


def test_siblings_are_retired_after_the_new_run_was_itself_replaced(chain):
    shutil.copytree(chain / "a", chain / "copy")
    feduhb.retire(chain / "a", replaced_by=chain / "b")
    feduhb.retire(chain / "b")
    new = read_files(chain / "c")
    tombstone, _ = feduhb.retire(chain / "a", siblings=True)
    assert (tombstone["leavers"], tombstone["replaced_by"]["run"]) == (LEAVER, "../c")
    assert tombstone["replaced_by"]["weights_sha256"] == RunFolder(chain / "c").result()["weights_sha256"]
    assert not (chain / "copy" / "state.safetensors").exists()
    assert read_files(chain / "c") == new


def test_siblings_stay_while_the_new_run_is_away(runs):
    shutil.copytree(runs / "a", runs / "copy")
    feduhb.retire(runs / "a")
    shutil.move(runs / "b", runs / "moved")
    with pytest.raises(
        RunFolderError, match=r"b, which replaced .*a, is not there any more, .*; move it back"
    ):
        feduhb.retire(runs / "a", siblings=True)
    assert RunFolder(runs / "copy").is_finished()


def test_a_tombstone_of_an_earlier_version_is_read(runs):
    shutil.copytree(runs / "a", runs / "copy")
    (tombstone,) = feduhb.retire(runs / "a")
    earlier = {key: tombstone[key] for key in tombstone if key not in ("may_hold", "siblings_sha256")}
    (runs / "a" / "retired.json").write_text(json.dumps(earlier))
    taken = feduhb.retire(runs / "a", siblings=True)
    assert taken[-1] == earlier
    assert not (runs / "copy" / "state.safetensors").exists()


def test_the_field_remote_says_that_a_config_has_no_data(tmp_path):
    clients = '[train]\n[clients]\nc00 = "{}"\n'
    for text, found in (
        ("remote = true\n" + clients.format("0 rows forgotten"), {}),
        (clients.format("remote, 0 rows forgotten"), {}),  # of a version without the field
        (clients.format("24 abc"), {"c00": "24 abc"}),
    ):
        (tmp_path / "config.toml").write_text(text)
        assert list_data(tmp_path) == found


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


@pytest.mark.parametrize(
    "how", ["locked", "not listed", "locked, no successor", "tombstone", "config", "rounds", "lineage"]
)
def test_a_neighbour_that_cannot_be_read_is_named_and_stops_nothing(runs, monkeypatch, how):
    """The tests may run as root, whom no permission stops, so the file system's refusals are patched in."""
    place = runs / "else"
    train_other(place, "zz")
    if how in {"locked", "not listed", "locked, no successor"}:
        refuse(monkeypatch, "iterdir" if how == "not listed" else "stat", place)
    if how == "not listed":
        (place / "config.toml").unlink()  # else it is a run, and nobody lists it
    elif how == "locked, no successor":  # the search for the new run meets the folder too
        write_lineage(runs / "a", [], [])
    elif how == "tombstone":
        (place / "retired.json").write_text("{}")
    elif how != "locked":
        name = {"config": "config.toml", "rounds": "rounds.jsonl", "lineage": "lineage.json"}[how]
        (place / name).write_text("[\n")
    shutil.copytree(runs / "a", runs / "z-copy")
    code, text = invoke("retire", runs / "a")
    assert code == 0, text
    assert f"could not be read, so they may hold {LEAVER} too: {place}; look at each yourself" in text
    tombstone = json.loads((runs / "a" / "retired.json").read_text())
    assert (tombstone["unread"], tombstone["holding"]) == (["../else"], ["../z-copy"])
    assert tombstone["may_hold"] == []
    code, text = invoke("retire", runs / "a", "--siblings", "--yes", "--json")
    assert code == 0, text
    answer = json.loads(text)
    assert (answer["unread"], answer["holding"]) == ([str(place)], [])
    assert not (runs / "z-copy" / "state.safetensors").exists()


def test_a_listed_or_named_folder_that_cannot_be_read_any_more_is_named(runs, monkeypatch):
    copy = shutil.copytree(runs / "a", runs / "deep" / "er" / "copy")
    write_lineage(runs / "a", [], ["../b", "../deep/er/copy"])
    assert feduhb.retire(runs / "a")[0]["holding"] == ["../deep/er/copy"]
    write_lineage(runs / "a", [], [])
    refuse(monkeypatch, "stat", copy)
    plan = plan_retirement(runs / "a")
    assert (plan.holding, plan.may_hold, plan.unread) == ((), (), (copy,))
    write_lineage(runs / "a", [], ["../b", "../deep/er/copy"])
    assert plan_retirement(runs / "a").unread == (copy,)
