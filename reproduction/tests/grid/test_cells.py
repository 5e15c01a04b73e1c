"""Cells on disk: written whole, read back the same, refused when damaged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feduhb.errors import RunFolderError
from feduhb_reproduction.cells import Cell, Place, Track, read_cells, round_series

PLACE = Place(
    data="mnist", partition="dirichlet:0.1", per_client=525, backdoor=False, seed=3, clients=20, forget="c00,c01",
    rounds=2, epochs=5, batch_size=64, lr=0.005, momentum=0.9, scale=0.6, momenta=(0.5,), fedrecover={"warmup": 3},
)  # fmt: skip
TRACK = Track(
    series={"moved": (1.5, 0.25), "test_accuracy": (0.5, 0.75)}, settings={"momentum": 0.9}, exact=True,
    stopped="all 2 scheduled rounds were run", sums={"client_epochs": 180.0}, weights="ab" * 32,
    scores={"forgotten": 0.9},
)  # fmt: skip
CELL = Cell(
    place=PLACE, runs={"original": TRACK, "retrain": TRACK}, misr={"boosted trees": {"retrain": (0.5, 0.25)}},
    made={
        "command": "feduhb reproduce mnist", "commit": "abc", "engine": {"name": "pool"}, "device": "a computer",
        "finished": "2026-01-01", "alone": True,
    },
)  # fmt: skip


def test_a_cell_is_read_as_it_was_written(tmp_path):
    path = CELL.write(tmp_path / "cells")
    assert path.name == "dirichlet-0.1-525-s3.json"
    assert Cell.read(path) == CELL
    assert read_cells(tmp_path / "cells") == [CELL]
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half written beside it


def test_a_run_stands_on_a_line_of_its_own(tmp_path):
    lines = CELL.write(tmp_path).read_text().splitlines()
    assert sum(line.startswith('"retrain": {') for line in lines) == 1


def test_a_track_counts_its_rounds_and_has_no_series_it_lacks():
    assert TRACK.rounds == 2
    assert TRACK.of("moved") == (1.5, 0.25)
    assert TRACK.of("backdoor") == ()


@pytest.mark.parametrize("cut", [0, 1, 40, -3])
def test_a_damaged_cell_is_refused_with_the_way_out(tmp_path, cut):
    path = CELL.write(tmp_path)
    path.write_text(path.read_text()[:cut])
    with pytest.raises(RunFolderError, match=r"is damaged .* delete it, and feduhb reproduce makes the cell"):
        Cell.read(path)


def lost_seed(told):
    del told["place"]["seed"]


def lost_alone(told):
    del told["made"]["alone"]


def lost_sums(told):
    told["runs"]["retrain"]["sums"] = None


@pytest.mark.parametrize("damage", [lost_seed, lost_alone, lost_sums])
def test_a_cell_that_lacks_something_is_refused(tmp_path, damage):
    path = CELL.write(tmp_path)
    told = json.loads(path.read_text())
    damage(told)
    path.write_text(json.dumps(told))
    with pytest.raises(RunFolderError, match="is damaged"):
        read_cells(tmp_path)


def test_a_copy_under_another_name_counts_no_seed_twice(tmp_path):
    path = CELL.write(tmp_path)
    path.with_name("dirichlet-0.1-525-s3 (1).json").write_bytes(path.read_bytes())
    with pytest.raises(RunFolderError, match=r"\(1\).json holds the cell dirichlet-0.1-525-s3; .* delete it"):
        read_cells(tmp_path)


def test_federations_that_differ_have_names_that_differ():
    named = {"partition": "iid", "per_client": None, "backdoor": True, "seed": 4}
    names = {Place.from_json({**PLACE.as_json(), key: value}).name for key, value in named.items()}
    assert len(names | {PLACE.name}) == 5


@given(st.lists(st.floats(-1e6, 1e6), max_size=20))
def test_series_are_kept_to_six_digits(values):
    kept = round_series(values)
    assert kept == pytest.approx(values, rel=1e-5, abs=1e-300)
    assert all(
        len(f"{abs(value):.20g}".rstrip("0")) < 40 and value == float(f"{value:.6g}") for value in kept
    )
