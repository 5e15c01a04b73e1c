from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from feduhb.errors import RunFolderError
from feduhb_reproduction.cells import Cell, read_cells
from feduhb_reproduction.report import summarise, write_paper
from feduhb_reproduction.tables import make_tables
from paper.cells import cell, failing, grid, place

pytestmark = pytest.mark.slow


def put(cells: list[Cell], folder: Path) -> Path:
    for each in cells:
        each.write(folder / "cells")
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A report on two cells, written by a process that must not import torch."""
    folder = put([cell(), cell(place(backdoor=True))], tmp_path_factory.mktemp("report"))
    code = f"import sys; from feduhb_reproduction.report import write_paper; write_paper({str(folder)!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    return folder


def test_tables_and_figures_are_written_beside_the_cells(report: Path):
    figures = {"curves-525", "forgetting", "lambda-525"}
    pictures = {f"{name}.{kind}" for name in figures for kind in ("png", "pdf")}
    tables = {"tables.md", "summary.json", "table-1.tex"}
    assert {path.name for path in report.iterdir()} == {"cells", *tables, *pictures}
    assert (report / "curves-525.png").read_bytes().startswith(b"\x89PNG")
    assert (report / "curves-525.pdf").read_bytes().startswith(b"%PDF")
    text = (report / "tables.md").read_text(encoding="utf-8")
    assert text.startswith(
        "## What was run\n\nThe cells were made by `feduhb reproduce mnist`.\n\n| federation |"
    )
    found = json.loads((report / "summary.json").read_text(encoding="utf-8"))
    assert found == json.loads(json.dumps(summarise(read_cells(report / "cells"))))


def test_cells_read_back_give_the_same_numbers(tmp_path: Path):
    cells = [cell(place(seed=seed)) for seed in (0, 1)]
    assert summarise(read_cells(put(cells, tmp_path) / "cells")) == summarise(cells)


def test_no_cells_are_an_error_that_says_what_makes_them(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"no finished cell in .*cells; feduhb reproduce makes them"):
        write_paper(tmp_path)


def test_a_report_that_fails_leaves_the_old_one_whole(tmp_path: Path):
    folder = put([cell(), cell(place("shards:2", rounds=20))], tmp_path)
    (folder / "tables.md").write_text("old")
    with pytest.raises(RunFolderError, match="different experiments"):
        write_paper(folder)
    assert {path.name for path in folder.iterdir()} == {"cells", "tables.md"}
    assert (folder / "tables.md").read_text() == "old"


def test_the_summary_has_every_number_and_is_json():
    cells = grid(["iid", "dirichlet:0.5"], [525], range(2))
    found = json.loads(json.dumps(summarise(cells), allow_nan=False))
    assert found["data"] == "mnist"
    assert list(found["federations"]) == ["iid-525", "dirichlet-0.5-525", "iid-525-backdoor"]
    swept = found["federations"]["dirichlet-0.5-525"]
    uhb = swept["runs"]["feduhb"]
    assert uhb["rounds"] == {"mean": 24.0, "sd": 0.0, "n": 2, "values": [24.0, 24.0]}
    assert uhb["seconds"]["total"]["mean"] == 48.0
    assert swept["momenta"]["0.9"] == "feduhb-on"
    assert swept["steps"]["2"] == "step-2"
    assert swept["lambda"]["0.6"]["all so far"]["fires"] == 2
    assert swept["ablation"]["β 0.9, with the rule"]["rounds"]["mean"] == 24.0
    assert swept["runs"]["retrain"]["reaches_retrain"]["n"] == 2
    planted = found["federations"]["iid-525-backdoor"]
    assert planted["runs"]["original"]["asr"]["mean"] == pytest.approx(0.92)
    assert planted["runs"]["original"]["misr"]["boosted trees"]["on_test"]["mean"] == 0.45


def test_the_summary_tells_what_broke_off():
    found = summarise([failing(cell(), "fedrecover")])["federations"]["iid-525"]["runs"]["fedrecover"]
    assert found["failed"] == {0: "the model was not finite in round 5"}
    assert found["test_accuracy"]["n"] == 0
    assert found["seconds"] is None


def test_the_summary_of_other_data_has_no_goal_of_the_papers():
    run = summarise([cell(place(data="cifar10"))])["federations"]["iid-525"]["runs"]["feduhb"]
    assert run["reaches_goal"] is None
    assert run["reaches_retrain"]["n"] == 1
    assert summarise([]) == {"data": None, "federations": {}}


def test_a_cell_without_attackers_scores_or_seconds_has_fewer_tables():
    plain = cell(alone=False)
    bare = replace(plain, misr={}, runs={name: replace(run, scores={}) for name, run in plain.runs.items()})
    assert set(make_tables([plain])) - set(make_tables([bare])) == {"misr"}
    assert "table-1" not in make_tables([bare])
