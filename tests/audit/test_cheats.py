"""Cheats that pass off an old model as new, with the verdict on each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import feduhb
from audit.auditing import LEAVERS, QUIET, TRAINED, load_digits
from audit.cheats import UndeclaredWarmStart, WarmStart, hide, make_cheats
from feduhb.audit.audit import audit_all
from feduhb.audit.result import Audit
from feduhb.audit.verdict import OWN, UNEXPLAINED
from feduhb.core.types import Updates
from feduhb.methods.feduhb import HeavyBall
from feduhb.runs.run import Run

pytestmark = pytest.mark.slow

ROUNDS, EPOCHS = 6, 2


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class World:
    """The original, whose weights the cheats hide, and Retrain."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        federation = load_digits(model=make_model, per_client=40, **changes)
        self.original = feduhb.train(federation, ROUNDS, **{**TRAINED, "epochs": EPOCHS, "lr": 0.3})
        self.retrain = self.unlearn("retrain")
        self.file = hide(self.original.params * (1 + 1e-6), folder)  # its very bits would be seen at once
        self.cheats = make_cheats(self.file, EPOCHS)

    def unlearn(self, method: Any, rounds: int = ROUNDS, seed: int = 0) -> Run:
        trained = self.original.reseed(seed)
        return feduhb.unlearn(trained, LEAVERS, method=method, rounds=rounds, stop=feduhb.never, show=None)

    def audit(self, runs: Sequence[Run], **settings: Any) -> list[Audit]:
        how = {"canaries": 0, **QUIET, **settings}
        return audit_all(runs, self.original, retrain=self.retrain, **how)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("cheats"))


@pytest.fixture(scope="module")
def audits(world):
    """The audits of all cheats, which share their controls."""
    runs = [world.unlearn(method) for method in world.cheats.values()]
    return dict(zip(world.cheats, world.audit(runs), strict=True))


CAUGHT = {
    "warm-start": "the method begins elsewhere",
    "closure": "the same weights after round 1",
    "file": "the same weights after round 1",
    "late": "the same weights after round 4",
    "digest": "The method recognises the data",
    "average": "traces of the original's weights",
    "one-layer": "traces of the original's weights",
    "regulariser": "traces of the original's weights",
    "reordered": "come nearer to each other by a factor of",
}
NOT_EXCLUDED = ("likeness", "reordered-slowly")


LEFT_BEHIND = ("class-attribute", "default-argument")  # put into the class while this process ran


@pytest.mark.parametrize(("cheat", "says"), CAUGHT.items())
def test_a_cheat_is_caught(audits, cheat, says):
    found = audits[cheat]
    assert found.verdict.word == "not forgotten"
    assert says in found.verdict.reasons[-1]
    assert found.exactness is not None
    assert [check.identical for check in found.exactness.checks[:2]] == [True, True]  # equal bits do not help


@pytest.mark.parametrize("cheat", LEFT_BEHIND)
def test_what_is_in_this_process_does_not_travel_to_a_fresh_one(audits, cheat):
    found = audits[cheat]
    assert found.verdict.word == "inconclusive"
    assert found.verdict.reasons[-1] == UNEXPLAINED
    assert found.exactness is not None
    assert not any(check.identical for check in found.exactness.checks[:3])


def test_what_the_checks_cannot_exclude_is_said(audits):
    assert set(audits) == {*CAUGHT, *LEFT_BEHIND, *NOT_EXCLUDED}
    for cheat in NOT_EXCLUDED:
        assert audits[cheat].verdict.word == "forgotten"
        assert audits[cheat].verdict.reasons[-1] == OWN


def test_a_seed_of_its_own_excludes_it(world):
    first = world.unlearn(feduhb.FedUHB(epochs=EPOCHS), rounds=1, seed=5)
    torch.save(first.params, world.file.replace("old.pt", "first.pt"))
    found = world.audit([world.unlearn(world.cheats["likeness"], seed=5)])[0]
    assert found.verdict.word == "not forgotten"
    assert "traces of the original's weights" in found.verdict.reasons[-1]


@pytest.mark.parametrize("planted", [True, False])
def test_a_warm_start_is_never_forgotten(tmp_path, planted):
    """Six audits: with canaries in the data, in a rehearsal, and without; declared exact and not."""
    marked = feduhb.Canaries(LEAVERS, 0.5) if planted else None
    world = World(tmp_path, canaries=marked)
    for rounds, canaries in [(20, 0.0)] if planted else [(20, 0.0), (40, 0.5)]:
        kinds = WarmStart, UndeclaredWarmStart
        runs = [world.unlearn(kind(epochs=EPOCHS, file=world.file), rounds) for kind in kinds]
        declared, undeclared = world.audit(runs, canaries=canaries)
        assert declared.verdict.word == "not forgotten"
        assert undeclared.verdict.word in ("not forgotten", "inconclusive")
        assert all(found.exactness and found.exactness.fails_by_method for found in (declared, undeclared))


def test_a_built_in_method_whose_beginning_was_replaced(world, monkeypatch):
    old = world.original.params * (1 + 1e-6)
    monkeypatch.setattr(feduhb.FedUHB, "init", lambda *_: HeavyBall(old, previous=old))
    found = world.audit([world.unlearn("feduhb")])[0]
    assert found.verdict.word == "not forgotten"


class Halved(feduhb.FedUHB):
    """An honest method of the user's own: smaller steps."""

    __slots__ = ()
    name: ClassVar[str] = "halved"

    def tell(self, state: HeavyBall, answers: Iterable[Updates]) -> HeavyBall:
        w, w_prev = state
        return HeavyBall(w - 0.5 * self.aggregate(answers) + self.momentum * (w - w_prev), previous=w)


@pytest.mark.parametrize("seed", [0, 5])
def test_an_honest_method_of_the_users_own_is_forgotten(world, seed):
    """With the original's seed and with another one."""
    found = world.audit([world.unlearn(Halved(epochs=EPOCHS, momentum=0.5), seed=seed)])[0]
    assert found.verdict.word == "forgotten"
    assert found.exactness is not None
    names = [check.name for check in found.exactness.checks]
    assert names == ["noise", "never", "beginning", "draw", "bare", "nudge"]
