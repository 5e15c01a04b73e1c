"""Whatever has the name audit.json is read as an audit, or refused in words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feduhb.audit.result import read_audit
from feduhb.errors import RunFolderError
from report.audits import audit


def write_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        values = audit()
        change(values)
        path.write_text(json.dumps(values))

    return write


def rename_model(values: dict[str, Any]) -> None:
    values["accuracy"]["mine"] = values["accuracy"]["original"]


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (Path.mkdir, "Is a directory"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "nested": (lambda path: path.write_text("[" * 100_000 + "]" * 100_000), "it is nested too deeply"),
    "not UTF-8": (lambda path: path.write_bytes(b"\xff\xfe{}"), "it is not complete JSON"),
    "cut short": (lambda path: path.write_text('{"method":'), "it is not complete JSON"),
    "a list": (lambda path: path.write_text("[]"), r"the audit is \[\]"),
    "infinite": (write_with(lambda values: values.update(seconds=float("1e999"))), "it is not complete JSON"),
    "a long number": (lambda path: path.write_text(f"[{'9' * 400}]"), "a number has 400 digits"),
    "another model": (write_with(rename_model), "the audit, accuracy has a model 'mine'"),
    "a missing key": (write_with(lambda values: values.pop("verdict")), "the audit, verdict is null"),
    "a link to itself": (lambda path: path.symlink_to(path), "symbolic links"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused_in_words(tmp_path, kind):
    write, words = HOSTILE[kind]
    write(tmp_path / "audit.json")
    with pytest.raises(RunFolderError, match=words) as refusal:
        read_audit(tmp_path)
    assert "delete it and audit the run again" in str(refusal.value)


def test_no_file_is_no_audit(tmp_path):
    assert read_audit(tmp_path) is None
    assert read_audit(tmp_path / "missing") is None
