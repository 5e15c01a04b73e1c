"""A later request is audited against the run before it, with the data of that request alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import feduhb
from audit.auditing import QUIET, draw_federation
from feduhb.errors import RunFolderError

pytestmark = pytest.mark.slow

SIZES = {"ant": 6, "bee": 7, "cat": 8, "dog": 9}
HOW = {"epochs": 2, "batch_size": 4, "lr": 0.1, "engine": "loop", "show": None}


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A training, and two requests one after the other."""
    folder = tmp_path_factory.mktemp("chain")
    first = feduhb.train(draw_federation(SIZES), 3, out=folder / "first", **HOW)
    second = feduhb.unlearn(first, ["ant"], rounds=3, out=folder / "second", show=None)
    third = feduhb.unlearn(second, ["bee"], rounds=3, out=folder / "third", show=None)
    return first, second, third


def test_the_run_before_is_a_control_of_what_was_forgotten_since(chain, tmp_path):
    _, second, third = chain
    found = feduhb.audit(third, second, out=tmp_path, canaries=0, **QUIET)
    told = found.as_json()
    assert told["forgot"] == "bee"
    assert told["notes"][0].startswith("The original control had itself forgotten ant.")
    assert found.exact


def test_it_needs_no_data_that_the_request_before_took_away(chain, tmp_path):
    _, second, third = chain
    whole = draw_federation(SIZES)
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


def test_against_the_first_run_all_requests_are_covered(chain, tmp_path):
    first, _, third = chain
    found = feduhb.audit(third, first, out=tmp_path, canaries=0, **QUIET)
    assert found.as_json()["forgot"] == "ant,bee"


def test_a_control_that_forgot_something_else_is_refused(chain):
    first, second, third = chain
    other = feduhb.unlearn(first, ["cat"], rounds=3, allow_revival=True, show=None)
    for control, run in ((other, third), (third, second)):
        with pytest.raises(RunFolderError, match="give the run before the request as the original"):
            feduhb.audit(run, control, **QUIET)


def test_rounds_that_sample_more_clients_than_remain(tmp_path):
    first = feduhb.train(draw_federation(SIZES), 2, clients_per_round=4, out=tmp_path / "first", **HOW)
    second = feduhb.unlearn(first, ["ant"], rounds=2, out=tmp_path / "second", show=None)
    third = feduhb.unlearn(second, ["bee"], rounds=2, out=tmp_path / "third", show=None)
    found = feduhb.audit(third, second, canaries=0, **QUIET)
    assert found.exactness is not None
    assert "the same weights, bit for bit" in str(found)


def poisoned(*leavers: str):
    """Two poisoners of whom the first has left, and a run without these too."""
    federation = feduhb.load(
        "digits", clients=4, per_client=120, held_out=0.25, model="mlp", backdoor=["c00", "c01"]
    )
    how = {"epochs": 3, "batch_size": 8, "lr": 0.2, "engine": "pool", "show": None}
    first = feduhb.train(federation, 8, **how)
    second = feduhb.unlearn(first, ["c00"], method="retrain", rounds=8, show=None)
    return second, feduhb.unlearn(second, leavers, method="retrain", rounds=8, show=None)


def test_a_trigger_has_power_though_one_who_planted_it_left_before():
    second, third = poisoned("c01")
    found = feduhb.audit(third, second, canaries=0, exactness=False, **QUIET).backdoor
    assert found is not None
    assert found.success["original"] > 0.5 > found.success["unlearned"]
    assert found.verdict == "not caught"
    kept = replace(third, state=second.state)  # a model that did not forget
    assert (caught := feduhb.audit(kept, second, canaries=0, exactness=False, **QUIET).backdoor) is not None
    assert caught.verdict == "caught"


def test_a_trigger_that_left_before_is_not_covered():
    second, _ = poisoned("c01")
    third = feduhb.unlearn(second, ["c01"], method="retrain", rounds=8, show=None)
    fourth = feduhb.unlearn(third, ["c02"], method="retrain", rounds=8, show=None)
    assert feduhb.audit(fourth, third, canaries=0, exactness=False, **QUIET).backdoor is None


def test_a_history_that_is_gone_is_made_again_as_the_control_made_it(tmp_path):
    """FedEraser after FedUHB: what it replayed were FedUHB's rounds, not FedAvg's."""
    federation = feduhb.load("digits", clients=4, per_client=60, model="softmax")
    first = feduhb.train(federation, 3, out=tmp_path / "first", keep_history=True, **HOW)
    second = feduhb.unlearn(first, ["c00"], rounds=5, stop=feduhb.never, out=tmp_path / "second", show=None)
    eraser = feduhb.FedEraser(interval=1, epochs=2)
    third = feduhb.unlearn(second, ["c01"], method=eraser, out=tmp_path / "third", show=None)
    told = str(feduhb.audit(third, second, canaries=0, **QUIET))
    assert "The recorded procedure does not give these weights" not in told


@pytest.mark.parametrize("between", ["feduhb", "rollback"])
def test_a_rollback_after_another_request_is_exact(between, tmp_path):
    """Its worlds repeat the run before it, which a rollback must not take for the training that it continues."""
    names = [f"c{number}" for number in range(8)]
    how = {**HOW, "epochs": 1, "clients_per_round": 2, "keep_models": "1MB"}
    first = feduhb.train(draw_federation(dict.fromkeys(names, 8)), 6, out=tmp_path / "first", **how)
    asked = list(dict.fromkeys(client for record in first.rounds for client in record.asked))
    rounds: dict[str, Any] = {} if between == "rollback" else {"rounds": 3}
    second = feduhb.unlearn(first, asked[-1:], method=between, out=tmp_path / "second", show=None, **rounds)
    third = feduhb.unlearn(second, asked[3:4], method="rollback", out=tmp_path / "third", show=None)
    assert third.restart_round
    found = feduhb.audit(third, second, canaries=0, **QUIET)
    assert found.exactness is not None
    assert {check.name: check.identical for check in found.exactness.checks} == {
        "noise": True,
        "never": True,
        "beginning": True,
    }
