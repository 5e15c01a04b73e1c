"""An old model under a new name is never called forgotten, nor one that knows nothing a success."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import feduhb
from audit.auditing import LEAVERS, QUIET, ROUNDS, TRAINED, Called, Keeps, Replays, load_digits
from feduhb.audit.attacks.before_after import CHANGES
from feduhb.audit.audit import audit, audit_all
from feduhb.audit.result import Audit
from feduhb.audit.verdict import COPIED, UNREHEARSED
from feduhb.errors import RunFolderError
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import digest_weights, save_state
from feduhb.runs.run import Run

pytestmark = pytest.mark.slow

CANARIES = 0.8
POWERFUL = {
    "margin": 0.1,
    **QUIET,
}  # with 240 canaries a model that remembers nothing passes nine times in ten


class World:
    """The original with its history, Retrain, and runs that are not what they say."""

    def __init__(self, folder, *, planted: bool) -> None:
        marked = feduhb.Canaries(LEAVERS, CANARIES) if planted else None
        self.original = feduhb.train(
            load_digits(canaries=marked), ROUNDS, out=folder / "run", keep_history=True, **TRAINED
        )
        self.retrain = self.unlearned("retrain")
        self.canaries = 0 if planted else CANARIES
        old = self.original.params * (1 + 1e-6)  # not its very bits, which would be seen at once
        noise = torch.randn(old.shape, generator=torch.Generator().manual_seed(1)) / 10
        self.old = {
            "exchanged": replace(self.retrain, state=Plain(old)),
            "carried": self.unlearned(Keeps(old), rounds=1),
            "in a callable": self.unlearned(Called(aggregate=self.original.model()), rounds=1),
            "replayed": self.unlearned(Replays(), rounds=1),
            "relabelled": replace(self.original, state=Plain(old), forgot=self.retrain.forgot, folder=None),
        }
        self.copied = {"copied": replace(self.retrain, state=Plain(self.original.params))}
        self.random = {
            "random, carried": self.unlearned(Keeps(noise), rounds=1),
            "random, exchanged": replace(self.retrain, state=Plain(noise)),
        }

    def unlearned(self, method, rounds=ROUNDS) -> Run:
        return feduhb.unlearn(
            self.original, LEAVERS, method=method, rounds=rounds, erase_history=False, show=None
        )

    def audits(self, runs: dict[str, Run], **settings) -> dict[str, Audit]:
        how = {"canaries": self.canaries, **POWERFUL, **settings}
        found = audit_all([self.retrain, *runs.values()], self.original, retrain=self.retrain, **how)
        return dict(zip(["retrain", *runs], found, strict=True))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Canaries among the leavers' data from the start: the attack on the real model has power."""
    world = World(tmp_path_factory.mktemp("planted"), planted=True)
    return world, world.audits(world.old, exactness=False)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """None: the attack on the real model is blind, and a rehearsal alone has power."""
    world = World(tmp_path_factory.mktemp("plain"), planted=False)
    more = {**world.copied, **world.random, "feduhb": world.unlearned("feduhb")}
    return world, world.audits({**world.old, **more})


@pytest.fixture(scope="module")
def unexamined(plain):
    """Audits of the same runs that do not look at exactness."""
    world, _ = plain
    return world.audits({**world.old, **world.copied}, exactness=False)


WAYS = ["exchanged", "carried", "in a callable", "replayed", "relabelled"]


def test_the_attacks_here_have_power(planted, plain):
    """Else nothing below would mean anything."""
    whole, canaries = planted[1]["retrain"].membership[:2]
    assert canaries.verdict == "not caught"
    assert canaries.models["original"].auc > 0.85
    assert canaries.power > 0.8
    blind, rehearsed = plain[1]["retrain"].membership[:2]
    assert blind.verdict == "no power here"
    assert rehearsed.verdict == "not caught"
    assert (whole.on, canaries.on, blind.on, rehearsed.on) == (
        "all forgotten data",
        "canaries",
        "all forgotten data",
        "canaries, in a rehearsal",
    )


@pytest.mark.parametrize("way", WAYS)
def test_the_original_is_not_forgotten_where_it_can_be_caught(planted, way):
    found = planted[1][way]
    assert found.membership[1].models["unlearned"].auc > 0.85
    assert found.verdict.word == "not forgotten"


def test_the_originals_very_weights_are_seen_at_once(plain, unexamined):
    for audits in (plain[1], unexamined):
        found = audits["copied"]
        assert found.verdict.word == "not forgotten"
        assert found.verdict.reasons[0] == COPIED


def never_a_success(found: Audit) -> None:
    """A rehearsal attacks what the procedure gives; here are weights that it does not give, or brings along."""
    assert found.membership[1].on == "canaries, in a rehearsal"
    assert found.verdict.word in ("not forgotten", "inconclusive")


@pytest.mark.parametrize("way", WAYS)
def test_the_original_is_never_a_success_where_it_cannot(plain, way):
    found = plain[1][way]
    never_a_success(found)
    if way in ("exchanged", "relabelled"):
        assert found.exactness is not None
        assert found.exactness.unexplained
        assert found.verdict.word == "not forgotten"
        assert {a.attack for a in found.membership if a.verdict == "caught"} == set(CHANGES)
    elif way == "replayed":
        assert found.verdict.word == "not forgotten"
        assert found.membership[1].verdict == "caught"  # the history of the rehearsal holds its canaries
    else:
        assert found.exactness is None
        assert "which is not a setting" in found.notes[0]


def test_nor_where_exactness_was_not_looked_at(unexamined):
    for way in WAYS:
        never_a_success(unexamined[way])
    assert unexamined["retrain"].verdict.word == "inconclusive"
    assert UNREHEARSED in unexamined["retrain"].verdict.reasons


@pytest.mark.parametrize("method", ["feduhb", "retrain"])
def test_exact_methods_are_forgotten(plain, method):
    found = plain[1][method]
    assert found.verdict.word == "forgotten"
    assert all("bit for bit" in reason for reason in found.verdict.reasons[:3])


@pytest.mark.parametrize("way", ["random, carried", "random, exchanged"])
def test_random_weights_are_useless(plain, way):
    found = plain[1][way]
    assert found.verdict.word == "useless"
    assert "a model that knows nothing has nothing to forget" in found.verdict.reasons[0]


def test_approximate_methods_are_never_forgotten(planted):
    world, _ = planted
    guess = feduhb.FedRecover(warmup=6, correction=3, final=2, epochs=4)
    found = world.audits({"federaser": world.unlearned("federaser"), "fedrecover": world.unlearned(guess)})
    assert found.pop("retrain").verdict.word == "forgotten"
    for audited in found.values():
        assert audited.exactness is not None
        assert [check.identical for check in audited.exactness.checks] == [False, False, True]
        assert audited.verdict.word in ("not caught", "not forgotten", "inconclusive")


def test_a_history_that_an_erasure_took_does_not_end_the_audit(tmp_path):
    short = {**TRAINED, "epochs": 1}
    original = feduhb.train(load_digits(per_client=20), 2, out=tmp_path / "run", keep_history=True, **short)
    run = feduhb.unlearn(original, LEAVERS, method=Replays(), rounds=1, show=None)
    assert original.history is None
    found = audit(run, original, canaries=0, **QUIET)
    assert found.exactness is not None
    checks = [(check.name, check.identical) for check in found.exactness.checks]
    assert checks[:3] == [("noise", False), ("never", False), ("again", True)]
    assert all(passed for _, passed in checks[3:])  # it begins afresh and carries nothing
    assert found.verdict.word == "not forgotten"
    assert found.verdict.reasons[0] == "The method calls itself exact, but it is not."


def test_weights_other_than_the_recorded_ones_are_refused(tmp_path):
    original = feduhb.train(load_digits(per_client=20), 1, out=tmp_path / "old", **TRAINED)
    run = feduhb.unlearn(original, LEAVERS, method="retrain", rounds=1, out=tmp_path / "run", show=None)
    other, control = (replace(one, state=Plain(one.params + 1)) for one in (run, original))
    for given in ((other, original), (run, control)):
        with pytest.raises(RunFolderError, match=r"the weights are not those whose digest .* records"):
            audit(*given, exactness=False, canaries=0, **QUIET)
    found = audit(run, original, exactness=False, canaries=0, **QUIET)
    assert found.weights_sha256 == digest_weights(run.params)
    assert found.controls_sha256["original"] == digest_weights(original.params)
    assert {*found.controls_sha256} == {"original", "retrain"}
    save_state(tmp_path / "run" / "state.safetensors", Plain(original.params), 1)
    with pytest.raises(RunFolderError, match="are not those that the run ended with"):
        audit(run, original, exactness=False, canaries=0, **QUIET)
