"""Where the models of an audit answer: on the GPU that trained the clients, else on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import feduhb
from audit.auditing import LEAVERS, load_digits
from feduhb.audit.attacks import membership
from feduhb.audit.attacks.membership import choose_device, load_model
from feduhb.audit.audit import audit

HOW = {"epochs": 2, "batch_size": 20, "lr": 0.5, "show": None}


def test_a_model_answers_on_the_gpu_of_its_clients_if_that_is_here(monkeypatch):
    """A finished run keeps its weights on the CPU, wherever it was trained."""
    run = feduhb.train(load_digits(per_client=20), 1, engine="loop", **HOW)
    far = replace(run, machine={**run.machine, "device": "cuda"})
    for is_there, devices in ((False, ("cpu", "cpu")), (True, ("cpu", "cuda"))):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=is_there: is_there)
        assert tuple(choose_device(one).type for one in (run, far)) == devices
    monkeypatch.setattr(membership, "choose_device", lambda _: torch.device("meta"))
    assert {p.device.type for p in load_model(far).parameters()} == {"meta"}
    assert {p.device.type for p in run.model().parameters()} == {"cpu"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_audit_on_a_gpu_finds_what_one_on_the_cpu_finds():
    federation = load_digits(canaries=LEAVERS)
    trained = feduhb.train(federation, 4, engine="stacked", **HOW)
    retrain, tuned = (
        feduhb.unlearn(trained, LEAVERS, method=name, rounds=4, erase_history=False, show=None)
        for name in ("retrain", "finetune")
    )
    assert choose_device(tuned).type == "cuda"
    here = [replace(run, machine={**run.machine, "device": "cpu"}) for run in (tuned, trained, retrain)]
    one, other = (
        audit(run, original, retrain=control, exactness=False, relearn=2, show=None)
        for run, original, control in ((tuned, trained, retrain), here)
    )
    assert [(a.attack, a.on) for a in one.membership] == [(a.attack, a.on) for a in other.membership]
    for mine, theirs in zip(one.membership, other.membership, strict=True):
        for model, roc in mine.models.items():
            assert roc.auc == pytest.approx(theirs.models[model].auc, abs=0.01)
    assert one.relearn == other.relearn
    assert one.accuracy["unlearned"].test == pytest.approx(other.accuracy["unlearned"].test, abs=0.01)
