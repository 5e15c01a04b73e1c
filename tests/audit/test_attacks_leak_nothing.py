"""Every attack is at chance if membership is random and independent of training."""

from __future__ import annotations

import pytest
import torch

import feduhb
from audit.auditing import LEAVERS, ROUNDS, TRAINED, load_digits
from feduhb.audit.attacks.before_after import CHANGES, score_changes
from feduhb.audit.attacks.lira import Shadows, compute_all_confidences
from feduhb.audit.attacks.membership import Candidates, score_losses
from feduhb.audit.attacks.misr import compute_misr
from feduhb.audit.controls import Controls, carry_out
from feduhb.audit.result import Roc
from feduhb.audit.shadows import ShadowSet
from feduhb.audit.statistics import Scores, compute_roc
from feduhb.data.request import Request
from feduhb.engines.scoring import compute_outputs

pytestmark = pytest.mark.slow

PERMUTATIONS = 12


def shuffle(strata: list[Scores], seed: int) -> list[Scores]:
    """Return each client's scores, divided randomly into members and others."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for scores in strata:
        both = torch.cat([scores.members, scores.others])[
            torch.randperm(len(scores.members) + len(scores.others), generator=draw)
        ]
        found.append(Scores(both[: len(scores.members)], both[len(scores.members) :]))
    return found


def check_at_chance(found: list[Roc]) -> None:
    """Check that all but one of the 99 % intervals hold 0.5, and that their mean is 0.5 within its error."""
    held = [one.interval.low <= 0.5 <= one.interval.high for one in found]
    assert sum(held) >= len(held) - 1
    mean = sum(one.auc for one in found) / len(found)
    assert abs(mean - 0.5) < 3 * max(one.se for one in found) / len(found) ** 0.5


@pytest.fixture(scope="module")
def world():
    """Return a model that has memorized the leavers' canaries, and Retrain."""
    federation = load_digits(canaries=feduhb.Canaries(LEAVERS, 1.0))
    trained = feduhb.train(federation, ROUNDS, **TRAINED)
    return trained, feduhb.unlearn(trained, LEAVERS, method="retrain", rounds=ROUNDS, show=None)


def test_the_loss_attack(world):
    trained, _ = world
    candidates = Candidates.of(trained.federation, Request(LEAVERS))
    strata = score_losses(trained.model(), candidates, trained.federation.loss)
    assert compute_roc(strata).auc > 0.8  # there is something to leak
    check_at_chance([compute_roc(shuffle(strata, seed)) for seed in range(PERMUTATIONS)])


@pytest.mark.parametrize("change", CHANGES.values())
def test_the_comparison_of_two_models(world, change):
    trained, retrain = world
    candidates = Candidates.of(trained.federation, Request(LEAVERS))
    strata = score_changes(retrain.model(), trained.model(), candidates, change, trained.federation.loss)
    assert compute_roc(strata).auc > 0.8  # there is something to leak
    check_at_chance([compute_roc(shuffle(strata, seed)) for seed in range(PERMUTATIONS)])


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory) -> tuple[feduhb.Run, feduhb.Run, Shadows]:
    """Eight shadows of a small federation whose leavers' labels are wrong."""
    federation = load_digits(clients=6, per_client=60, canaries=feduhb.Canaries(LEAVERS, 1.0))
    trained = feduhb.train(federation, 6, **{**TRAINED, "epochs": 8})
    run = feduhb.unlearn(trained, LEAVERS, method="retrain", rounds=6, show=None)
    controls = Controls(
        federation=federation, request=Request(LEAVERS), settings=trained.settings, engine="loop", history=False,
        folder=tmp_path_factory.mktemp("shadows"),
    )  # fmt: skip
    candidates = Candidates.of(federation, Request(LEAVERS))
    shadows = ShadowSet(controls, federation, candidates, "retrain", "shadow", 8, lambda: run)
    carry_out(shadows.steps)
    return trained, run, shadows.read()


def test_lira_catches_the_original_and_not_retrain(shadowed):
    trained, run, found = shadowed
    caught = compute_roc(found.attack(compute_all_confidences(trained, found.candidates)))
    assert caught.interval.low > 0.5
    free = compute_roc(found.attack(compute_all_confidences(run, found.candidates)))
    assert free.interval.low <= 0.5 <= free.interval.high
    assert compute_roc(found.test()).interval.low > 0.5


def test_lira(shadowed):
    trained, _, found = shadowed
    strata = found.attack(compute_all_confidences(trained, found.candidates))
    check_at_chance([compute_roc(shuffle(strata, seed)) for seed in range(PERMUTATIONS)])


def test_lira_finds_no_real_membership_in_models_that_were_dealt_their_data_by_a_coin(shadowed):
    """Each shadow in turn is attacked by the others: nothing about the real members may have gone into it."""
    _, _, found = shadowed
    check_at_chance([compute_roc(strata) for strata in _left_out(found)])


def _left_out(found: Shadows) -> list[list[Scores]]:
    strata = []
    for k in range(8):
        rest = torch.arange(8) != k
        others = Shadows(
            found.candidates,
            {c: said[rest] for c, said in found.confidences.items()},
            {c: inside[rest] for c, inside in found.inside.items()},
        )
        strata.append(others.attack({c: said[k] for c, said in found.confidences.items()}))
    return strata


def test_misr(world):
    """Rows dealt out anew as forgotten and test data: the attacker calls both member equally often."""
    trained, _ = world
    federation = trained.federation
    gone = torch.cat([examples.all()[0] for examples in federation.forgotten(LEAVERS).values()])
    both = compute_outputs(trained.model(), torch.cat([gone, federation.test.all()[0]]))
    apart = []
    for seed in range(4):
        mixed = both[torch.randperm(len(both), generator=torch.Generator().manual_seed(seed))]
        said = compute_misr({"original": (mixed[: len(gone)], mixed[len(gone) :])}, seed=seed)
        apart += [one["original"].misr - one["original"].on_test for one in said.values()]
    error = (0.25 / len(gone) + 0.25 / len(federation.test)) ** 0.5  # of one difference, at a rate of a half
    assert max(map(abs, apart)) < 4 * error
    assert abs(sum(apart) / len(apart)) < 2 * error
