"""The auditor catches what remembers, and lets pass, pooled over seeds that were fixed beforehand, what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import feduhb
from audit.auditing import LEAVERS, QUIET, ROUNDS, TRAINED, load_digits
from feduhb.audit.attacks.before_after import CHANGES
from feduhb.audit.audit import audit
from feduhb.audit.pooling import pool
from feduhb.audit.result import Attack
from feduhb.audit.statistics import compute_power, is_equivalent
from feduhb.core.flat import flatten
from feduhb.methods.retrain import Plain

pytestmark = pytest.mark.slow

SEEDS = range(5)


@pytest.fixture(scope="module")
def memorised():
    """The leavers' labels are all wrong, and training goes on until they are known by heart."""
    federation = load_digits(canaries=feduhb.Canaries(LEAVERS, 1.0))
    trained = feduhb.train(federation, 2 * ROUNDS, **TRAINED)
    retrain = feduhb.unlearn(trained, LEAVERS, method="retrain", rounds=ROUNDS, show=None)
    return trained, retrain


def test_a_model_that_memorised_the_leavers_is_caught(memorised):
    trained, retrain = memorised
    found = audit(retrain, trained, retrain=retrain, exactness=False, **QUIET)
    kinds = [(attack.attack, attack.on) for attack in found.membership]
    ways = ["loss", "change of confidence", "change of weights"]
    assert set(kinds) == {(way, on) for way in ways for on in ("all forgotten data", "canaries")}
    for attack in found.membership:
        assert attack.models["original"].auc >= (0.8 if attack.attack == "change of weights" else 0.9)
        assert attack.models["original"].interval.low > 0.8
        assert attack.models["retrain"].interval.low <= 0.5 <= attack.models["retrain"].interval.high
        if attack.kept is None:
            assert attack.models["unlearned"] == attack.models["retrain"]
        else:  # from Retrain to itself nothing changes, and what it reveals beside the original, Retrain reveals
            assert attack.models["unlearned"].auc == 0.5
            assert attack.kept.models["unlearned"] == attack.kept.models["retrain"]


def test_feduhb_forgets_what_was_memorised(memorised):
    trained, retrain = memorised
    run = feduhb.unlearn(trained, LEAVERS, method="feduhb", rounds=ROUNDS, show=None)
    found = audit(run, trained, retrain=retrain, relearn=2, show=None)
    assert found.verdict.word == "forgotten"
    assert found.exactness is not None
    assert found.exactness.exact
    assert all(attack.verdict != "caught" for attack in found.membership)
    gone, before = found.accuracy["unlearned"].forgotten, found.accuracy["original"].forgotten
    assert gone is not None
    assert before is not None
    assert gone < 0.2 < 0.5 < before  # wrong labels that nobody can guess


def climb(trained: feduhb.Run, steps: int, size: float) -> Tensor:
    """Return the original's weights after gradient ascent on the forgotten data: what some call unlearning."""
    gone = [trained.federation.clients[client].all() for client in LEAVERS]
    x, y = (torch.cat(parts) for parts in zip(*gone, strict=True))
    model = trained.model()
    descent = torch.optim.SGD(model.parameters(), size, maximize=True)
    for _ in range(steps):
        descent.zero_grad()
        trained.federation.loss(model(x), y).backward()
        descent.step()
    return flatten(model)


def find_outcomes(memorised: tuple[feduhb.Run, feduhb.Run], weights: Tensor) -> dict[str, Attack]:
    """Audit weights in the place of Retrain's; return the attacks on all forgotten data by name."""
    trained, retrain = memorised
    run = replace(retrain, state=Plain(weights))
    found = audit(run, trained, retrain=retrain, exactness=False, **QUIET)
    return {attack.attack: attack for attack in found.membership if not attack.canaries}


@pytest.mark.parametrize("steps", [1, 5])
def test_gradient_ascent_leaves_a_trace_that_the_change_shows(memorised, steps):
    found = find_outcomes(memorised, climb(memorised[0], steps, 0.1))
    for name in CHANGES:
        assert found[name].verdict == "caught"
        assert found[name].models["unlearned"].interval.low > 0.6


@pytest.mark.parametrize("share", [0.1, -0.1])
def test_a_tenth_of_the_original_is_caught_by_the_change_before_the_loss(memorised, share):
    """The weights lie a tenth of the way from Retrain to the original, or as far on the other side."""
    trained, retrain = memorised
    found = find_outcomes(memorised, share * trained.params + (1 - share) * retrain.params)
    assert found["loss"].verdict != "caught"
    for name in CHANGES:
        assert found[name].verdict == "caught"
        assert (found[name].models["unlearned"].auc > 0.5) == (share > 0)


def test_an_exact_run_is_not_caught_although_the_original_beside_it_reveals_who_left(memorised):
    trained, retrain = memorised
    run = feduhb.unlearn(trained, LEAVERS, method="feduhb", rounds=ROUNDS, show=None)
    found = audit(run, trained, retrain=retrain, exactness=False, margin=0.1, **QUIET)
    compared = [attack for attack in found.membership if attack.kept]
    assert len(compared) == 4
    for attack in compared:
        assert attack.verdict == "not caught"
        assert attack.kept is not None
        beside = attack.kept.models
        assert beside["retrain"] == attack.models["original"]  # one comparison, read both ways
        assert beside["retrain"].interval.low > 0.8
        assert beside["original"].auc < 0.65 < beside["retrain"].interval.low  # nothing was removed
        assert "beside itself one round later" in attack.says
    assert any("retire it (feduhb retire)" in note for note in found.notes)


def test_a_backdoor_is_caught_and_its_erasure_seen():
    federation = load_digits(backdoor=feduhb.Backdoor(LEAVERS, size=2))
    trained = feduhb.train(federation, ROUNDS, **TRAINED)
    retrain = feduhb.unlearn(trained, LEAVERS, method="retrain", rounds=ROUNDS, show=None)
    found = audit(retrain, trained, retrain=retrain, exactness=False, canaries=0, **QUIET)
    assert found.backdoor is not None
    assert found.backdoor.success["original"] >= 0.8
    assert found.backdoor.success["retrain"] <= 0.1
    assert found.backdoor.verdict == "not caught"
    assert (
        found.verdict.word == "inconclusive"
    )  # exactness was not looked at, and no trigger tells of membership
    keeps = feduhb.unlearn(trained, ["c04"], method="retrain", rounds=ROUNDS, show=None)
    other = audit(keeps, trained, exactness=False, canaries=0, **QUIET)
    assert other.backdoor is not None
    assert other.backdoor.verdict == "no power here"  # those that stay carry it
    assert other.backdoor.success["unlearned"] >= 0.8


def test_a_backdoor_that_a_method_leaves_behind_is_seen():
    """Fine-tuning for no rounds is the old model, and one round does not remove the trigger."""
    federation = load_digits(backdoor=feduhb.Backdoor(LEAVERS, size=2))
    trained = feduhb.train(federation, ROUNDS, **TRAINED)
    retrain = feduhb.unlearn(trained, LEAVERS, method="retrain", rounds=ROUNDS, show=None)
    for rounds in (0, 1):
        kept = feduhb.unlearn(trained, LEAVERS, method="finetune", rounds=rounds, show=None)
        found = audit(kept, trained, retrain=retrain, canaries=0, **QUIET)
        assert found.backdoor is not None
        assert found.backdoor.verdict == "caught"
        assert found.backdoor.success["unlearned"] >= 0.5
        assert found.exactness is not None
        assert not found.exactness.exact
        assert found.verdict.word == "not forgotten"
        says = [
            reason for reason in found.verdict.reasons if reason.startswith("Backdoor. The trigger works")
        ]
        assert bool(says) is (rounds == 1)  # of the old model itself, the verdict says nothing else


def test_an_exact_retrain_pooled_over_five_seeds_is_equivalent_to_chance():
    """270 members and as many others a seed: the test passes a model that remembers nothing with a chance of over 80 %."""
    found = []
    for seed in SEEDS:
        federation = load_digits(clients=6, per_client=180, seed=seed)
        trained = feduhb.train(federation, 3, **TRAINED)
        run = feduhb.unlearn(trained, LEAVERS, method="retrain", rounds=3, show=None)
        attack = audit(run, trained, retrain=run, exactness=False, canaries=0, **QUIET).membership[0]
        found.append(attack.models["unlearned"])
        assert (found[-1].members, found[-1].others) == (270, 270)
    together = pool(found)
    assert compute_power(together.se) > 0.8
    assert is_equivalent(together)
    assert abs(together.auc - 0.5) < 0.05
