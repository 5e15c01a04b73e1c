"""Claims on the stop rule and on momentum, judged both ways."""

from __future__ import annotations

from feduhb_reproduction.claims import settings
from feduhb_reproduction.claims.parts import (
    CONDITIONS,
    FAILS,
    HOLDS,
    UNKNOWN,
    Judged,
)
from paper.judging import evidence, federation, rise, ruled

SLOW = rise(40)  # Retrain's: it has its final accuracy in the last round alone


def test_the_rule_saves_rounds_and_costs_nothing():
    judged = settings.judge_stopped(evidence(federation({"feduhb-on": ruled(rise(9))})), data="mnist")
    assert judged.verdict == HOLDS
    assert "3 of 3 / 24.0 of 40 / +0.0" in judged.measured
    late = settings.judge_stopped(evidence(federation({"feduhb-on": ruled(rise(30))})), data="mnist")
    assert (late.verdict, late.why) == (CONDITIONS, "saves rounds, but loses accuracy")
    noisy = {0: {"feduhb-on": ruled(rise(30))}}
    hardly = settings.judge_stopped(
        evidence(federation({"feduhb-on": ruled(rise(9))}, apart=noisy)), data="mnist"
    )
    assert hardly.verdict == HOLDS, "a loss in one seed of three is not clear"
    small = ruled([*rise(9, 0.9, rounds=39), 0.901])
    slight = settings.judge_stopped(evidence(federation({"feduhb-on": small})), data="mnist")
    assert slight.why == "saves rounds, but loses accuracy", "small, but in every seed"
    never = ruled(rise(9), fires=False)
    assert settings.judge_stopped(evidence(federation({"feduhb-on": never})), data="mnist").verdict == FAILS
    some = federation({"feduhb-on": ruled(rise(9))}, apart={0: {"feduhb-on": never}})
    assert settings.judge_stopped(evidence(some), data="mnist").why == "fires in some seeds only"


def test_a_larger_lambda_means_fewer_rounds_and_less_accuracy():
    steady = [0.5 + 0.01 * t for t in range(40)]
    assert settings.judge_larger(evidence(federation({"feduhb-on": ruled(steady)}))).verdict == HOLDS
    judged = settings.judge_larger(evidence(federation({"feduhb-on": ruled(steady[::-1])})))
    assert judged.why == "fewer rounds, but not always a lower accuracy"
    assert (
        settings.judge_larger(evidence(federation({"feduhb-on": ruled(steady, fires=False)}))).verdict
        == FAILS
    )


def test_a_higher_beta_is_faster():
    def judged(**at: int) -> Judged:
        runs = {f"momentum-{beta.removeprefix('b')}": rise(n) for beta, n in at.items() if beta != "on"}
        return settings.judge_faster(
            evidence(federation({"retrain": SLOW, "feduhb-on": rise(at["on"]), **runs}))
        )

    point = {"b0.5": 20}
    assert judged(on=10, **point).verdict == HOLDS
    tried = "; federations tried: 1 of MNIST"
    assert judged(on=25, **point).why == f"from β 0 to 0.5 only{tried}"
    assert judged(on=20, **point).why == f"from β 0 to 0.5 only{tried}", "a tie is no gain"
    assert (
        judged(on=10, **{"b0.3": 20, "b0.5": 30}).why == f"from β 0 to 0.3 and from β 0.5 to 0.9 only{tried}"
    )
    runs = {"retrain": SLOW, "momentum-0.5": rise(20), "feduhb-on": rise(10)}
    both = [federation(runs), federation({**runs, "feduhb-on": rise(20)}, data="cifar10")]
    assert settings.judge_faster(evidence(*both)).why == (
        "for MNIST iid; for CIFAR-10 iid: from β 0 to 0.5 only; federations tried: 1 of MNIST and 1 of CIFAR-10"
    )
    slow = federation({"retrain": rise(9), "feduhb-on": rise(20), "momentum-0.5": rise(15)})
    assert settings.judge_faster(evidence(slow)).verdict == FAILS
    assert settings.judge_faster(evidence(federation({}))).why == "no other momentum was tried"


def test_momentum_against_the_best_server_step():
    def judged(ours: list[float], step: list[float]) -> Judged:
        runs = {
            "retrain": SLOW,
            "feduhb-on": ours,
            "step-1.5": rise(30),
            "step-2": step,
            "step-3": rise(20, 0.3),
        }
        return settings.judge_tuned(evidence(federation(runs)), data="mnist")

    assert judged(rise(9, 0.95), rise(12, 0.93)).verdict == HOLDS
    assert judged(rise(9, 0.93), rise(12, 0.95)).why == "sooner, but no better at the end"
    assert judged(rise(15, 0.95), rise(12, 0.93)).why == "better at the end, but no sooner"
    assert judged(rise(15, 0.92), rise(12, 0.95)).verdict == FAILS
    assert (
        "15.0 (92.0%) / 12.0 (95.0%), step 2 / 12.0 (95.0%), step 2"
        in judged(rise(15, 0.92), rise(12, 0.95)).measured
    )
    assert settings.judge_tuned(evidence(federation({})), data="mnist").verdict == UNKNOWN
    soon = {"retrain": SLOW, "feduhb-on": rise(15, 0.95), "step-2": rise(12, 0.91), "step-3": rise(30, 0.93)}
    two = settings.judge_tuned(evidence(federation(soon)), data="mnist")
    assert two.why == "better at the end, but no sooner"
    assert "/ 12.0 (91.0%), step 2 / 30.0 (93.0%), step 3" in two.measured


def test_a_step_at_the_edge_of_what_was_tried_is_not_tuned():
    def judged(**steps: list[float]) -> Judged:
        runs = {f"step-{name.removeprefix('s')}": curve for name, curve in steps.items()}
        return settings.judge_tuned(
            evidence(federation({"retrain": SLOW, "feduhb-on": rise(9, 0.97), **runs})), data="mnist"
        )

    low = judged(s2=rise(40, 0.5), s3=rise(40, 0.4))
    assert (low.verdict, low.why) == (
        CONDITIONS,
        "against the steps tried (1, 2, 3); none under 1 and none between 1 and 2 was tried",
    )
    assert (
        judged(s2=rise(30, 0.95)).why
        == "against the steps tried (1, 2); none between 1 and 2 and none over 2 was tried"
    )
    swept = federation(
        {"retrain": SLOW, "feduhb-on": rise(9, 0.97), "step-1.5": rise(30, 0.95), "step-2": rise(35, 0.93)}
    )
    few = settings.judge_tuned(evidence(swept, federation({}, per_client=3000)), data="mnist")
    assert (few.verdict, few.why) == (
        CONDITIONS,
        "for iid (525); unknown for iid (3000), where no other server step was tried",
    )
    fine = {"s1.5": rise(30, 0.95), "s2": rise(35, 0.93)}
    assert judged(**fine).verdict == HOLDS
    assert (
        judged(**{**fine, "s2": rise(20, 0.93)}).why
        == "against the steps tried (1, 1.5, 2); none over 2 was tried"
    )


def test_stability_is_the_largest_fall():
    bumpy = [0.1, 0.6, 0.3, *[0.9] * 37]
    assert (
        settings.judge_stable(evidence(federation({"feduhb-on": rise(9), "retrain": bumpy}))).verdict == HOLDS
    )
    judged = settings.judge_stable(evidence(federation({"feduhb-on": bumpy, "retrain": rise(9)})))
    assert judged.verdict == FAILS
    assert "MNIST iid: 30.0 / 0.0" in judged.measured
