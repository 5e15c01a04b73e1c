"""Inputs of a model: a tensor, a dict or a tuple of tensors, with one row for each example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data.wording import refused
from feduhb.core.inputs import (
    call_model,
    count_rows,
    describe_inputs,
    join_inputs,
    list_tensors,
    make_inputs,
    map_tensors,
    pack_tensors,
)
from feduhb.data.federation import Examples, fingerprint
from feduhb.errors import DataError

A, B = torch.arange(6.0).view(3, 2), torch.tensor([[1], [2], [3]])
FORMS: dict[str, Any] = {"tensor": A, "dict": {"tokens": B, "mask": A}, "tuple": (A, B)}
every_form = pytest.mark.parametrize("form", FORMS)


def same(one: Any, other: Any) -> bool:
    alike = type(one) is type(other) and (not isinstance(one, dict) or [*one] == [*other])
    return alike and all(map(torch.equal, list_tensors(one), list_tensors(other)))


@every_form
def test_tensors_of_each_form_there_and_back(form):
    x = make_inputs(FORMS[form])
    assert same(x, FORMS[form])
    assert count_rows(x) == 3
    assert same(pack_tensors(list_tensors(x), x), x)
    assert same(map_tensors(lambda part: part[[0]], x), map_tensors(lambda part: part[:1], x))
    assert same(
        join_inputs([map_tensors(lambda part: part[:1], x), map_tensors(lambda part: part[1:], x)]), x
    )


def test_arrays_become_tensors():
    assert same(make_inputs(A.numpy()), A)
    assert same(make_inputs({"tokens": B.numpy(), "mask": np.asarray(A)}), FORMS["dict"])
    assert same(make_inputs((A.numpy(), B)), FORMS["tuple"])
    assert same(make_inputs([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]), A)
    assert same(make_inputs(((0.0, 1.0), (2.0, 3.0), (4.0, 5.0))), A)


class Told(nn.Module):
    """Returns its arguments by name."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Any:
        return {"tokens": tokens} if mask is None else {"tokens": tokens, "mask": mask}


def test_a_model_gets_a_dict_by_names_and_a_tuple_by_places():
    assert same(call_model(Told(), A), {"tokens": A})
    assert same(call_model(Told(), {"mask": A, "tokens": B}), FORMS["dict"])
    assert same(call_model(Told(), (B, A)), FORMS["dict"])


def test_inputs_are_described_without_their_rows():
    assert describe_inputs(A) == [("0", torch.float32, [2])]
    assert describe_inputs(FORMS["dict"]) == [("tokens", torch.int64, [1]), ("mask", torch.float32, [2])]
    assert describe_inputs(FORMS["tuple"]) == [("0", torch.float32, [2]), ("1", torch.int64, [1])]


@pytest.mark.parametrize(
    ("x", "shapes"),
    [
        ({"tokens": B, "mask": A[:2]}, "[3, 1], [2, 2]"),
        ((A, torch.tensor(1.0)), "[3, 2], []"),
        ({}, "none"),
    ],
)
def test_tensors_with_other_rows_are_refused(x, shapes):
    words = f"the inputs have the shapes {shapes}; give tensors with one row for each example"
    with refused(DataError, words):
        make_inputs(x)


@every_form
def test_examples_of_each_form(form):
    x, y = FORMS[form], torch.tensor([0, 1, 2])
    examples = Examples.of(x, y)
    assert len(examples) == 3
    chosen = examples.where(torch.tensor([True, False, True]))
    assert same(chosen.all()[0], map_tensors(lambda part: part[[0, 2]], x))
    assert same(examples.batch(torch.tensor([2, 0]))[0], map_tensors(lambda part: part[[2, 0]], x))
    assert fingerprint(chosen) != fingerprint(examples)
    with refused(DataError, "do not match [2] targets; give one target for each input"):
        Examples.of(x, y[:2])


def test_a_fingerprint_knows_names_and_every_tensor():
    y = torch.tensor([0, 1, 2])
    forms = [{"tokens": B, "mask": A}, {"tokens": B, "other": A}, (B, A), {"tokens": B, "mask": A + 1}]
    prints = {fingerprint(Examples.of(x, y)) for x in forms}
    assert len(prints) == 4
