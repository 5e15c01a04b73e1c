"""An old model under a new name is never called forgotten, nor one that knows nothing a success."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import feduhb
from audit.auditing import LEAVERS, QUIET, ROUNDS, TRAINED, Called, Keeps, Replays, digits
from feduhb.experiment.audit import audit
from feduhb.methods.retrain import Plain

CANARIES = 0.8
POWERFUL = {"margin": 0.12, **QUIET}  # of attacks on 144 canaries


class World:
    """The original, with its history, and Retrain."""

    def __init__(self, folder, *, planted: bool) -> None:
        marked = feduhb.Canaries(LEAVERS, CANARIES) if planted else None
        self.original = feduhb.train(
            digits(canaries=marked), ROUNDS, out=folder / "run", keep_history=True, **TRAINED
        )
        self.retrain = self.unlearned("retrain")
        self.canaries = 0 if planted else CANARIES

    def unlearned(self, method, rounds=ROUNDS):
        return feduhb.unlearn(
            self.original, LEAVERS, method=method, rounds=rounds, erase_history=False, show=None
        )

    def audit(self, run, **settings):
        return audit(
            run, self.original, retrain=self.retrain, canaries=self.canaries, **{**POWERFUL, **settings}
        )


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Canaries among the leavers' data from the start: the attack on the real model has power."""
    return World(tmp_path_factory.mktemp("planted"), planted=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """None: the attack on the real model is blind, and a rehearsal alone has power."""
    return World(tmp_path_factory.mktemp("plain"), planted=False)


def exchanged(world: World):
    return replace(world.retrain, state=Plain(world.original.params))


def carried(world: World):
    return world.unlearned(Keeps(world.original.params), rounds=1)


def called(world: World):
    return world.unlearned(Called(aggregate=world.original.model()), rounds=1)


def replayed(world: World):
    return world.unlearned(Replays(), rounds=1)


def relabelled(world: World):
    """The original itself, said to be a retrained model."""
    return replace(world.original, forgot=world.retrain.forgot, folder=None)


WAYS = [exchanged, carried, called, replayed, relabelled]


def test_the_attacks_here_have_power(planted, plain):
    """Else nothing below would mean anything."""
    whole, canaries = planted.audit(planted.retrain).membership
    assert canaries.verdict == "not caught"
    assert canaries.models["original"].auc > 0.8
    blind, rehearsed = plain.audit(plain.retrain).membership
    assert blind.verdict == "no power here"
    assert rehearsed.on == "canaries, in a rehearsal"
    assert rehearsed.verdict == "not caught"
    assert whole.on == blind.on == "all forgotten data"


@pytest.mark.parametrize("way", WAYS)
def test_the_original_is_not_forgotten_where_it_can_be_caught(planted, way):
    run = way(planted)
    found = planted.audit(run, exactness=False)
    assert found.membership[1].models["unlearned"].auc > 0.8
    assert found.verdict.word == "not forgotten"


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_the_original_is_never_a_success_where_it_cannot(plain, way, checked):
    """A rehearsal attacks what the procedure gives; these are weights that it does not give, or that it brings along."""
    found = plain.audit(way(plain), exactness=checked)
    assert found.verdict.word in ("not forgotten", "inconclusive")
    if checked and way in (exchanged, relabelled):
        assert found.exactness is not None
        assert found.exactness.unexplained
        assert "does not give these weights" in found.verdict.reasons[-1]
    if checked and way in (carried, called):
        assert found.exactness is None
        assert "which is no setting" in found.notes[0]
    if checked and way is replayed:
        assert found.verdict.word == "not forgotten"
        assert found.verdict.reasons[0] == "The method calls itself exact, but it is not."


def test_a_history_that_an_erasure_took_does_not_end_the_audit(tmp_path):
    original = feduhb.train(
        digits(per_client=20), 2, out=tmp_path / "run", keep_history=True, **{**TRAINED, "epochs": 1}
    )
    run = feduhb.unlearn(original, LEAVERS, method=Replays(), rounds=1, show=None)
    assert original.history is None
    found = audit(run, original, canaries=0, **QUIET)
    assert found.exactness is not None
    assert [(check.name, check.identical) for check in found.exactness.checks] == [
        ("noise", False),
        ("never", False),
        ("again", True),
    ]
    assert found.verdict.word == "not forgotten"


@pytest.mark.parametrize("method", ["feduhb", "retrain"])
def test_exact_methods_are_forgotten(plain, method):
    found = plain.audit(plain.unlearned(method))
    assert found.verdict.word == "forgotten"
    assert "bit for bit" in found.verdict.reasons[0]


@pytest.mark.parametrize("method", ["federaser", "fedrecover"])
def test_approximate_methods_never_are(planted, method):
    given = (
        feduhb.FedRecover(warmup=2, correction=0, final=0, epochs=12) if method == "fedrecover" else method
    )
    found = planted.audit(planted.unlearned(given))
    assert found.exactness is not None
    assert not found.exactness.exact
    assert found.verdict.word != "forgotten"


def test_random_weights_are_useless(plain):
    draw = torch.Generator().manual_seed(1)
    drawn = torch.randn(plain.original.params.shape, generator=draw) * 0.1
    for run in (
        plain.unlearned(Keeps(drawn), rounds=1),
        replace(plain.retrain, state=Plain(drawn)),
    ):
        found = plain.audit(run)
        assert found.verdict.word == "useless"
        assert "a model that knows nothing has nothing to forget" in found.verdict.reasons[0]


def test_weights_other_than_the_recorded_ones_are_noted(plain, tmp_path):
    run = feduhb.unlearn(
        plain.original,
        LEAVERS,
        method="retrain",
        rounds=1,
        erase_history=False,
        out=tmp_path / "run",
        show=None,
    )
    other = replace(run, state=Plain(run.params + 1))
    found = plain.audit(other, exactness=False, canaries=0, out=tmp_path / "audit")
    assert found.notes[0] == "The weights are not those whose digest was recorded when the run ended."
    assert not plain.audit(run, exactness=False, canaries=0, out=tmp_path / "audit").notes
