"""Containers check their shapes at the door, in words."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from feduhb.core.types import Local, Updates, Work
from feduhb.errors import ConfigError


def test_work_is_flat_and_frozen():
    work = Work(torch.zeros(3), 0)
    assert work.clients is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        work.epochs = 2  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match=r"params must be flat \[P\], not \[2, 3\]"):
        Work(torch.zeros(2, 3), 1)
    with pytest.raises(ValueError, match="epochs must be 0 or more, not -1"):
        Work(torch.zeros(3), -1)


def test_updates_know_whether_they_are_summed():
    assert not Updates(("a",), torch.zeros(1, 2), torch.ones(1)).summed
    assert not Updates(("a", "b"), torch.zeros(2, 2), torch.ones(2)).summed
    assert Updates(("a", "b"), torch.zeros(1, 2), torch.ones(1)).summed


@pytest.mark.parametrize(
    ("clients", "values", "weights", "words"),
    [
        ("ab", (3, 2), (3,), r"values must be \[C, P\] or \[1, P\] with C = 2, not \[3, 2\]"),
        ("ab", (2,), (2,), r"values must be \[C, P\] or \[1, P\] with C = 2, not \[2\]"),
        ("abc", (2, 2), (2,), r"values must be \[C, P\] or \[1, P\] with C = 3, not \[2, 2\]"),
        ("ab", (2, 2), (1,), r"2 rows of values need as many weights, not \[1\]"),
        ("ab", (1, 2), (2,), r"1 rows of values need as many weights, not \[2\]"),
        ("ab", (2, 2), (2, 1), r"2 rows of values need as many weights, not \[2, 1\]"),
    ],
)
def test_updates_of_the_wrong_shape(
    clients: str, values: tuple[int, ...], weights: tuple[int, ...], words: str
):
    with pytest.raises(ValueError, match=words):
        Updates(tuple(clients), torch.zeros(values), torch.ones(weights))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0; give 1 or more"),
        ({"lr": 0.0}, "lr is 0.0; give a positive number, such as 0.005"),
        ({"lr": math.nan}, "lr is nan; give a positive number, such as 0.005"),
        ({"l2": -1.0}, "l2 is -1.0; give 0 or more"),
    ],
)
def test_local_training_that_cannot_be(settings: dict[str, float], words: str):
    with pytest.raises(ConfigError) as error:
        Local(**settings)  # pyright: ignore[reportArgumentType]
    assert str(error.value) == words
