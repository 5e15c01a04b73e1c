"""Once the forgotten data is deleted, its run can still be opened, and serves the next request."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.data.deleted import restore_keys, select_held
from feduhb.data.request import Request
from feduhb.errors import RequestError, RunFolderError
from feduhb.runs.folder import RunFolder
from feduhb.runs.lineage import Entry, read_lineage, write_lineage

HOW = {"epochs": 1, "batch_size": 8, "show": None}


def cut(client: str, rows: list[int]):
    """A client's data with some rows deleted."""
    x, y = tensors(client, SIZES[client])
    keep = [row for row in range(len(x)) if row not in rows]
    return x[keep], y[keep]


def without(*names: str, **changes):
    """The federation as its operator holds it after a deletion."""
    return ragged({client: size for client, size in SIZES.items() if client not in names}, **changes)


@pytest.fixture
def served(tmp_path):
    """A request for a client and for rows of another, served."""
    first = feduhb.train(ragged(), 2, out=tmp_path / "first", **HOW)
    return feduhb.unlearn(first, "elk,dog:0-4+9", rounds=2, out=tmp_path / "second", show=None)


DELETED = {
    "nothing": ragged,
    "the client": lambda: without("elk"),
    "the rows": lambda: ragged(dog=cut("dog", [0, 1, 2, 3, 4, 9])),
    "both": lambda: without("elk", dog=cut("dog", [0, 1, 2, 3, 4, 9])),
}


@pytest.mark.parametrize("held", DELETED.values(), ids=DELETED)
def test_a_run_is_opened_and_goes_on_to_the_next_request(served, tmp_path, held):
    opened = feduhb.open_run(served.folder, held())
    assert torch.equal(opened.params, served.params)
    assert opened.federation.fingerprints() == served.federation.fingerprints()
    expected = feduhb.unlearn(served, "cat,dog:12", rounds=2, show=None)  # rows keep their numbers
    found = feduhb.unlearn(opened, "cat,dog:12", rounds=2, out=tmp_path / "third", show=None)
    assert torch.equal(found.params, expected.params)
    assert str(found.forgot) == "cat,elk,dog:0-4+9+12"
    again = feduhb.open_run(tmp_path / "third", held())
    assert torch.equal(again.params, expected.params)


@pytest.mark.parametrize(
    "held",
    [
        lambda: without("ant"),
        lambda: without("elk", dog=cut("dog", [0, 1, 2, 3, 4, 8])),
        lambda: without("elk", dog=cut("dog", [0, 1, 2])),
    ],
)
def test_data_that_is_not_what_remained_is_refused(served, held):
    with pytest.raises(RunFolderError, match="was made with other data of client"):
        feduhb.open_run(served.folder, held())


def test_rows_at_the_end_and_then_at_the_beginning(tmp_path):
    first = feduhb.train(ragged(), 1, out=tmp_path / "first", **HOW)
    second = feduhb.unlearn(first, "dog:23", rounds=1, out=tmp_path / "second", show=None)
    third = feduhb.unlearn(second, "dog:0", rounds=1, out=tmp_path / "third", show=None)
    opened = feduhb.open_run(tmp_path / "third", ragged(dog=cut("dog", [0, 23])))
    assert opened.federation.fingerprints() == third.federation.fingerprints()
    with pytest.raises(RunFolderError, match="was made with other data of client dog"):
        feduhb.open_run(tmp_path / "third", ragged(dog=cut("dog", list(range(5)))))


def test_rows_that_an_earlier_run_forgot_are_known_when_that_run_is_deleted(served, tmp_path):
    third = feduhb.unlearn(served, "dog:12", rounds=1, out=tmp_path / "third", show=None)
    shutil.rmtree(tmp_path / "second")
    opened = feduhb.open_run(tmp_path / "third", DELETED["both"]())  # row 12 is not deleted yet
    assert opened.federation.fingerprints() == third.federation.fingerprints()
    assert opened.original.forgotten("dog:12")["dog"].keys.tolist() == [12]


def test_rows_are_deleted_where_a_class_was_forgotten_too(tmp_path):
    first = feduhb.train(ragged(), 1, out=tmp_path / "first", **HOW)
    second = feduhb.unlearn(first, "dog:0-3,class:1", rounds=1, out=tmp_path / "second", show=None)
    opened = feduhb.open_run(tmp_path / "second", ragged(dog=cut("dog", [0, 1, 2, 3])))
    assert opened.federation.fingerprints() == second.federation.fingerprints()


def test_an_audit_says_what_it_lacks(served):
    opened = feduhb.open_run(served.folder, without("elk"))
    with pytest.raises(
        RequestError,
        match=r"the audit needs the data of elk, which this federation no longer holds; audit before you delete",
    ):
        feduhb.audit(opened, show=None)


def test_rows_have_their_numbers_whoever_asks_twice():
    request = Request.parse("dog:0+2")
    left = ragged().without(request).fingerprints()
    short = restore_keys(ragged(dog=cut("dog", [0, 2])), [request], left)
    assert short.clients["dog"].keys.tolist() == [1, *range(3, 24)]
    again = restore_keys(short, [request], left)
    assert again.clients["dog"].keys.tolist() == [1, *range(3, 24)]
    whole = restore_keys(ragged(), [request], left)
    assert whole.clients["dog"].keys.tolist() == list(range(24))


def test_what_is_still_there():
    assert str(select_held(ragged(), Request.parse("elk,dog:1,class:2"))) == "elk,dog:1,class:2"
    assert select_held(without("elk", "dog"), Request.parse("elk,dog:1,class:7")) is None
    assert str(select_held(without("elk"), Request.parse("elk,bee"))) == "bee"


def clipped(blocks):
    """A rule that is none of ours."""
    return feduhb.weighted_mean(blocks).clamp(-1, 1)


def test_a_run_of_ones_own_rule_says_how_it_is_opened(tmp_path):
    first = feduhb.train(ragged(), 1, **HOW)
    own = feduhb.FedUHB(epochs=1, aggregate=clipped)
    made = feduhb.unlearn(first, ["elk"], method=own, rounds=1, out=tmp_path / "own", show=None)
    with pytest.raises(
        RunFolderError,
        match=r"rule of your own \(feduhb with clipped\); .*feduhb.open_run\(.*, method=\.\.\.\)",
    ):
        feduhb.open_run(tmp_path / "own", ragged())
    opened = feduhb.open_run(tmp_path / "own", ragged(), method=own)
    assert torch.equal(opened.params, made.params)


def test_an_audit_does_not_believe_a_lineage_that_nobody_confirms(served, tmp_path):
    feduhb.unlearn(served, "dog:12", rounds=1, out=tmp_path / "third", show=None)
    shutil.rmtree(served.folder)
    opened = feduhb.open_run(tmp_path / "third", DELETED["the rows"]())
    assert opened.unconfirmed == ("dog",)
    with pytest.raises(
        RunFolderError, match=r"lineage of .*third alone says which: no run or tombstone confirms"
    ):
        feduhb.audit(opened, show=None)


@pytest.mark.parametrize("forged", ["dog:0", "ant"])
def test_a_lineage_that_has_forgotten_more_than_the_run_is_refused(tmp_path, forged):
    """It would number the rows anew: the audit would certify row 5, and look at row 4."""
    first = feduhb.train(ragged(), 1, out=tmp_path / "first", **HOW)
    feduhb.unlearn(first, "dog:5", rounds=1, out=tmp_path / "second", show=None)
    entry: Entry = {"run": "../between", "config": "0" * 64, "forgot": forged}
    second = RunFolder(tmp_path / "second")
    write_lineage(second.path, [entry], [])
    second.result_path.write_text(json.dumps({**second.result(), "came_from": ["0" * 64]}))
    with pytest.raises(RunFolderError, match=f"names .*between, which has forgotten {forged}, but .*second"):
        feduhb.open_run(second.path, ragged())


def test_a_lineage_that_contradicts_the_run_that_it_names_is_refused(served, tmp_path):
    third = tmp_path / "third"
    feduhb.unlearn(served, "cat", rounds=1, out=third, show=None)
    nearest, first = read_lineage(third)["earlier"]
    write_lineage(third, [{**nearest, "forgot": "elk"}, first], [])
    with pytest.raises(
        RunFolderError, match=r"second had forgotten elk, but that run records elk,dog:0-4\+9"
    ):
        feduhb.open_run(third, ragged())


def test_a_lineage_that_names_other_runs_than_the_result_is_refused(served):
    write_lineage(served.folder, [], [])
    with pytest.raises(RunFolderError, match=r"lineage\.json names other runs than result\.json"):
        feduhb.open_run(served.folder, ragged())
