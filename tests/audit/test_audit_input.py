"""Every run can be audited, or the audit raises one of our errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import feduhb
from audit.auditing import QUIET, draw_federation
from feduhb.audit.attacks import membership
from feduhb.audit.attacks.before_after import CHANGES
from feduhb.audit.audit import AuditSettings, audit, audit_all
from feduhb.audit.result import Audit
from feduhb.errors import ConfigError, DataError, FeduhbError, RequestError, RunFolderError
from feduhb.methods.retrain import Plain

pytestmark = pytest.mark.slow

SIZES = {"ant": 1, "bee": 6, "cat": 12, "dog": 15}
HOW = {"epochs": 1, "batch_size": 4, "lr": 0.05, "engine": "loop", "show": None}
EVERYTHING = {"shadows": 4, "relearn": 2, "show": None}


def unlearned(federation, forget, **changes):
    trained = feduhb.train(federation, 2, **{**HOW, **changes})
    return feduhb.unlearn(trained, forget, rounds=2, show=None)


def sound(found: Audit) -> None:
    """Check that an audit can be written, read back and printed, and holds no NaN."""
    text = found.to_json()
    back = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in audit.json"))
    assert back == json.loads(json.dumps(found.as_json()))
    assert Audit.from_json(text) == found
    assert back["verdict"]["word"] == found.verdict.word
    assert f": {found.verdict.word.upper()}\n" in str(found)
    assert all(attack["attack"] in str(found) for attack in back["membership"])
    assert found.verdict.reasons


@pytest.mark.parametrize(
    "forget",
    ["bee", "ant", "bee,cat", "cat:0", "cat:0-5+11,dog:1", "class:1", "ant,dog:3,class:2", "ant:0"],
)
def test_every_kind_of_request(forget):
    found = audit(unlearned(draw_federation(SIZES), forget), **EVERYTHING)
    sound(found)
    assert found.forgot == ",".join(
        sorted(forget.split(","), key=lambda part: (":" in part, "class" in part))
    )
    assert found.exactness is not None
    assert found.exactness.exact
    assert {attack.attack for attack in found.membership} == {"loss", "LiRA", *CHANGES}
    rehearsed = any(attack.rehearsal for attack in found.membership)
    noted = any("Forgetting a class was not rehearsed" in note for note in found.notes)
    assert rehearsed is not noted


@pytest.mark.parametrize("sampled", [1, 3])
def test_client_sampling(sampled):
    found = audit(unlearned(draw_federation(SIZES), ["bee", "dog"], clients_per_round=sampled), **EVERYTHING)
    sound(found)
    assert found.exactness is not None
    assert found.exactness.exact


def test_no_held_out_data():
    found = audit(unlearned(draw_federation(SIZES, held=0), ["bee"]), **EVERYTHING)
    sound(found)
    assert found.membership == ()
    assert any("Membership was not attacked" in note for note in found.notes)
    assert found.clients.on == "training data"
    assert found.verdict.word in ("forgotten", "useless")


def test_held_out_data_of_some():
    federation = draw_federation(SIZES)
    some = federation.replace(held_out={"cat": federation.held_out["cat"]})
    found = audit(unlearned(some, ["bee", "cat"]), **EVERYTHING)
    sound(found)
    assert found.membership[0].models["original"].members == 12  # cat's alone


def test_integers_and_images_are_noised_too():
    x, y = torch.arange(40).reshape(20, 2) % 7, torch.arange(20) % 3
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(8, 3))
    federation = feduhb.Federation(
        {"ant": (x, y), "bee": (x[:9], y[:9])}, (x, y), model, held_out={"bee": (x, y)}
    )
    sound(audit(unlearned(federation, ["bee"]), **EVERYTHING))


def test_one_client_stays():
    sound(audit(unlearned(draw_federation({"ant": 9, "bee": 9}), ["bee"]), **EVERYTHING))


def test_in_two_steps():
    trained = feduhb.train(draw_federation(SIZES), 2, **HOW)
    first = feduhb.unlearn(trained, ["ant"], rounds=2, show=None)
    second = feduhb.unlearn(first, {"cat": [2]}, rounds=2, show=None)
    found = audit(second, trained, **QUIET)
    sound(found)
    assert found.forgot == "ant,cat:2"
    assert found.exactness is not None
    assert found.exactness.exact


def test_a_diverged_model_is_refused_in_words():
    run = unlearned(draw_federation(SIZES), ["bee"])
    broken = replace(run, state=Plain(torch.full_like(run.params, math.nan)))
    with pytest.raises(DataError, match="diverged"):
        audit(broken, exactness=False, canaries=0, **QUIET)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"canaries": 1.5}, r"canaries is 1\.5; give a share"),
        ({"canaries": -0.1}, r"canaries is -0\.1; give a share"),
        ({"shadows": 3}, "shadows is 3; give 0, or an even number of 4 or more"),
        ({"shadows": 2}, "shadows is 2; give 0, or an even number of 4 or more"),
        ({"shadows": -4}, "shadows is -4"),
        ({"relearn": -1}, "relearn is -1; give a number of rounds"),
        ({"margin": 0.5}, r"margin is 0\.5; give a number between 0 and 0\.5"),
        ({"margin": 0.0}, r"margin is 0\.0"),
    ],
)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(ConfigError, match=words):
        AuditSettings(**settings)


def test_what_cannot_be_audited_is_refused():
    trained = feduhb.train(draw_federation(SIZES), 1, **HOW)
    with pytest.raises(
        RequestError, match="this run has not forgotten anything; audit a run that feduhb unlearn made"
    ):
        audit(trained, **QUIET)
    with pytest.raises(RunFolderError, match="there is no run to audit"):
        audit_all([], **QUIET)
    one, two = (feduhb.unlearn(trained, [client], rounds=1, show=None) for client in ("ant", "bee"))
    with pytest.raises(RunFolderError, match="these runs served different requests, or have different data"):
        audit_all([one, two], **QUIET)


def test_several_runs_share_their_controls_and_are_judged_apart(tmp_path):
    trained = feduhb.train(draw_federation(SIZES), 2, **HOW)
    runs = [
        feduhb.unlearn(trained, ["bee"], method=method, rounds=2, out=tmp_path / str(i), show=None)
        for i, method in enumerate(("retrain", "feduhb", feduhb.FedUHB(momentum=0.5, epochs=1)))
    ]
    together = audit_all(runs, trained, canaries=0, **QUIET)
    assert [found.method for found in together] == ["retrain", "feduhb", "feduhb"]
    for run, found in zip(runs, together, strict=True):
        sound(found)
        assert found.exactness is not None
        assert found.exactness.exact
        assert run.folder is not None
        assert json.loads((run.folder / "audit.json").read_text()) == json.loads(found.to_json())
        assert not (run.folder / "audit-work").exists()
        alone = audit(run, trained, canaries=0, **QUIET)
        assert (alone.membership, alone.misr, alone.accuracy) == (
            found.membership,
            found.misr,
            found.accuracy,
        )


def test_an_audit_of_an_opened_folder_is_that_of_the_run(tmp_path):
    federation = feduhb.load("digits", clients=4, per_client=20, model="softmax", canaries=["c00"])
    trained = feduhb.train(federation, 2, out=tmp_path / "run", **HOW)
    run = feduhb.unlearn(trained, ["c00"], rounds=2, out=tmp_path / "new", show=None)
    here = audit(run, trained, **QUIET)
    opened = audit(feduhb.open_run(tmp_path / "new"), feduhb.open_run(tmp_path / "run"), **QUIET)
    alone = audit(feduhb.open_run(tmp_path / "new"), **QUIET)  # controls are made anew
    assert here.verdict == opened.verdict == alone.verdict
    assert here.membership == opened.membership == alone.membership
    assert here.weights_sha256 == opened.weights_sha256


def test_a_run_on_the_users_own_engine_is_marked(tmp_path):
    federation = draw_federation(SIZES)
    trained = feduhb.train(federation, 1, out=tmp_path / "run", **{**HOW, "engine": feduhb.Loop})
    feduhb.unlearn(trained, ["bee"], rounds=1, out=tmp_path / "new", show=None)
    sound(audit(feduhb.unlearn(trained, ["bee"], rounds=1, show=None), trained, canaries=0, **QUIET))
    with pytest.raises(FeduhbError, match="engine of your own"):
        audit(feduhb.open_run(tmp_path / "new", federation), **QUIET)


def test_audits_of_several_runs_share_what_is_measured_of_the_controls(monkeypatch):
    """Together they say of each run what an audit of it alone says, and every model answers the test data once."""
    federation = draw_federation({"bee": 24, "cat": 28, "dog": 26}, held=20)
    trained = feduhb.train(federation, 2, **HOW)
    runs = [
        feduhb.unlearn(trained, "bee", method=method, rounds=2, show=None)
        for method in ("retrain", "feduhb", "finetune")
    ]
    how = {"retrain": runs[0], "exactness": False, "canaries": 0, "relearn": 1, "show": None}
    alone = audit(runs[-1], trained, **how)
    sizes, compute = [], membership.compute_outputs
    monkeypatch.setattr(membership, "compute_outputs", lambda m, x: sizes.append(len(x)) or compute(m, x))
    together = audit_all(runs, trained, **how)[-1]
    assert together.misr is not None
    assert replace(together, seconds=0.0, finished="") == replace(alone, seconds=0.0, finished="")
    assert sizes.count(len(federation.test)) == 4
