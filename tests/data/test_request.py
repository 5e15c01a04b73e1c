"""Requests to forget: every form a user may give them in, and back into words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.wording import refused
from feduhb.data.federation import check_id
from feduhb.data.request import Request, as_request
from feduhb.errors import DataError, RequestError

quick = settings(deadline=None, max_examples=100)


def speakable(name: str) -> bool:
    """Whether a federation would take a client of this name."""
    try:
        return bool(check_id(name))
    except DataError:
        return False


names = st.sampled_from(["c00", "c01", "hospital-3", "a b", "Zürich", "class-a", "7"]) | st.text(
    min_size=1, max_size=6
)
clients = names.filter(lambda name: speakable(name) and name != "class")  # which has a test of its own
numbers = st.sets(st.integers(0, 40), min_size=1, max_size=12)
requests = st.builds(
    lambda whole, rows, classes: (tuple(whole), {c: tuple(some) for c, some in rows.items()}, tuple(classes)),
    st.sets(clients, max_size=3),
    st.dictionaries(clients, numbers, max_size=3),
    st.sets(st.integers(0, 12), max_size=3),
).filter(any).map(lambda parts: Request(*parts))  # fmt: skip


@quick
@given(requests)
def test_spelled_and_parsed_again_is_the_same(request_):
    assert Request.parse(str(request_)) == request_


def test_rows_of_a_client_are_never_spelled_as_a_class():
    """The spelling is what a run folder keeps: rows of a client "class" must not come back as a class."""
    rows = as_request({"class": [3]})
    assert not speakable("class") or Request.parse(str(rows)) == rows


@quick
@given(requests, requests)
@example(Request(("a",)), Request(rows={"a": (1, 2)}))
def test_merged_asks_for_both(one, other):
    both = one.merge(other)
    assert both == other.merge(one)
    assert one.merge(one) == one
    assert set(both.clients) == {*one.clients, *other.clients}
    assert set(both.classes) == {*one.classes, *other.classes}
    named = {
        (c, r)
        for some in (one, other)
        for c, rows in some.rows.items()
        for r in rows
        if c not in both.clients
    }
    assert {(c, r) for c, rows in both.rows.items() for r in rows} == named


@pytest.mark.parametrize(
    ("text", "clients", "rows", "classes"),
    [
        ("c00", ("c00",), {}, ()),
        ("c01,c00", ("c00", "c01"), {}, ()),
        (" c00 , c01,, ", ("c00", "c01"), {}, ()),
        ("c00,c00", ("c00",), {}, ()),
        ("c02:0-9+12", (), {"c02": (*range(10), 12)}, ()),
        ("c02:5", (), {"c02": (5,)}, ()),
        ("c02:3-3", (), {"c02": (3,)}, ()),
        ("c02:3+1+2,c02:7", (), {"c02": (1, 2, 3, 7)}, ()),
        ("class:3", (), {}, (3,)),
        ("class:3-5+1", (), {}, (1, 3, 4, 5)),
        ("class:3,class:1", (), {}, (1, 3)),
        ("c00,c02:1,class:0", ("c00",), {"c02": (1,)}, (0,)),
        ("c00,c00:1-4", ("c00",), {}, ()),
    ],
)
def test_parse(text, clients, rows, classes):
    assert Request.parse(text) == Request(clients, rows, classes)
    found = as_request(text)
    assert (found.clients, dict(found.rows), found.classes) == (clients, rows, classes)


@pytest.mark.parametrize(
    ("forget", "text"),
    [
        (["c01", "c00", "c01"], "c00,c01"),
        (("c00",), "c00"),
        ({"c01", "c00"}, "c00,c01"),
        ((c for c in ("c00", "c01")), "c00,c01"),
        ("class:3", "class:3"),
        ("c00,c02:0-1+3", "c00,c02:0-1+3"),
        (Request(classes=(1, 0)), "class:0,class:1"),
        ({"c00": [3, 1, 2, 1]}, "c00:1-3"),
        ({"c00": range(4), "c01": (9,)}, "c00:0-3,c01:9"),
        ({"c00": np.array([5, 0])}, "c00:0+5"),
        ({"c00": torch.tensor([5, 0])}, "c00:0+5"),
        ({"c00": {2, 4}}, "c00:2+4"),
    ],
)
def test_every_form_of_a_request(forget, text):
    assert str(as_request(forget)) == text


def test_a_request_is_itself():
    request = Request(("c00",))
    assert as_request(request) is request


def test_order_and_repetition_do_not_matter():
    assert Request(("b", "a", "b"), {"d": (2, 1, 2), "c": (0,)}, (3, 1, 3)) == Request(
        ("a", "b"), {"c": (0,), "d": (1, 2)}, (1, 3)
    )


@pytest.mark.parametrize("forget", [[], (), {}, "", " , ", set()])
def test_nobody(forget):
    with refused(
        RequestError,
        "the request names nothing to forget; name clients (c00,c01), ",
        "rows of a client (c00:0-9+12) or a class (class:3)",
    ):
        as_request(forget)


@pytest.mark.parametrize("rows", [[], (), range(0), torch.tensor([], dtype=torch.int64)])
def test_no_rows(rows):
    with refused(RequestError, "no rows of c00 are named; name some, or forget the whole client"):
        as_request({"c00": rows, "c01": [1]})


@pytest.mark.parametrize(
    "text",
    [
        "c00:",
        "c00:a",
        "c00:1.5",
        "c00:-1",
        "c00:0-",
        "c00:1+",
        "c00:+",
        "c00:1 2",
        "class:",
        "class:three",
        "class:-1",
    ],
)
def test_numbers_that_cannot_be_read(text):
    with refused(
        RequestError,
        f"{text!r} is not a request; write c02:0-9+12, or class:3, where classes have numbers from 0",
    ):
        Request.parse(f"c09,{text}")


@pytest.mark.parametrize("text", ["c00:3-1", "c00:0-4+9-8", "class:2-1"])
def test_ranges_that_count_down(text):
    with refused(RequestError, f"{text!r} counts down; write the smaller number first"):
        Request.parse(text)


@pytest.mark.parametrize(
    "rows",
    [
        torch.tensor([False, True, True]),
        np.array([False, True, True]),
        [True, False],
        "12",
        [1.5],
        torch.tensor([0.5]),
    ],
)
def test_rows_that_are_no_row_numbers_are_never_guessed_at(rows):
    """A mask read as numbers would forget rows 0 and 1, whatever it marks; "12" would forget rows 1 and 2."""
    forget: Any = {"c00": rows}
    with refused(RequestError, "c00"):
        as_request(forget)


SUBTRACTIONS = [
    ("c00", None, "c00"),
    ("c00,c01", "c00", "c01"),
    ("c00", "c00,c01", None),
    ("c00:1-4", "c00:2-3", "c00:1+4"),
    ("c00:1-4", "c00:0-9", None),
    ("c00:1-4", "c00", None),
    ("c00", "c00:1-4", "c00"),
    ("class:1-3", "class:2", "class:1+3"),
    ("class:2", "c00,class:2", None),
    ("c00,c01:5,class:3", "c00,c01:4", "c01:5,class:3"),
]


@pytest.mark.parametrize(("asked", "earlier", "left"), SUBTRACTIONS)
def test_what_is_left_of_a_request(asked: str, earlier: str | None, left: str | None):
    found = Request.parse(asked).subtract(None if earlier is None else Request.parse(earlier))
    assert found == (None if left is None else Request.parse(left))


@pytest.mark.parametrize(("asked", "earlier", "left"), [case for case in SUBTRACTIONS if case[1] and case[2]])
def test_both_together_ask_for_all(asked: str, earlier: str, left: str):
    first, whole = Request.parse(earlier), Request.parse(asked)
    assert str(first.merge(Request.parse(left))) == str(first.merge(whole))
