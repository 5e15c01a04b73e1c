"""The auditor catches what remembers, and lets pass, pooled over seeds that were fixed beforehand, what does not."""

from __future__ import annotations

import pytest

import feduhb
from audit.auditing import LEAVERS, QUIET, ROUNDS, TRAINED, load_digits
from feduhb.audit.audit import audit
from feduhb.audit.statistics import compute_power, is_equivalent, pool

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
