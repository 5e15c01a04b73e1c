"""What a request asks for beyond an earlier one."""

from __future__ import annotations

import pytest

from feduhb.data.request import Request

CASES = [
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


@pytest.mark.parametrize(("asked", "earlier", "left"), CASES)
def test_what_is_left_of_a_request(asked: str, earlier: str | None, left: str | None):
    found = Request.parse(asked).beyond(None if earlier is None else Request.parse(earlier))
    assert found == (None if left is None else Request.parse(left))


@pytest.mark.parametrize(("asked", "earlier", "left"), [case for case in CASES if case[1] and case[2]])
def test_both_together_ask_for_all(asked: str, earlier: str, left: str):
    first, whole = Request.parse(earlier), Request.parse(asked)
    assert str(first.merged(Request.parse(left))) == str(first.merged(whole))
