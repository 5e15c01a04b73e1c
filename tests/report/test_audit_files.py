from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from feduhb.audit.result import Audit, Word, read_audit
from feduhb.errors import RunFolderError
from feduhb.report.runs import read_runs
from report.audits import attack, audit, bare, put
from report.folders import series, write

DEMO = Path(__file__).parents[2] / "results" / "audit-demo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", "feduhb", series(4))


def changed(told: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The audit with one field, named by its path, exchanged."""
    part: Any = told
    *above, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in above:
        part = part[key]
    part[last] = value
    return told


def test_a_run_without_an_audit_has_none(folder: Path):
    assert read_audit(folder) is None
    assert read_runs([folder])[0].audit is None
    assert not read_runs([folder])[0].audited


def agrees(found: object, told: object) -> bool:
    """Whether everything that a file tells is in what was read, a missing value being null."""
    if isinstance(told, dict):
        return isinstance(found, dict) and all(agrees(found[key], value) for key, value in told.items())
    if isinstance(told, list):
        return isinstance(found, list) and all(map(agrees, found, told)) and len(found) == len(told)
    return found == told


def as_told(found: Audit | None) -> dict[str, Any]:
    assert found is not None
    return json.loads(found.to_json())


def test_an_audit_is_read_as_it_is(folder: Path):
    view = read_runs([put(folder, audit())])[0]
    assert agrees(as_told(view.audit), audit())
    assert view.audited


def test_what_is_written_is_read_again(folder: Path):
    found = read_audit(put(folder, audit()))
    assert found is not None
    assert Audit.from_json(found.to_json()) == found
    assert str(found).startswith("feduhb without c00,c01: FORGOTTEN")


def test_what_older_versions_said_in_words_becomes_fields(folder: Path):
    names = (
        "all forgotten data",
        "canaries",
        "all forgotten data, in a rehearsal",
        "canaries, in a rehearsal",
    )
    found = read_audit(put(folder, audit(membership=[attack(on=on) for on in names])))
    assert found is not None
    kinds = [(one.canaries, one.rehearsal) for one in found.membership]
    assert kinds == [(False, False), (True, False), (False, True), (True, True)]
    said = read_audit(put(folder, audit(membership=[attack() | {"canaries": False, "rehearsal": True}])))
    assert said is not None
    assert (said.membership[0].canaries, said.membership[0].rehearsal) == (False, True)


@pytest.mark.parametrize("path", sorted(DEMO.glob("*.json")), ids=lambda path: path.stem)
def test_audits_of_an_earlier_version_are_read(path: Path):
    text = path.read_text()
    found = Audit.from_json(text)
    assert agrees(json.loads(found.to_json()), json.loads(text))
    assert [one.canaries for one in found.membership] == [one.on == "canaries" for one in found.membership]


def test_audits_without_a_paired_test_and_a_forecast_are_read(folder: Path):
    """Version 0.1.0 wrote neither."""
    told = {key: value for key, value in audit().items() if key != "forecast"}
    old = [
        {key: value for key, value in one.items() if key != "against_retrain"} for one in told["membership"]
    ]
    found = read_audit(put(folder, {**told, "membership": old}))
    assert found is not None
    assert found.forecast == ()
    assert [one.against_retrain for one in found.membership] == [None] * len(old)
    assert "AUC(audited) - AUC(Retrain)" not in str(found)
    assert "AUC(audited) - AUC(Retrain), paired: +0.008 [-0.018, +0.034]" in str(
        read_audit(put(folder, audit()))
    )


@pytest.mark.parametrize("word", get_args(Word))
def test_every_verdict_is_known(folder: Path, word: str):
    told = read_audit(put(folder, audit(word)))
    assert told is not None
    assert told.verdict.word == word


def test_a_bare_audit_is_whole(folder: Path):
    assert agrees(as_told(read_audit(put(folder, bare()))), bare())


def test_distances_may_be_missing_where_targets_are_no_labels(folder: Path):
    found = read_audit(put(folder, bare() | {"distance": {}}))
    assert found is not None
    assert found.distance == {}


def test_keys_that_are_not_known_are_left_alone(folder: Path):
    assert read_audit(put(folder, audit(weather="fine"))) is not None


def test_an_audit_of_other_weights_is_not_the_runs(folder: Path):
    view = read_runs([put(folder, audit(weights_sha256="cd" * 32))])[0]
    assert view.audit is not None
    assert not view.audited


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("verdict/word", "erased", 'the audit, verdict, word is "erased"'),
        ("verdict/reasons", "because", 'the audit, verdict, reasons is "because"'),
        ("verdict/reasons/0", 3, "the audit, verdict, reasons 1 is 3"),
        ("exact", "yes", 'the audit, exact is "yes"'),
        ("exactness/checks/1/identical", None, "the audit, exactness, checks 2, identical is null"),
        ("membership", None, "the audit, membership is null"),
        ("membership/0/verdict", "forgotten", 'the audit, membership 1, verdict is "forgotten"'),
        ("membership/1/models/retrain/auc", "0.5", 'the audit, membership 2, models, retrain, auc is "0.5"'),
        ("membership/0/models/original/interval/high", True, "models, original, interval, high is true"),
        ("membership/0/models/original/members", 1.5, "models, original, members is 1.5"),
        ("misr/attackers/boosted trees/original", {}, "boosted trees, original, misr is null"),
        ("backdoor/difference/low", None, "the audit, backdoor, difference, low is null"),
        ("accuracy/retrain", 0.9, "the audit, accuracy, retrain is 0.9"),
        ("clients/rows/2/client", 7, "the audit, clients, rows 3, client is 7"),
        ("relearn/most", "ten", 'the audit, relearn, most is "ten"'),
        ("cost/original/seconds", [], "the audit, cost, original, seconds is []"),
        ("notes", "one", 'the audit, notes is "one"'),
        ("weights_sha256", None, "the audit, weights_sha256 is null"),
        ("accuracy", {}, "the audit, accuracy lacks original"),
        ("membership/0/models", {}, "the audit, membership 1, models lacks original"),
    ],
)
def test_a_damaged_part_is_refused_in_words(folder: Path, path: str, value: object, said: str):
    put(folder, changed(audit(), path, value))
    with pytest.raises(RunFolderError) as refused:
        read_runs([folder])
    assert said in str(refused.value)
    assert str(refused.value).endswith(f"delete it and audit the run again: feduhb audit {folder}")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", json.dumps(audit()).replace("61.2", "NaN"), json.dumps(audit()).replace("61.2", "Infinity")],
)  # fmt: skip
def test_a_file_that_is_no_audit_is_refused(folder: Path, text: str):
    (folder / "audit.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"audit\.json .*delete it and audit the run again"):
        read_runs([folder])


def test_a_file_that_is_no_text_is_refused(folder: Path):
    (folder / "audit.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunFolderError, match="cannot be read: it is not complete JSON"):
        read_audit(folder)


def test_a_folder_in_its_place_is_refused(folder: Path):
    (folder / "audit.json").mkdir()
    with pytest.raises(RunFolderError, match="cannot be read: Is a directory"):
        read_audit(folder)


def test_a_self_test_may_be_missing_but_not_odd(folder: Path):
    put(folder, audit(membership=[attack() | {"self_test": {"auc": 0.7}}]))
    with pytest.raises(RunFolderError, match="membership 1, self_test, se is null"):
        read_audit(folder)
