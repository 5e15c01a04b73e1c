"""The files of a report: which there are, that they are written whole, and what may be imported for them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import feduhb.report
from feduhb.errors import FeduhbError, RunFolderError, StorageError
from feduhb.report import write_report
from report.audits import attack, audit, put
from report.folders import series, story, write

pytestmark = pytest.mark.slow

TEXTS = ["report.html", "table.md", "table.tex", "audit.md", "audit.tex"]
FIGURES = [
    f"{name}.{kind}"
    for name in (
        "overview",
        "curves",
        "movement",
        "backdoor",
        "work",
        "stop-map",
        "lambda",
        "audit",
        "clients",
    )
    for kind in ("png", "pdf")
]
ALLOWED = tuple(
    f"feduhb.{name}"
    for name in (
        "audit.pooling",
        "audit.result",
        "batching",
        "runs.files",
        "runs.folder",
        "runs.scores",
        "stopping",
        "errors",
        "report",
    )
)
# What importing the report loads, and what writing one does.
WRITE = """
import sys, feduhb.report
heavy = {'jinja2', 'matplotlib', 'rich', 'torch'} & set(sys.modules)
assert not heavy, heavy
feduhb.report.write_report(sys.argv[2:], sys.argv[1])
late = {'torch', 'matplotlib.pyplot'} & set(sys.modules)
assert not late, late
"""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = story(tmp_path_factory.mktemp("runs"))
    put(folders[1], audit())
    return folders


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of a report's time."""
    monkeypatch.setattr("feduhb.report.draw_figures", lambda views: {})  # noqa: ARG005


def test_a_report_is_whole_and_repeatable_and_needs_neither_torch_nor_pyplot(audited, tmp_path: Path):
    out = tmp_path / "deep" / "report"
    paths = write_report(audited, out)
    assert [path.name for path in paths] == TEXTS + FIGURES
    assert sorted(path.name for path in out.iterdir()) == sorted(TEXTS + FIGURES)
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".html": b"<!doctype html>"}
    for path in paths:
        assert path.read_bytes().startswith(starts.get(path.suffix, b"")), path.name
        assert path.stat().st_size > 0, path.name
    assert "| FedUHB | forgotten | bit for bit |" in (out / "audit.md").read_text()
    command = [sys.executable, "-W", "error", "-c", WRITE, str(tmp_path / "again"), *map(str, audited)]
    env = {**os.environ, "MPLBACKEND": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    for path in paths:
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


@pytest.mark.usefixtures("undrawn")
def test_notes_stand_beside_the_tables(tmp_path: Path):
    runs = [write(tmp_path / f"{s}", "feduhb", series(3), seed=s) for s in (1, 2)]
    _, markdown, latex = write_report(runs, tmp_path / "out")
    assert markdown.read_text().endswith("\nDifferent seeds: 1; 2.\n")
    assert latex.read_text().startswith("% Different seeds: 1; 2.\n")


@pytest.mark.usefixtures("undrawn")
def test_names_in_notes_and_audits_stay_text(tmp_path: Path):
    hostile = "[x](https://e.vil)|`<b>\n# head"
    told = audit(verdict={"word": "useless", "reasons": [hostile]}, membership=[attack(hostile, hostile)])
    folder = put(
        write(tmp_path / "u", "m", series(3), changes={"exact": False, "method": f"# {hostile}"}), told
    )
    written = {path.name: path.read_text() for path in write_report([folder], tmp_path / "out")}
    escaped = r"\[x\](https\://e.vil)\|\`\<b\>"
    for name in ("table.md", "audit.md"):
        assert escaped in written[name]
        assert "](https" not in written[name].replace(r"\]", "")
        assert "<b>" not in written[name]
        assert not [line for line in written[name].splitlines() if line.startswith("# ")], name
    assert rf"\# {escaped}?# head is approximate" in written["table.md"]
    for name in ("table.tex", "audit.tex"):
        for line in filter(None, written[name].split("\n")):
            assert line.startswith(("% ", "\\")) or " & " in line, "a line break leaves no comment"


@pytest.mark.usefixtures("undrawn")
def test_a_folder_whose_name_is_not_text_can_be_reported(tmp_path: Path):
    runs = [write(tmp_path / f"odd\udcff{i}", "feduhb", series(3)) for i in range(2)]
    page = write_report(runs, tmp_path / "out")[0].read_text()
    assert "FedUHB (odd?0)" in page


def test_a_run_that_cannot_be_read_leaves_no_report(folders, tmp_path: Path):
    with pytest.raises(RunFolderError):
        write_report([*folders, tmp_path / "nowhere"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_place_that_cannot_be_written_is_named(folders, tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(
        StorageError, match=r"cannot write the report into .*taken: File exists; choose another folder"
    ):
        write_report(folders, tmp_path / "taken")
    assert issubclass(StorageError, FeduhbError)


def test_the_package_imports_only_what_it_may():
    home = Path(feduhb.report.__file__).parent
    for file in home.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, file
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] != "torch", file
                assert not name.startswith("feduhb") or name.startswith(ALLOWED), (file, name)


def test_what_other_reports_use_is_public():
    for name in feduhb.report.__all__:
        assert hasattr(feduhb.report, name), name
