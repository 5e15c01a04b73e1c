from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from feduhb.errors import RunFolderError
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.federations import ORDER, group_by_size, group_cells
from paper.cells import cell, failing, grid, place


def bare(*args: Any, **more: Any) -> Cell:
    """A cell without runs: where it stands is all that matters."""
    return Cell(place=place(*args, **more), runs={}, misr={}, made={"alone": False})


def test_cells_are_sorted_by_size_then_from_iid_to_the_most_skewed():
    cells = [bare(part, size, seed) for seed in (1, 0) for size in (3000, 525) for part in reversed(ORDER)]
    found = group_cells(cells)
    assert [(each.partition, each.per_client) for each in found] == [
        (part, size) for size in (525, 3000) for part in ORDER
    ]
    assert {each.seeds for each in found} == {(0, 1)}


def test_a_backdoor_is_a_federation_of_its_own():
    cells = [bare("iid", 525), bare("iid", 525, backdoor=True)]
    (plain,), (planted,) = group_cells(cells), group_cells(cells, backdoor=True)
    assert (plain.label, plain.name) == ("iid, 525 images a client", "iid-525")
    assert (planted.label, planted.name) == ("iid, 525 images a client, backdoor", "iid-525-backdoor")


@pytest.mark.parametrize(
    ("partition", "size", "label"),
    [
        ("dirichlet:0.5", 3000, "Dirichlet 0.5, 3,000 images a client"),
        ("shards:2", None, "2 classes a client, all images"),
        ("by-hand", 10, "by-hand, 10 images a client"),
    ],
)
def test_federations_are_named_as_people_do(partition: str, size: int | None, label: str):
    (found,) = group_cells([bare(partition, size)])
    assert found.label == label


def test_a_name_is_that_of_the_cells_files():
    (found,) = group_cells([bare("shards:2", None, 3)])
    assert f"{found.name}-s3" == found.cells[0].place.name == "shards-2-all-s3"


def test_an_unknown_partition_comes_after_the_known_ones():
    found = group_cells([bare("by-hand", 525), bare("shards:2", 525)])
    assert [each.partition for each in found] == ["shards:2", "by-hand"]


def test_clients_that_share_all_images_stand_with_the_largest_size():
    cells = [
        bare("iid", 525), bare("iid", 3000), bare("shards:2", 525), bare("shards:2", None),
    ]  # fmt: skip
    sizes = group_by_size(group_cells(cells))
    assert {size: [each.name for each in found] for size, found in sizes.items()} == {
        "525": ["iid-525", "shards-2-525"],
        "3000": ["iid-3000", "shards-2-all"],
    }
    assert list(group_by_size(group_cells([bare("iid", None)]))) == ["all"]
    assert group_by_size([]) == {}


@pytest.mark.parametrize(
    "change", [{"rounds": 20}, {"lr": 0.1}, {"data": "cifar10"}, {"fedrecover": {"warmup": 3.0}}]
)
def test_cells_of_two_experiments_are_refused_by_name(change: dict[str, Any]):
    odd = replace(place("shards:2", 3000, 4), **change)
    (name, value), *_ = change.items()
    with pytest.raises(RunFolderError, match=f"iid-525-s0 and shards-2-3000-s4 .*{name} .* and ") as told:
        group_cells([bare(), replace(bare(), place=odd)])
    assert str(value) in str(told.value)
    assert "a folder of its own" in str(told.value)


def test_what_a_grid_varies_is_no_other_experiment():
    there = [
        place(), place("dirichlet:0.5", 3000, 4), place(backdoor=True), place(seed=1, timed=True),
    ]  # fmt: skip
    assert len(group_cells([replace(bare(), place=at) for at in there])) == 2


def test_a_run_that_broke_off_is_told_apart():
    whole = cell(place(seed=0))
    (found,) = group_cells([whole, failing(cell(place(seed=1)), "fedrecover")])
    assert set(found.every("fedrecover")) == {0, 1}
    assert set(found.tracks("fedrecover")) == {0}
    assert found.failed("fedrecover") == {1: "the model was not finite in round 5"}
    assert set(found.tracks("retrain")) == {0, 1}
    assert found.has("fedrecover")
    assert not found.has("step-2")


def test_only_cells_that_were_alone_are_timed():
    (found,) = group_cells(grid(["dirichlet:0.1"], [525], range(3)))
    assert found.timed is not None
    assert found.timed.seeds == (0,)
    (untimed,) = group_cells([cell(place(seed=1), alone=False)])
    assert untimed.timed is None
