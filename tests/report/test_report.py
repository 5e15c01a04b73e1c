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
from report.audits import audit, put
from report.folders import series, write

NAMES = ["report.html", "table.md", "table.tex"]
FIGURES = [
    f"{name}.{kind}"
    for name in ("overview", "curves", "movement", "backdoor", "stop-map", "lambda")
    for kind in ("png", "pdf")
]
ALLOWED = ("feduhb.audit.result", "feduhb.runs.folder", "feduhb.stopping", "feduhb.errors", "feduhb.report")


def test_a_report_is_written_whole(folders, tmp_path: Path):
    out = tmp_path / "deep" / "report"
    paths = write_report(folders, out)
    assert [path.name for path in paths] == NAMES + FIGURES
    assert sorted(path.name for path in out.iterdir()) == sorted(NAMES + FIGURES)
    assert all(path.stat().st_size > 0 for path in paths)


def test_an_audit_adds_its_tables_and_figures(folders, tmp_path: Path):
    put(folders[1], audit())
    paths = write_report(folders, tmp_path / "out")
    added = ["audit.png", "audit.pdf", "clients.png", "clients.pdf"]
    assert [path.name for path in paths] == [*NAMES, "audit.md", "audit.tex", *FIGURES, *added]
    assert "| FedUHB | forgotten | bit for bit |" in (tmp_path / "out" / "audit.md").read_text()


def test_a_sweep_adds_its_figure(tmp_path: Path):
    told = [{"settings": {"momentum": beta}} for beta in (0.0, 0.9)]
    runs = [write(tmp_path / f"{i}", "feduhb", series(4), changes=each) for i, each in enumerate(told)]
    assert {"beta.png", "beta.pdf"} <= {path.name for path in write_report(runs, tmp_path / "out")}


def test_the_same_runs_give_the_same_report(folders, tmp_path: Path):
    put(folders[1], audit())
    once, again = (write_report(folders, tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]


def test_notes_stand_beside_the_tables(tmp_path: Path):
    runs = [write(tmp_path / f"{s}", "feduhb", series(3), seed=s) for s in (1, 2)]
    _, markdown, latex, *_ = write_report(runs, tmp_path / "out")
    assert markdown.read_text().endswith("\nThese runs have different seeds: 1; 2.\n")
    assert latex.read_text().startswith("% These runs have different seeds: 1; 2.\n")


def test_a_folder_whose_name_is_no_text_can_be_reported(tmp_path: Path):
    runs = [write(tmp_path / f"odd\udcff{i}", "feduhb", series(3)) for i in range(2)]
    page = write_report(runs, tmp_path / "out")[0].read_text()
    assert "FedUHB (odd?0)" in page


def test_a_run_that_cannot_be_read_leaves_no_report(folders, tmp_path: Path):
    with pytest.raises(RunFolderError):
        write_report([*folders, tmp_path / "nowhere"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_told_in_words(folders, tmp_path: Path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(
        StorageError, match=r"cannot write the report into .*taken: File exists; choose another folder"
    ):
        write_report(folders, tmp_path / "taken")
    assert issubclass(StorageError, FeduhbError)


def test_importing_and_reporting_leaves_torch_and_pyplot_out(folders, tmp_path: Path):
    code = (
        "import sys, feduhb.report\n"
        "heavy = {'matplotlib', 'plotly', 'rich', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "feduhb.report.write_report(sys.argv[2:], sys.argv[1])\n"
        "late = {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
        "assert not late, late\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "out"), *map(str, folders)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "MPLBACKEND": ""}
    )
    assert done.returncode == 0, done.stderr


def test_the_room_imports_only_what_it_may():
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
