"""A later request is audited against the run before it, with the data of that request alone."""

from __future__ import annotations

import pytest

import feduhb
from audit.auditing import QUIET, drawn
from feduhb.errors import RunFolderError

SIZES = {"ant": 6, "bee": 7, "cat": 8, "dog": 9}
HOW = {"epochs": 2, "batch_size": 4, "lr": 0.1, "engine": "loop", "show": None}


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A training, and two requests one after the other."""
    folder = tmp_path_factory.mktemp("chain")
    first = feduhb.train(drawn(SIZES), 3, out=folder / "first", **HOW)
    second = feduhb.unlearn(first, ["ant"], rounds=3, out=folder / "second", show=None)
    third = feduhb.unlearn(second, ["bee"], rounds=3, out=folder / "third", show=None)
    return first, second, third


def test_the_run_before_is_a_control_of_what_was_forgotten_since(chain, tmp_path):
    _, second, third = chain
    found = feduhb.audit(third, second, out=tmp_path, canaries=0, **QUIET)
    told = found.as_json()
    assert told["forgot"] == "bee"
    assert told["notes"][0].startswith("The original control had itself forgotten ant: this audit asks about")
    assert found.exact


def test_it_needs_no_data_that_the_request_before_took_away(chain, tmp_path):
    _, second, third = chain
    whole = drawn(SIZES)
    kept = {client: data for client, data in whole.clients.items() if client != "ant"}
    held = {client: data for client, data in whole.held_out.items() if client != "ant"}
    less = whole.replace(clients=kept, held_out=held)
    opened = [feduhb.open_run(run.folder, less) for run in (third, second)]
    found = feduhb.audit(*opened, out=tmp_path, canaries=0, **QUIET)
    expected = feduhb.audit(third, second, canaries=0, out=tmp_path / "whole", **QUIET)
    timeless = [
        {k: v for k, v in one.as_json().items() if k not in {"finished", "seconds", "cost"}}
        for one in (found, expected)
    ]
    assert timeless[0] == timeless[1]


def test_against_the_first_run_all_requests_are_asked_about(chain, tmp_path):
    first, _, third = chain
    found = feduhb.audit(third, first, out=tmp_path, canaries=0, **QUIET)
    assert found.as_json()["forgot"] == "ant,bee"


def test_a_control_that_forgot_something_else_is_refused(chain):
    first, second, third = chain
    other = feduhb.unlearn(first, ["cat"], rounds=3, show=None)
    for control, run in ((other, third), (third, second)):
        with pytest.raises(RunFolderError, match="give a control that knows what the run forgot"):
            feduhb.audit(run, control, **QUIET)
