"""The paper's numbers for λ, searched over windows and images per client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from feduhb.errors import RunFolderError
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.claims import searched
from feduhb_reproduction.claims.parts import CONDITIONS, FAILS, HOLDS, UNKNOWN, Judged
from feduhb_reproduction.search import KEPT, SIZES, read_search
from paper.judging import evidence, federation, rise, ruled

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"


def judged(top: float, *more: float, fires: bool = True) -> Judged:
    """Judge λ 0.6 by a grid with one final accuracy, and by searched federations with others."""
    grid = federation({"feduhb-on": ruled(rise(9, top), fires=fires)})
    other = [
        cell
        for n, final in enumerate(more, 1)
        for cell in federation({"feduhb-on": ruled(rise(9, final))}, per_client=100 * n)
    ]
    return searched.judge_printed(evidence(grid, searched=other), scale=0.6)


def test_the_papers_numbers_in_every_federation():
    assert (judged(0.93).verdict, judged(0.93).why) == (HOLDS, "")
    assert judged(0.93, 0.935).verdict == HOLDS


def test_without_a_search_nothing_follows_from_a_miss():
    far = judged(0.97)
    assert far.verdict == UNKNOWN
    assert far.why == (
        "the paper gives neither the window nor the images of a client, and other numbers of images were not searched; nearest: iid with a "
        "window of all rounds so far, 24.0 rounds and 97.0%; up to 3 rounds and 1 point away would count"
    )
    assert judged(0.93, fires=False).verdict == UNKNOWN
    assert searched.judge_printed(evidence(federation({}, data="cifar10")), scale=0.6).verdict == UNKNOWN


def test_a_search_that_finds_nothing_decides():
    none = judged(0.97, 0.98, 0.96)
    assert none.verdict == FAILS
    assert none.why == (
        "in none of 117 combinations of 3 federations (100 to 525 images a client) with a window of 2 rounds or more, or all so far; nearest: iid "
        "(200) with a window of all rounds so far, 24.0 rounds and 96.0%; up to 3 rounds and 1 point away would count"
    )
    assert "iid (100): 24.0 (98.0%)\niid (200): 24.0 (96.0%)\niid (525): 24.0 (97.0%)" in none.measured


def test_a_search_that_finds_it_names_the_federation_and_the_windows():
    some = judged(0.97, 0.93)
    assert some.verdict == CONDITIONS
    assert some.why.startswith(
        "for iid (100) with a window of all rounds so far, iid (100) with a window of "
    )
    assert "iid (525)" not in some.why


def test_the_stored_search_is_whole():
    cells = read_search(RESULTS / "search")
    found = {(cell.place.partition, cell.place.per_client, cell.place.seed) for cell in cells}
    assert len(found) == len(cells) == 4 * len(SIZES) * 5
    assert all(len(cell.runs["feduhb-on"].of(name)) == 40 for cell in cells for name in KEPT)


def test_the_search_agrees_with_the_grid_in_every_digit():
    """The check ran with the search, on places that the grid has too."""
    cells = read_search(RESULTS / "search" / "check")
    assert len(cells) == 4
    for cell in cells:
        stored = Cell.read(RESULTS / "paper" / "mnist" / "cells" / f"{cell.place.name}.json")
        assert all(cell.runs["feduhb-on"].of(name) == stored.runs["feduhb-on"].of(name) for name in KEPT)


def test_a_search_is_read_without_torch():
    code = f"import sys; from pathlib import Path; from feduhb_reproduction.search import read_search; read_search(Path({str(RESULTS / 'search')!r})); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_damaged_file_is_named(tmp_path):
    record = json.loads((RESULTS / "search" / "seed-0.json").read_text())
    del record["runs"][3]["moved"]
    (tmp_path / "seed-0.json").write_text(json.dumps(record))
    with pytest.raises(RunFolderError, match=r"seed-0\.json is damaged .*moved.*; make it again: python -m"):
        read_search(tmp_path)
    assert read_search(tmp_path / "none") == []
