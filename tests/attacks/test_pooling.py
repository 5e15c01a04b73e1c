"""Audits combined: by hand, against simulation, and over the seeds of real runs that share their examples."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch

import feduhb
from audit.auditing import QUIET, draw_federation
from feduhb.audit import pool, pool_differences, pool_seeds
from feduhb.audit.audit import audit_all
from feduhb.audit.result import AucDifference, Audit, Interval
from feduhb.audit.statistics import Scores, compare_aucs, compute_roc

PHI = NormalDist()
HOW = {"epochs": 1, "batch_size": 4, "lr": 0.1, "engine": "loop", "show": None}


def differ(value: float, se: float) -> AucDifference:
    wide, equal = (Interval(value - z * se, value + z * se) for z in (2.5, 1.5))
    return AucDifference(value, se, wide, equal)


def test_differences_on_the_same_examples_by_hand():
    """The mean of 0.1 and 0.0 with the mean of the errors 0.01 and 0.02: 0.05 with 0.015."""
    found = pool_differences([differ(0.1, 0.01), differ(0.0, 0.02)], independent=False)
    assert (found.value, found.se) == pytest.approx((0.05, 0.015))
    assert (found.interval.low, found.interval.high) == pytest.approx((0.05 - 0.0375, 0.05 + 0.0375))
    assert (found.equivalence.low, found.equivalence.high) == pytest.approx((0.05 - 0.0225, 0.05 + 0.0225))
    assert found.population is None


def test_one_audit_seen_twice_says_no_more_than_once():
    draw = torch.Generator().manual_seed(0)
    once = compute_roc([Scores(torch.randn(40, generator=draw) + 0.3, torch.randn(30, generator=draw))])
    twice = pool([once, once], independent=False)
    assert (twice.auc, twice.se, twice.tpr_1) == pytest.approx((once.auc, once.se, once.tpr_1))
    for pooled, alone in (
        (twice.interval, once.interval),
        (twice.equivalence, once.equivalence),
        (twice.tpr_1_interval, once.tpr_1_interval),
    ):
        assert (pooled.low, pooled.high) == pytest.approx((alone.low, alone.high))
    assert (twice.members, twice.others) == (40, 30)
    assert pool([once, once]).se == pytest.approx(once.se / math.sqrt(2))  # if they had been two


@pytest.mark.parametrize("own", [0.3, 1.0])
def test_the_pooled_intervals_hold_although_the_audits_share_examples(own):
    """Three models and one Retrain score the same examples, with noise of their own.

    The true AUC is that of N(0.4, 1 + own²) against N(0, 1 + own²). Taken as independent, the intervals miss it too often.
    """
    draw, held, equal, naive, count = torch.Generator().manual_seed(1), 0, 0, 0, 400
    truth = PHI.cdf(0.4 / math.sqrt(2 * (1 + own**2))) - 0.5
    for _ in range(count):
        members, others = torch.randn(60, generator=draw), torch.randn(40, generator=draw)

        def score(known: float) -> list[Scores]:
            noise = [own * torch.randn(len(base), generator=draw) for base in (members, others)]  # noqa: B023
            return [Scores(members + known + noise[0], others + noise[1])]  # noqa: B023

        retrain = score(0.0)
        found = [compare_aucs(score(0.4), retrain) for _ in range(3)]
        together, apart = pool_differences(found, independent=False), pool_differences(found)
        held += together.interval.low <= truth <= together.interval.high
        equal += together.equivalence.low <= truth <= together.equivalence.high
        naive += apart.interval.low <= truth <= apart.interval.high
    assert held >= 0.99 * count
    assert equal >= 0.9 * count
    assert naive < 0.97 * count


def test_the_pooled_interval_is_about_the_plain_mean_although_audits_differ():
    """Four audits with true AUCs from 0.5 to 0.98. Those near 1 have small errors, and must not count more for that."""
    draw, held, count = torch.Generator().manual_seed(2), 0, 200
    shifts = (0.0, 0.5, 1.5, 3.0)
    truth = sum(PHI.cdf(shift / math.sqrt(2)) - 0.5 for shift in shifts) / len(shifts)
    values: list[float] = []
    for _ in range(count):
        found: list[AucDifference] = []
        for shift in shifts:
            first, second = (
                [Scores(torch.randn(60, generator=draw) + more, torch.randn(40, generator=draw))]
                for more in (shift, 0.0)
            )
            found.append(compare_aucs(first, second))
        together = pool_differences(found)
        values.append(together.value)
        held += together.interval.low <= truth <= together.interval.high
    assert held >= 0.98 * count  # of 200 that hold with a chance of 99 %, fewer are expected in 5 of 100
    assert sum(values) / count == pytest.approx(truth, abs=0.0075)  # three errors of the mean


@pytest.fixture(scope="module")
def audits() -> list[Audit]:
    """Two seeds of FedUHB, a third with another momentum, and Retrain, which is the control too."""
    trained = feduhb.train(draw_federation({"ant": 24, "bee": 20, "cat": 16}, held=8), 1, **HOW)
    makers = [
        (1, "feduhb"),
        (2, "feduhb"),
        (3, feduhb.FedUHB(epochs=1, momentum=0.5)),
        (1, "retrain"),
    ]
    runs = [
        feduhb.unlearn(trained.reseed(seed), ["ant"], method=method, rounds=2, show=None)
        for seed, method in makers
    ]
    return audit_all(runs, trained, retrain=runs[-1], exactness=False, canaries=0, **QUIET)


@pytest.mark.slow
def test_seeds_of_one_method_that_were_audited_together(audits):
    found = pool_seeds(audits)
    first, second, *_ = audits
    assert [(one.method, one.attack, one.on) for one in found] == [
        ("feduhb", attack.attack, attack.on) for attack in first.membership
    ]
    for one, *pair in zip(found, first.membership, second.membership, strict=True):
        apart = [attack.against_retrain for attack in pair]
        assert one.against_retrain == pool_differences(apart, independent=False)
        assert one.against_retrain.value == pytest.approx((apart[0].value + apart[1].value) / 2)
        assert (one.seeds, one.members, one.others) == ((1, 2), 24, 8)
    assert found[0].says.startswith(
        "feduhb, loss on all forgotten data, over 2 seeds: AUC(audited) - AUC(Retrain) "
    )
    assert pool_seeds([Audit.from_json(one.to_json()) for one in audits]) == found


@pytest.mark.slow
def test_other_audits_are_not_combined(audits):
    first, second, *_ = audits
    assert pool_seeds([first]) == pool_seeds([first, first]) == []
    assert pool_seeds([first, replace(second, procedure="")]) == []  # an earlier version wrote it
    assert pool_seeds([first, replace(second, forgot="bee")]) == []
    elsewhere = [
        replace(one, models={**one.models, "retrain": one.models["original"]}) for one in second.membership
    ]
    assert pool_seeds([first, replace(second, membership=tuple(elsewhere))]) == []
