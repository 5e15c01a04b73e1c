"""`feduhb.report(runs)`: a package that can be called, with runs or their folders."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path

import pytest

import feduhb
from feduhb.errors import RunFolderError

FILES = {"report.html", "table.md", "table.tex"}


@dataclass(frozen=True)
class Recorded:
    """What a report reads of a run."""

    folder: Path | None


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch):
    """The package, without the figures, which take most of a report's time."""
    found = importlib.import_module("feduhb.report")
    monkeypatch.setattr(found, "draw_figures", lambda views: {})  # noqa: ARG005
    return found


def test_it_is_a_function_and_a_package_whichever_way_it_was_imported(package):
    assert feduhb.report is package
    assert [*inspect.signature(feduhb.report).parameters] == ["runs", "out"]


@pytest.mark.slow
@pytest.mark.usefixtures("package")
def test_it_takes_runs_or_folders_one_or_several(folders, tmp_path: Path):
    written = feduhb.report(folders, out=tmp_path / "all")
    assert {path.name for path in written} == FILES
    assert all(path.is_file() for path in written)
    runs = {path.name: Recorded(path) for path in folders}
    for some in (runs, runs.values(), iter(folders), str(folders[0]), runs["train"]):
        assert feduhb.report(some, tmp_path / "some")


@pytest.mark.usefixtures("package")
def test_a_run_without_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"has no folder to report on; make it with out='runs/first'"):
        feduhb.report([Recorded(None)], tmp_path / "none")
    assert not (tmp_path / "none").exists()
