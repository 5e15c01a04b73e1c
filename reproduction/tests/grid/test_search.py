"""A search trains FedUHB as a grid's cell does, and keeps what the stop rule needs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from feduhb_reproduction.cell import make_cell
from feduhb_reproduction.cell_plan import Job
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.measures import UHB_ON
from feduhb_reproduction.search import KEPT, read_search, search_seed
from grid.small import one_cell


@pytest.mark.slow
def test_a_search_gives_the_numbers_of_a_cell(tmp_path):
    (place,) = one_cell(tmp_path).places()
    smaller, too_large = replace(place, per_client=20), replace(place, per_client=10**6)
    path = search_seed([place, too_large, smaller], tmp_path / "search", engine="pool")
    found = read_search(path.parent)
    assert [cell.place.name for cell in found] == ["iid-40-s0", "iid-20-s0"]

    make_cell(Job(place=place, out=tmp_path, engine="pool"))
    stored = Cell.read(tmp_path / "cells" / "iid-40-s0.json")
    assert all(found[0].runs[UHB_ON].of(name) == stored.runs[UHB_ON].of(name) for name in KEPT)
    assert found[0].runs[UHB_ON].of("moved") != found[1].runs[UHB_ON].of("moved")
    assert found[0].runs[UHB_ON].rounds == place.rounds, "the rule is off"

    record = json.loads(path.read_text())
    assert [one["per_client"] for one in record["refused"]] == [10**6]
    assert record["made"]["command"].startswith(
        "python -m feduhb_reproduction.search --data FOLDER --engine pool"
    )
    assert {"commit", "device", "versions", "finished", "seconds"} <= set(record["made"])
