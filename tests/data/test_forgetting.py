"""What remains of a federation when a request is served, and what is taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from data.wording import refused
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Request
from feduhb.errors import RequestError
from toys import quick

X = torch.arange(60.0).reshape(20, 3)
Y = torch.arange(20) % 4
SIZES = {"a": 5, "b": 7, "c": 4}  # rows 0-4, 5-11, 12-15; rows 16-19 are for testing


def some(first: int, count: int) -> Examples:
    return Examples.of(X, Y, torch.arange(first, first + count))


def federation(**changes: object) -> Federation:
    clients = {"a": some(0, 5), "b": some(5, 7), "c": some(12, 4)}
    return Federation(clients, some(16, 4), nn.Linear(3, 4), seed=3).replace(**changes)


def held(found: Federation) -> dict[str, list[int]]:
    return {client: examples.rows.tolist() for client, examples in found.clients.items()}


def test_whole_clients():
    remaining = federation().without(["a", "c"])
    assert held(remaining) == {"b": list(range(5, 12))}
    taken = federation().forgotten(["a", "c"])
    assert {c: e.rows.tolist() for c, e in taken.items()} == {"a": [0, 1, 2, 3, 4], "c": [12, 13, 14, 15]}


def test_rows_are_counted_in_the_clients_own_data():
    remaining = federation().without({"b": [0, 3]})
    assert held(remaining) == {"a": [0, 1, 2, 3, 4], "b": [6, 7, 9, 10, 11], "c": [12, 13, 14, 15]}
    assert federation().forgotten({"b": [0, 3]})["b"].rows.tolist() == [5, 8]


def test_a_class_whoever_holds_it():
    remaining = federation().without("class:0")
    assert held(remaining) == {"a": [1, 2, 3], "b": [5, 6, 7, 9, 10, 11], "c": [13, 14, 15]}
    taken = federation().forgotten("class:0")
    assert {c: e.rows.tolist() for c, e in taken.items()} == {"a": [0, 4], "b": [8], "c": [12]}


def test_a_class_leaves_the_held_out_part_too():
    before = federation(held_out={"a": some(0, 8), "b": some(8, 1)})
    after = before.without("class:0")
    assert {c: e.rows.tolist() for c, e in after.held_out.items()} == {"a": [1, 2, 3, 5, 6, 7], "b": []}


def test_rows_leave_the_held_out_part_alone():
    """Its rows have numbers of their own, and were never trained on."""
    after = federation(held_out={"a": some(0, 4)}).without({"a": [0]})
    assert after.held_out["a"].rows.tolist() == [0, 1, 2, 3]


def test_a_leaver_takes_its_held_out_part_along():
    after = federation(held_out={"a": some(0, 4), "b": some(4, 4)}).without(["a"])
    assert list(after.held_out) == ["b"]


@pytest.mark.parametrize("forget", [{"a": range(5)}, "a:0-4", "a", "a,a:2"])
def test_a_client_left_with_nothing_leaves(forget):
    after = federation(held_out={"a": some(0, 2)}).without(forget)
    assert list(after.clients) == ["b", "c"]
    assert list(after.held_out) == []


def test_a_client_of_one_class_leaves_with_it():
    only = Examples.of(X, Y, torch.tensor([0, 4, 8]))
    before = federation(clients={"only": only, "b": some(5, 7)})
    assert list(before.without("class:0").clients) == ["b"]
    assert before.forgotten("class:0")["only"].rows.tolist() == [0, 4, 8]


def test_all_of_it_in_one_request():
    remaining = federation().without("c,a:1,class:3")
    assert held(remaining) == {"a": [0, 2, 4], "b": [5, 6, 8, 9, 10]}


def test_row_numbers_stay_when_others_before_them_are_forgotten():
    assert held(federation().without({"a": [0]}).without({"a": [3]})) == held(
        federation().without({"a": [0, 3]})
    )


wanted = st.dictionaries(
    st.sampled_from(sorted(SIZES)), st.sets(st.integers(0, 3), min_size=1, max_size=2), min_size=1
)


@quick
@given(wanted, wanted)
def test_one_after_the_other_is_both_at_once(first, second):
    later = {c: rows - first.get(c, set()) for c, rows in second.items()}
    later = {c: rows for c, rows in later.items() if rows}
    once = federation().without(Request(rows=first).merge(Request(rows=later)) if later else first)
    stepwise = federation().without(first)
    assert held(stepwise.without(later) if later else stepwise) == held(once)


@quick
@given(wanted, st.sets(st.integers(0, 3), max_size=2))
def test_taken_and_remaining_make_up_the_whole(rows, classes):
    request = Request(rows=rows, classes=tuple(classes))
    taken, remaining = federation().forgotten(request), federation().without(request)
    for client, size in SIZES.items():
        parts = [e[client].keys for e in (taken, remaining.clients) if client in e]
        assert sorted(torch.cat(parts).tolist()) == list(range(size))


def test_nothing_is_copied():
    before = federation(held_out={"a": some(0, 4)})
    after = before.without("b,a:0,class:3")
    parts = [
        *after.clients.values(),
        *after.held_out.values(),
        *before.forgotten("b,a:0").values(),
        after.test,
    ]
    assert {(e.x.data_ptr(), e.y.data_ptr()) for e in parts} == {(X.data_ptr(), Y.data_ptr())}


def test_the_federation_asked_keeps_everything():
    before = federation(held_out={"a": some(0, 4)})
    seen = held(before)
    before.without("b,a:0,class:3")
    assert held(before) == seen
    assert before.held_out["a"].rows.tolist() == [0, 1, 2, 3]


def test_everything_else_goes_along():
    before = federation(loss=nn.functional.multi_margin_loss, about="made by hand")
    after = before.without(["a"])
    assert (after.test, after.model, after.seed) == (before.test, before.model, 3)
    assert (after.loss, after.about) == (before.loss, before.about)


@pytest.mark.parametrize("forget", [["zoe"], "zoe", {"zoe": [0]}, ["a", "zoe"]])
@pytest.mark.parametrize("ask", [Federation.without, Federation.forgotten])
def test_unknown_client(ask, forget):
    with refused(RequestError, "there is no client 'zoe'; the clients are a, b, c"):
        ask(federation(), forget)


def test_a_long_list_of_clients_is_cut():
    many = federation(clients={f"c{i:02d}": some(i, 1) for i in range(11)})
    with refused(RequestError, "the clients are c00, c01, c02, c03, c04, c05, c06, c07 and others"):
        many.without("zoe")


@pytest.mark.parametrize("row", [5, 99, -1, 10**30])
@pytest.mark.parametrize("ask", [Federation.without, Federation.forgotten])
def test_row_out_of_range(ask, row):
    with refused(
        RequestError,
        f"client a has no row {row}, or it was forgotten before: 5 rows remain",
        "count rows from 0",
    ):
        ask(federation(), {"a": [0, row]})


def test_row_already_forgotten():
    with refused(RequestError, "client a has no row 3, or it was forgotten before: 4 rows remain"):
        federation().without({"a": [3]}).without({"a": [2, 3]})


def test_client_already_forgotten():
    with refused(RequestError, "there is no client 'a'; the clients are b, c"):
        federation().without(["a"]).without(["a"])


@pytest.mark.parametrize("ask", [Federation.without, Federation.forgotten])
def test_unknown_class(ask):
    with refused(RequestError, "no client holds class 7; the classes are 0, 1, 2, 3"):
        ask(federation(), "class:1,class:7")


def test_class_already_forgotten():
    with refused(RequestError, "no client holds class 1; the classes are 0, 2, 3"):
        federation().without("class:1").without("class:1")


@pytest.mark.parametrize("forget", ["a,b,c", "class:0-3", "a,b,c:0-3", "b,class:0-3"])
def test_nobody_would_remain(forget):
    with refused(
        RequestError,
        "no client would remain to train on; ",
        "keep at least one client with examples, or delete the model instead",
    ):
        federation().without(forget)


def test_everybody_can_still_be_looked_at():
    assert list(federation().forgotten("a,b,c")) == ["a", "b", "c"]


@pytest.mark.parametrize("text", ["class:0", "class:3"])
@pytest.mark.parametrize(
    "targets", [torch.full((6,), 0.5), torch.zeros(6, 2), torch.zeros(6, 2, dtype=torch.int64)]
)
def test_targets_that_are_no_classes(targets, text):
    regression = Federation({"a": (X[:6], targets), "b": (X[:6], targets)}, (X[:6], targets), nn.Linear(3, 1))
    with refused(
        RequestError,
        "the targets are not classes; name clients or rows to forget instead",
    ):
        regression.without(text)
