"""What docs/reproduction.py says of settings that the paper leaves open: read from the cells, not typed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from feduhb_reproduction import pages
from feduhb_reproduction.cells import Cell
from paper.cells import cell, place

SETTINGS = {
    "fedrecover": {"warmup": 7, "final": 3, "buffer": 2, "correction": 0},
    "fedrecover-corrected": {"warmup": 7, "final": 3, "buffer": 2, "correction": 9},
    "federaser": {"interval": 4, "ratio": 0.25},
}


@pytest.fixture
def script():
    return pages


def made(root: Path, *cells: Cell) -> Path:
    for each in cells:
        each.write(root / "results" / "paper" / "mnist" / "cells")
    return root


def told(**where: object) -> Cell:
    whole = cell(place(**where))  # pyright: ignore[reportArgumentType]
    return replace(
        whole, runs={name: replace(run, settings=SETTINGS.get(name, {})) for name, run in whole.runs.items()}
    )


def test_settings_that_the_paper_leaves_open_are_those_of_the_cells(script, tmp_path):
    text = script.page(made(tmp_path, told()))
    assert "Here they are T_w 7, T_f 3, s 2 and, where it is corrected, T_c 9; Δt 4 and r 0.25." in text
    assert "2 classes a client on MNIST" not in text


def test_cells_that_say_no_settings_leave_the_sentence_out(script, tmp_path):
    text = script.page(made(tmp_path, cell()))
    assert "gives neither FedRecover's T_w, T_f and s nor FedEraser's Δt and r." in text
    assert "Here they are T_w" not in text


def test_all_images_in_place_of_3000_are_explained(script, tmp_path):
    text = script.page(made(tmp_path, told(), told(partition="shards:2", per_client=None)))
    assert "- **2 classes a client on MNIST** stand with 525 images a client and with all images" in text


def test_versions_say_where_feduhb_ran_from_its_source_tree(script, tmp_path):
    installed, bare = cell(), cell(place(seed=1))
    assert "Versions: feduhb 0.1.0 and torch 2.13.0." in script.page(made(tmp_path / "a", installed))
    told = {**bare.made, "versions": {"feduhb": "not installed", "torch": "2.13.0"}}
    text = script.page(made(tmp_path / "b", replace(bare, made=told)))
    assert "Versions: feduhb from source, at the commits below and torch 2.13.0." in text


def test_the_page_says_which_run_of_feduhb_is_which(script, tmp_path):
    text = script.page(made(tmp_path, cell()))
    head, _, _ = text.partition("## The claims")
    assert (
        "“under its rule” is the one that ends where the stop rule fires, “rule off” the same one gone on"
        in head
    )
    assert "| FedUHB, under its rule, first has that at round |" in script.front(tmp_path)
