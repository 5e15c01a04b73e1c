"""Hugging Face data sets whose inputs are single values are read as tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import ClassLabel, Dataset

import feduhb
from data.wording import refused
from feduhb.errors import ConfigError, DataError

COUNT = 60
WARDS = ["north", "south", "west"]


def patients(**columns: list[Any]) -> Dataset:
    made = {
        "ward": [WARDS[row % 3] for row in range(COUNT)],
        "age": [20 + row for row in range(COUNT)],
        "weight": [50 + row / 2 for row in range(COUNT)],
        "blood": [row % 4 for row in range(COUNT)],
        "sick": [row // 7 % 2 for row in range(COUNT)],
        **columns,
    }
    ds = Dataset.from_dict(made).cast_column("sick", ClassLabel(names=["no", "yes"]))
    return ds.cast_column("blood", ClassLabel(names=["A", "B", "AB", "0"]))


def of_patients(ds: Dataset, **more: Any) -> feduhb.Federation:
    return feduhb.Federation.from_huggingface(ds, client="ward", target="sick", seed=2, **more)


def to_frame(ds: Dataset) -> Any:
    frame = ds.to_pandas()
    frame["sick"] = [["no", "yes"][value] for value in ds["sick"]]  # pyright: ignore[reportIndexIssue]
    frame["blood"] = [["A", "B", "AB", "0"][value] for value in ds["blood"]]  # pyright: ignore[reportIndexIssue]
    return frame


def test_it_is_the_federation_of_the_same_table():
    made = of_patients(patients())
    table = feduhb.Federation.from_table(
        to_frame(patients()), client="ward", target="sick", classes=["no", "yes"],
        categories={"blood": ["A", "B", "AB", "0"]}, seed=2,
    )  # fmt: skip
    assert made.fingerprints() == table.fingerprints()
    trained = [feduhb.train(one, 1, epochs=1, show=None).params for one in (made, table)]
    assert torch.equal(*trained)


@pytest.mark.parametrize("ages", [[1e9] * COUNT, [0] * COUNT])
def test_a_leaver_with_extreme_values_changes_nothing_for_others(ages):
    age = [ages[row] if row % 3 == 1 else 20 + row for row in range(COUNT)]
    found = [of_patients(ds).without("south").fingerprints() for ds in (patients(), patients(age=age))]
    assert found[0] == found[1]


@pytest.mark.parametrize("share", ["x", None, 1.5, True])
def test_a_share_that_is_none_is_refused(share):
    with refused(ConfigError, f"held_out is {share!r}; give a share of at least 0 and below 1"):
        of_patients(patients(), held_out=share)


def test_arguments_that_nobody_takes_are_refused():
    with refused(
        ConfigError, "Federation.from_huggingface has no argument 'clients'; besides its own it takes"
    ):
        of_patients(patients(), clients=["north"])


def test_text_without_declared_categories_is_refused():
    ds = patients(smokes=["never"] * COUNT)
    with refused(DataError, "column 'smokes' holds text", "categories={'smokes': [...]}"):
        of_patients(ds)
    assert of_patients(ds, categories={"smokes": ["never", "daily"]}).clients.keys() == {*WARDS}


@pytest.mark.parametrize("column", ["sick", "blood", "ward"])
def test_a_class_that_is_missing_is_refused_or_filled(column):
    ds = patients().cast_column("ward", ClassLabel(names=WARDS))
    values = [*ds[column][:-1], None]
    holes = Dataset.from_dict({**ds[:], column: values}, features=ds.features)
    words = {
        "sick": f"target sick has no value in row {COUNT - 1}; delete that row",
        "blood": f"column blood has no value in row {COUNT - 1}; declare what stands for missing values",
        "ward": f"names no client in row {COUNT - 1}",
    }
    with refused(DataError, words[column]):
        of_patients(holes)
    if column == "blood":
        assert of_patients(holes, fills={"blood": "A"}).clients.keys() == {*WARDS}
