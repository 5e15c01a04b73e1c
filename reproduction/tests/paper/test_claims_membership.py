"""Claims on membership inference, judged both ways, as a bare rate and over chance."""

from __future__ import annotations

from feduhb_reproduction.claims import membership
from feduhb_reproduction.claims.parts import CONDITIONS, FAILS, HOLDS, UNKNOWN, Judged
from paper.judging import evidence, federation


def rates(**called: float) -> dict[str, tuple[float, float]]:
    return {run: (rate, 0.45) for run, rate in called.items()}


def test_one_half_must_tell_retrain_from_the_original():
    def judged(retrain: float, original: float) -> Judged:
        return membership.judge_half(evidence(federation({}, misr=rates(retrain=retrain, original=original))))

    assert judged(0.5, 0.8).verdict == HOLDS
    assert judged(0.24, 0.8).verdict == FAILS
    assert judged(0.5, 0.55).verdict == FAILS
    assert "MNIST iid: 50.0% (45.0%) / 80.0% (45.0%)" in judged(0.5, 0.8).measured
    assert "recall" in judged(0.24, 0.8).why


def levels(*called: dict[str, float]) -> Judged:
    sizes = (525, 3000)[: len(called)]
    cells = [federation({}, misr=rates(**one), per_client=n) for n, one in zip(sizes, called, strict=True)]
    return membership.judge_levels(evidence(*cells))


NEAR = {"retrain": 0.25, "federaser": 0.5, "fedrecover": 0.55}


def test_levels_of_misr_are_two_statements_and_each_is_judged():
    assert (levels(NEAR).verdict, levels(NEAR).why) == (HOLDS, "")
    far = levels({**NEAR, "retrain": 0.5})
    assert (far.verdict, far.why) == (
        FAILS,
        "Retrain's 23.9%: does not hold in any federation; the others' close to 50 %: holds",
    )
    one = levels({**NEAR, "fedrecover": 0.7})
    assert (one.verdict, one.why) == (
        FAILS,
        "Retrain's 23.9%: holds; the others' close to 50 %: FedEraser only",
    )
    none = levels({"retrain": 0.5, "federaser": 0.9, "fedrecover": 0.7})
    assert none.why.endswith("the others' close to 50 %: does not hold in any federation")
    assert levels({"retrain": 0.5, "federaser": 0.9}).verdict == UNKNOWN


def test_both_statements_must_hold_in_one_federation():
    apart = levels({**NEAR, "retrain": 0.5}, {**NEAR, "federaser": 0.9, "fedrecover": 0.9})
    assert apart.verdict == FAILS
    assert apart.why == (
        "Retrain's 23.9%: for iid (3000); not for iid (525); "
        "the others' close to 50 %: for iid (525); not for iid (3000)"
    )
    some = levels(NEAR, {**NEAR, "retrain": 0.5})
    assert some.verdict == CONDITIONS
    assert some.why.startswith("for iid (525); not for iid (3000); Retrain's 23.9%: for iid (525)")


LOW = {"feduhb": 0.3, "federaser": 0.5, "fedrecover": 0.5, "original": 0.9, "retrain": 0.4}


def lower(also: dict[str, float] | None = None, **called: float) -> Judged:
    told = {**LOW, **called}
    cells = federation({}, misr=rates(**told), logistic=rates(**{**told, **also}) if also else None)
    return membership.judge_lower(evidence(cells), data="mnist", than=("federaser", "fedrecover"))


def over(told: str) -> str:
    """Why, where the bare rate has FedUHB below both."""
    return f"as a bare rate, by boosted trees: holds. Minus the attacker's rate on test data: {told}"


def test_a_lower_misr():
    assert (lower().verdict, lower().why) == (HOLDS, "")
    bare, chance = lower().measured.split("\n\n")
    assert bare.endswith("iid: 30.0% / 50.0% / 50.0%")
    assert chance.endswith("iid: -15.0 / +5.0 / +5.0 / +45.0 / -5.0 (boosted trees)")
    some = lower(fedrecover=0.2)
    assert some.verdict == CONDITIONS
    assert some.why == (
        "as a bare rate, by boosted trees: lower than FedEraser's only. "
        "Minus the attacker's rate on test data: lower than FedEraser's by boosted trees only"
    )
    assert lower(feduhb=0.6, fedrecover=0.2).verdict == FAILS


def test_the_bare_rate_alone_is_no_forgetting():
    """FedUHB's attacker says member less often to everything: the paper's number is lower, and nothing is forgotten by that."""
    called = rates(**LOW) | {"feduhb": (0.3, 0.2)}
    judged = membership.judge_lower(evidence(federation({}, misr=called)), data="mnist", than=("federaser",))
    assert (judged.verdict, judged.why) == (CONDITIONS, over("does not hold"))
    assert judged.brief == (
        "rate 30.0%; the lowest of the others 50.0%; minus the rate on test data, for iid by boosted trees, +10.0 points; the lowest of the others +5.0; the original model +45.0"
    )


def test_a_rate_that_is_lower_over_chance_alone_is_not_the_papers():
    called = rates(**LOW) | {"feduhb": (0.6, 0.9)}
    judged = membership.judge_lower(evidence(federation({}, misr=called)), data="mnist", than=("federaser",))
    assert judged.verdict == CONDITIONS
    assert judged.why == (
        "as a bare rate, by boosted trees: does not hold. Minus the attacker's rate on test data: holds"
    )


def test_both_attackers_must_agree():
    assert lower({"feduhb": 0.2}).verdict == HOLDS
    torn = lower({"feduhb": 0.6})
    told = "lower than FedEraser's by boosted trees and lower than FedRecover's by boosted trees only"
    assert (torn.verdict, torn.why) == (CONDITIONS, over(told))
    blind = lower({"feduhb": 0.6, "original": 0.4})
    assert (blind.verdict, blind.why) == (HOLDS, ""), "who sees nothing in the original says nothing"
    assert "(logistic regression, which hardly tells the original from Retrain)" in blind.measured


def test_where_the_original_has_retrains_misr_only_the_bare_rate_can_be_judged():
    judged = lower(original=0.44)
    assert judged.verdict == CONDITIONS
    unseen = "cannot be judged, nothing to judge by: where no attacker puts the original model 5 points above"
    assert judged.why.startswith(over(unseen))
    assert lower(feduhb=0.6, original=0.44).verdict == FAILS, "the bare rate is known, and it is no lower"
    assert lower(original=0.46).verdict == HOLDS
    blind, seeing = rates(**{**LOW, "original": 0.44}), rates(**LOW)
    two = [federation({}, misr=blind), federation({}, misr=seeing, per_client=3000)]
    some = membership.judge_lower(evidence(*two), data="mnist", than=("federaser",))
    assert some.verdict == CONDITIONS
    assert some.why.startswith(over("for iid (3000); unknown for iid (525), where no attacker"))
    worse = [
        federation({}, misr=blind),
        federation({}, misr=rates(**{**LOW, "feduhb": 0.8}), per_client=3000),
    ]
    none = membership.judge_lower(evidence(*worse), data="mnist", than=("federaser",))
    assert none.verdict == CONDITIONS
    assert none.why.startswith("as a bare rate, by boosted trees: for iid (525); not for iid (3000). Minus")
    assert "data: does not hold, judged by iid (3000); unknown for iid (525)" in none.why


def test_slightly_worse_than_on_mnist_and_better_than_retrain():
    def judged(here: float, there: float) -> Judged:
        cells = [
            federation({}, misr=rates(**{**LOW, "feduhb": rate}), data=data)
            for data, rate in (("mnist", there), ("cifar10", here))
        ]
        return membership.judge_lower(evidence(*cells), data="cifar10", than=("retrain",), among="mnist")

    assert judged(0.3, 0.2).verdict == HOLDS
    assert judged(0.3, 0.2).measured.endswith("iid: -15.0 / -5.0 / +45.0 / -25.0 (boosted trees)")
    assert judged(0.3, 0.35).why.endswith("data: lower than Retrain's by boosted trees only")
    assert judged(0.3, 0.35).why.startswith("as a bare rate, by boosted trees: lower than Retrain's only.")
    assert judged(0.5, 0.35).why.endswith("data: higher than on MNIST by boosted trees only")
    assert judged(0.5, 0.6).verdict == FAILS
    alone = evidence(federation({}, misr=rates(**LOW), data="cifar10"))
    told = membership.judge_lower(alone, data="cifar10", than=("retrain",), among="mnist")
    assert (told.verdict, told.why) == (UNKNOWN, "there is no cell of MNIST")
