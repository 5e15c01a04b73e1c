"""Claims on the stop rule and on momentum, judged both ways."""

from __future__ import annotations

from feduhb.report.paper import claims_settings
from feduhb.report.paper.claims_parts import (
    CONDITIONS,
    FAILS,
    HOLDS,
    UNKNOWN,
    Judged,
)
from report.judging import evidence, federation, rise, ruled

SLOW = rise(40)  # Retrain's: it has its final accuracy in the last round alone


def test_the_rule_saves_rounds_and_costs_nothing():
    judged = claims_settings.stopped(evidence(federation({"feduhb-on": ruled(rise(9))})), data="mnist")
    assert judged.verdict == HOLDS
    assert "3 of 3 / 24.0 of 40 / +0.0" in judged.measured
    late = claims_settings.stopped(evidence(federation({"feduhb-on": ruled(rise(30))})), data="mnist")
    assert (late.verdict, late.why) == (CONDITIONS, "it saves rounds, at a loss")
    never = ruled(rise(9), fires=False)
    assert claims_settings.stopped(evidence(federation({"feduhb-on": never})), data="mnist").verdict == FAILS
    some = federation({"feduhb-on": ruled(rise(9))}, apart={0: {"feduhb-on": never}})
    assert claims_settings.stopped(evidence(some), data="mnist").why == "it fires in some seeds only"


def test_a_larger_lambda_means_fewer_rounds_and_less_accuracy():
    steady = [0.5 + 0.01 * t for t in range(40)]
    assert claims_settings.larger(evidence(federation({"feduhb-on": ruled(steady)}))).verdict == HOLDS
    judged = claims_settings.larger(evidence(federation({"feduhb-on": ruled(steady[::-1])})))
    assert judged.why == "fewer rounds, but not always a lower accuracy"
    assert (
        claims_settings.larger(evidence(federation({"feduhb-on": ruled(steady, fires=False)}))).verdict
        == FAILS
    )


def test_the_papers_numbers_for_lambda():
    def judged(final: float, *, fires: bool = True) -> Judged:
        cells = federation({"feduhb-on": ruled(rise(9, final), fires=fires)})
        return claims_settings.printed(evidence(cells), scale=0.6)

    assert judged(0.93).verdict == HOLDS
    assert not judged(0.93).why
    assert judged(0.97).verdict == FAILS
    assert judged(0.93, fires=False).verdict == FAILS
    assert judged(0.97, fires=False).verdict == FAILS
    assert "window" in judged(0.97, fires=False).why


def test_a_higher_beta_is_faster():
    def judged(**at: int) -> Judged:
        runs = {f"momentum-{beta.removeprefix('b')}": rise(n) for beta, n in at.items() if beta != "on"}
        return claims_settings.faster(
            evidence(federation({"retrain": SLOW, "feduhb-on": rise(at["on"]), **runs}))
        )

    point = {"b0.5": 20}
    assert judged(on=10, **point).verdict == HOLDS
    assert judged(on=25, **point).why == "only up to β = 0.5"
    assert judged(on=10, **{"b0.3": 20, "b0.5": 30}).why == "fastest with β = 0.9, but not with every step"
    slow = federation({"retrain": rise(9), "feduhb-on": rise(20), "momentum-0.5": rise(15)})
    assert claims_settings.faster(evidence(slow)).verdict == FAILS
    assert claims_settings.faster(evidence(federation({}))).why == "no other momentum was tried"


def test_momentum_against_the_best_server_step():
    def judged(ours: list[float], step: list[float]) -> Judged:
        runs = {"retrain": SLOW, "feduhb-on": ours, "step-2": step, "step-3": rise(20, 0.3)}
        return claims_settings.tuned(evidence(federation(runs)), data="mnist")

    assert judged(rise(9, 0.95), rise(12, 0.93)).verdict == HOLDS
    assert judged(rise(9, 0.93), rise(12, 0.95)).why == "sooner, but no better at the end"
    assert judged(rise(15, 0.95), rise(12, 0.93)).why == "better at the end, but no sooner"
    assert judged(rise(15, 0.92), rise(12, 0.95)).verdict == FAILS
    assert (
        "15.0 (92.0%) / 12.0 (95.0%), step 2 / 12.0 (95.0%), step 2"
        in judged(rise(15, 0.92), rise(12, 0.95)).measured
    )
    assert claims_settings.tuned(evidence(federation({})), data="mnist").verdict == UNKNOWN
    soon = {"retrain": SLOW, "feduhb-on": rise(15, 0.95), "step-2": rise(12, 0.91), "step-3": rise(30, 0.93)}
    two = claims_settings.tuned(evidence(federation(soon)), data="mnist")
    assert two.why == "better at the end, but no sooner"
    assert "/ 12.0 (91.0%), step 2 / 30.0 (93.0%), step 3" in two.measured


def test_stability_is_the_largest_fall():
    bumpy = [0.1, 0.6, 0.3, *[0.9] * 37]
    assert (
        claims_settings.stable(evidence(federation({"feduhb-on": rise(9), "retrain": bumpy}))).verdict
        == HOLDS
    )
    judged = claims_settings.stable(evidence(federation({"feduhb-on": bumpy, "retrain": rise(9)})))
    assert judged.verdict == FAILS
    assert "MNIST iid: 30.0 / 0.0" in judged.measured
