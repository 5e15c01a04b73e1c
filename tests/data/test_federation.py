"""Federations from tensors and arrays, and those that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from data.wording import refused
from feduhb.data.federation import Examples, Federation
from feduhb.errors import DataError, RequestError

X = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
MODEL = nn.Linear(3, 3)


def federation(clients: Any, test: Any = (X, Y), **more: Any) -> Federation:
    return Federation(clients, test, MODEL, **more)


def test_from_tensors_without_a_copy():
    made = federation({"a": (X, Y), "b": (X[:2], Y[:2])})
    assert [len(e) for e in made.clients.values()] == [6, 2]
    assert made.clients["a"].x.data_ptr() == X.data_ptr()
    x, y = made.clients["b"].all()
    assert torch.equal(x, X[:2])
    assert torch.equal(y, Y[:2])


def test_from_arrays_without_a_copy():
    x, y = np.ones((4, 3), dtype=np.float32), np.array([0, 1, 2, 0])
    made = federation({"a": (x, y)}, (x, y), held_out={"a": (x[:1], y[:1])})
    assert np.shares_memory(made.clients["a"].x.numpy(), x)
    assert made.clients["a"].targets.tolist() == [0, 1, 2, 0]
    made.fresh_model()


def test_from_lists():
    made = federation({"a": ([[0.0, 1.0, 2.0]], [1])})
    assert made.clients["a"].x.shape == (1, 3)


def test_from_rows_of_shared_tensors():
    some = Examples.of(X, Y, torch.tensor([5, 1]))
    x, y = some.all()
    assert torch.equal(x, X[[5, 1]])
    assert some.targets.tolist() == y.tolist() == [2, 1]
    assert some.keys.tolist() == [0, 1]
    x, y = some.batch(torch.tensor([1]))
    assert torch.equal(x, X[[1]])
    assert y.tolist() == [1]


def test_a_mask_keeps_rows_with_their_keys():
    some = Examples.of(X, Y, torch.tensor([5, 1, 3])).where(torch.tensor([True, False, True]))
    assert (some.rows.tolist(), some.keys.tolist()) == ([5, 3], [0, 2])


def test_it_says_what_it_is():
    made = federation({"a": (X, Y), "b": (X[:2], Y[:2])}, seed=7)
    assert repr(made) == "Federation(2 clients, 2 to 6 examples each, 6 for testing, seed 7)"


def test_without_clients():
    with refused(DataError, "a federation needs at least one client; give clients={'name': (x, y)}"):
        federation({})


def test_a_client_without_examples_is_named():
    with refused(DataError, "client b holds no examples; leave it out, or give it at least one"):
        federation({"a": (X, Y), "b": (X[:0], Y[:0])})


def test_a_test_set_without_examples():
    with refused(DataError, "the test set holds no examples; leave it out, or give it at least one"):
        federation({"a": (X, Y)}, (X[:0], Y[:0]))


def test_a_held_out_part_may_be_empty():
    made = federation({"a": (X, Y)}, held_out={"a": (X[:0], Y[:0])})
    assert len(made.held_out["a"]) == 0


@pytest.mark.parametrize("targets", [Y[:4], torch.zeros(7), torch.tensor(1)])
def test_inputs_and_targets_of_different_lengths(targets):
    shape = list(targets.shape)
    with refused(
        DataError, f"client b: [6, 3] inputs do not match {shape} targets; give one target for each input"
    ):
        federation({"a": (X, Y), "b": (X, targets)})


def test_a_single_number_is_no_input():
    with refused(DataError, "client a: [] inputs do not match [] targets"):
        federation({"a": (torch.tensor(1.0), torch.tensor(1))})


def test_the_test_sets_lengths_are_checked_too():
    with refused(DataError, "the test set: [6, 3] inputs do not match [2] targets"):
        federation({"a": (X, Y)}, (X, Y[:2]))


def test_the_held_out_parts_lengths_are_checked_too():
    with refused(DataError, "held-out part of a: [6, 3] inputs do not match [2] targets"):
        federation({"a": (X, Y)}, held_out={"a": (X, Y[:2])})


def test_inputs_of_another_shape_than_the_test_set():
    with refused(DataError, "client b holds inputs [5], the test set [3]; make them alike"):
        federation({"a": (X, Y), "b": (torch.rand(2, 5), Y[:2])})


def test_held_out_inputs_of_another_shape_than_the_test_set():
    with refused(DataError, "held-out part of a", "[5]", "[3]"):
        federation({"a": (X, Y)}, held_out={"a": (torch.rand(2, 5), Y[:2])})


@pytest.mark.parametrize("name", ["", "a,b", "a:0", "a+b", " a", "a ", "a\nb", "\t"])
def test_ids_that_a_request_could_not_spell(name):
    text = f"{name!r} cannot be a client's id; use a word other than class, without commas, colons, plus signs or spaces around it"
    with refused(DataError, text):
        federation({name: (X, Y)})


@pytest.mark.parametrize("name", [3, None, ("a",)])
def test_ids_that_are_not_text(name):
    words = f"{name!r} cannot be a client's id, because it is not text; write {str(name)!r}"
    with refused(DataError, words):
        federation({name: (X, Y)})


@pytest.mark.parametrize(
    "name", ["c00", "hospital-3", "a b", "Zürich", "東京", "Ελλάδα", "किताब", "7", "a.b/c"]
)
def test_ids_that_will_do(name):
    made = federation({name: (X, Y), "other": (X, Y)})
    assert list(made.without([name]).clients) == ["other"]
    assert list(made.without(name).clients) == ["other"]


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("c\x1b[2J00", "U+001B"), ("c\x00", "U+0000"), ("c\r0", "U+000D"), ("c\ud800", "U+D800"), ("c\x9b", "U+009B"),
        ("c\u202e00", "U+202E"), ("c\u200b", "U+200B"), ("c\u2028x", "U+2028"), ("c\u00a0x", "U+00A0"), ("c\ue000", "U+E000"),
    ],
)  # fmt: skip
def test_ids_with_characters_that_cannot_be_seen(name, hidden):
    words = (
        f"because the character {hidden} in it cannot be seen; use letters, digits, marks and plain spaces"
    )
    with refused(DataError, f"{name!a} cannot be a client's id, {words}"):
        federation({name: (X, Y)})
    for forget in ([name], {name: [0]}, name):
        with refused(RequestError, f"{name!a} cannot be a client's id, {words}"):
            federation({"a": (X, Y)}).without(forget)


def test_ids_that_could_be_written_in_two_ways():
    words = (
        "'Zu\\u0308rich' cannot be a client's id, because the same letters can be written in another way; "
        "use the composed form (NFC), 'Zürich': unicodedata.normalize('NFC', name)"
    )
    with refused(DataError, words):
        federation({"Zu\u0308rich": (X, Y)})
    with refused(RequestError, words):
        federation({"Zürich": (X, Y)}).without("Zu\u0308rich")


@pytest.mark.parametrize("given", [[(X, Y)], ((X, Y),), X])
def test_clients_without_ids(given):
    kind = type(given).__name__
    with refused(
        DataError, f"clients is a {kind}; give examples by the ids of clients: clients={{'c00': (x, y)}}"
    ):
        federation(given)
    if kind == "list":
        with refused(
            DataError, "held_out is a list; give examples by the ids of clients: held_out={'c00': (x, y)}"
        ):
            federation({"a": (X, Y)}, held_out=given)


def test_a_typing_error_is_answered_with_the_nearest_id():
    made = federation({f"c{n:02d}": (X, Y) for n in range(12)})
    with refused(RequestError, "there is no client 'c3'; did you mean c03? The clients are c00, c01, c02"):
        made.without("c3")
    for name in ("c13", "zoe"):  # a client with another number is another client
        with refused(RequestError, f"there is no client {name!r}; the clients are c00, c01"):
            made.without(name)


def test_rows_that_are_separated_as_clients_are_answered_with_a_plus():
    made = federation(dict.fromkeys(("north", "south"), (X, Y)))
    for text, meant in (("south:1,2", "south:1+2"), ("south:0,1-2", "south:0+1-2")):
        with refused(
            RequestError, "the clients are north, south", f"Rows of one client are joined by +: {meant}"
        ):
            made.without(text)


def test_a_stranger_in_held_out():
    with refused(DataError, "held_out names zoe, which is not a client; use the ids of clients"):
        federation({"a": (X, Y)}, held_out={"zoe": (X, Y)})


def test_like_this_one_but_for_some_arguments():
    made = federation({"a": (X, Y)}, seed=7, held_out={"a": (X[:1], Y[:1])})
    other = made.replace(seed=8)
    assert (other.seed, made.seed) == (8, 7)
    assert other.clients == made.clients
    assert other.held_out == made.held_out
    assert (other.test, other.model, other.loss) == (made.test, made.model, made.loss)


def test_public_inputs_are_of_the_kind_of_the_test_set():
    data = {"a": (torch.randn(4, 3), torch.arange(4) % 2)}
    public = Federation(data, data["a"], nn.Linear(3, 2), public=torch.randn(5, 3)).public
    assert isinstance(public, torch.Tensor)
    assert public.shape == (5, 3)
    for public, says in (
        (
            torch.randn(5, 2),
            r"public holds inputs \[2\], the test set \[3\]; make them alike, and give inputs alone",
        ),
        (
            (torch.randn(5, 3), torch.arange(5)),
            r"public holds inputs as a tuple of 2, the test set as one tensor",
        ),
        (torch.randn(0, 3), r"public holds no inputs; leave it out, or give at least one row"),
    ):
        with pytest.raises(DataError, match=says):
            Federation(data, data["a"], nn.Linear(3, 2), public=public)
