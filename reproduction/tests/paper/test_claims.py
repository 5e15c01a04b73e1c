"""Every criterion, both ways: other numbers give another verdict."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from feduhb_reproduction import claims
from feduhb_reproduction.cells import Cell, Track
from feduhb_reproduction.claims import (
    accuracy,
    convergence,
    recover,
    time,
)
from feduhb_reproduction.claims.parts import (
    CONDITIONS,
    FAILS,
    HOLDS,
    UNKNOWN,
    Evidence,
    Judged,
    Verdict,
)
from paper.cells import failing, grid, track
from paper.judging import evidence, federation, rise, took

SLOW = rise(40)  # Retrain's: it has its final accuracy in the last round alone


def sooner(*cells: list[Cell]) -> Judged:
    return convergence.judge_sooner(evidence(*cells))


def test_sooner_than_retrain_holds():
    assert sooner(federation({"retrain": SLOW, "feduhb": rise(20)})) == Judged(
        "Round at which FedUHB has Retrain's final accuracy (Retrain itself) / 93% (Retrain) (mean over 3 seeds).\n"
        "iid: 20 of 40 (40 of 40) / never in 3 of 3 seeds (never in 3 of 3 seeds)",
        HOLDS,
        brief="Retrain's final accuracy at round 20.0, Retrain itself at 40.0; 93% at nothing, Retrain at nothing",
    )
    assert sooner(federation({"retrain": SLOW, "feduhb": SLOW})).verdict == FAILS


def test_a_gain_in_one_seed_of_three_is_not_sooner():
    noisy = {0: {"feduhb": rise(38)}}
    assert sooner(federation({"retrain": SLOW, "feduhb": SLOW}, apart=noisy)).verdict == FAILS


def test_93_percent_that_comes_no_sooner_is_a_condition():
    """Retrain is quick to 93 %, and slow from there on."""
    quick, late = [*rise(5, 0.94, rounds=39), 0.96], rise(8, 0.97)
    judged = sooner(federation({"retrain": quick, "feduhb": late}))
    assert (judged.verdict, judged.why) == (
        CONDITIONS,
        "Retrain's final accuracy sooner, 93% not clearly",
    )
    assert judged.measured.endswith("iid: 8 of 40 (40 of 40) / 8 of 40 (5 of 40)")
    assert sooner(federation({"retrain": quick, "feduhb": rise(4, 0.97)})).verdict == HOLDS
    assert sooner(federation({"retrain": rise(40, 0.92), "feduhb": rise(8, 0.92)})).verdict == HOLDS, (
        "nobody has it"
    )


def test_one_seed_that_never_gets_there_is_enough_to_fail():
    judged = sooner(federation({"retrain": SLOW, "feduhb": rise(9)}, apart={1: {"feduhb": rise(9, 0.89)}}))
    assert judged.verdict == FAILS
    assert "iid: 9 of 40, never in 1 of 3 seeds (40 of 40)" in judged.measured


def test_federations_that_disagree_are_named():
    fast, never = federation({"retrain": SLOW, "feduhb": rise(9)}), {"retrain": SLOW, "feduhb": rise(9, 0.5)}
    judged = sooner(fast, federation(never, partition="shards:2"), federation(never, per_client=3000))
    assert judged.verdict == CONDITIONS
    assert judged.why == "for iid (525); not for 2 classes a client (525) and iid (3000)"


SPEED = "everywhere at least as accurate as Retrain at its last round, but that is speed and not convergence"


def settled(*ours: list[float]) -> Judged:
    sizes = (525, 3000)[: len(ours)]
    cells = [
        federation({"retrain": SLOW, "feduhb-on": one}, per_client=n)
        for n, one in zip(sizes, ours, strict=True)
    ]
    return convergence.judge_settled(evidence(*cells))


def test_converged_is_near_its_own_best_by_round_20():
    assert (settled(rise(20)).verdict, settled(rise(20)).why) == (HOLDS, SPEED)
    assert (settled(rise(21)).verdict, settled(rise(21)).why) == (FAILS, "")
    two = settled([*rise(9, 0.91, rounds=39), 0.99], rise(9))
    assert (two.verdict, two.why) == (CONDITIONS, f"for iid (3000); not for iid (525); {SPEED}")
    assert two.measured.endswith("iid (525): 91.0% / 99.0% / 90.0%\niid (3000): 90.0% / 90.0% / 90.0%")
    short = federation({"feduhb-on": rise(5, rounds=10)}, rounds=10)
    assert convergence.judge_settled(evidence(short)).verdict == UNKNOWN


def test_retrains_accuracy_is_not_convergence():
    above = settled([*rise(9, 0.91, rounds=39), 0.99])
    assert (above.verdict, above.why) == (FAILS, SPEED)


def test_the_best_is_that_of_any_round():
    assert settled([*rise(9, 0.9, rounds=29), 0.95, *[0.9] * 10]).verdict == FAILS


def test_a_narrow_miss_is_named():
    assert settled([*rise(9, 0.9, rounds=39), 0.9107]).why == f"borderline: 1.07 points for iid; {SPEED}"
    assert settled([*rise(9, 0.9, rounds=39), 0.9099]).verdict == HOLDS


def test_retrain_and_federaser_behind_at_round_20():
    ahead = {"feduhb-on": rise(9), "retrain": SLOW, "federaser": rise(9, 0.8, rounds=20)}
    assert convergence.judge_behind(evidence(federation(ahead))).verdict == HOLDS
    judged = convergence.judge_behind(evidence(federation({**ahead, "federaser": rise(9, rounds=20)})))
    assert (judged.verdict, judged.why) == (CONDITIONS, "true of Retrain only")
    level = {"feduhb-on": SLOW, "retrain": SLOW, "federaser": rise(9, rounds=20)}
    assert convergence.judge_behind(evidence(federation(level))).verdict == FAILS


def test_fedrecover_is_quick_and_falls_short():
    quick, late = rise(3, 0.8), rise(39, 0.8)
    others = {"retrain": rise(30), "feduhb": rise(9)}

    def judged(curve: list[float]) -> Judged:
        return recover.judge_recovered(evidence(federation({**others, "fedrecover": curve})))

    assert judged(quick).verdict == HOLDS
    assert judged(late).why == "behind but not quick"
    assert judged(rise(3)).why == "quick but not behind"
    assert judged(rise(39)).verdict == FAILS


def repaired(early: list[float], end: float, exact: int = 4) -> Track:
    """A FedRecover whose last rounds are exact, and end elsewhere."""
    whole = [*early[: len(early) - exact], *[end] * exact]
    return replace(track(whole), settings={"final": exact})


def test_fedrecover_is_judged_before_its_last_exact_rounds_too():
    others = {"retrain": rise(30), "feduhb": rise(9)}

    def judged(early: list[float], end: float) -> Judged:
        return recover.judge_recovered(evidence(federation({**others, "fedrecover": repaired(early, end)})))

    assert judged(rise(3, 0.8), 0.8).verdict == HOLDS
    mixed = judged(rise(3, 0.5), 0.85)
    assert (mixed.verdict, mixed.why) == (
        CONDITIONS,
        "true before its last exact rounds, behind but not quick at the end",
    )
    assert "3.0 / 30.0 / -40.0 before its last exact rounds, 37.0 / 30.0 / -5.0 at the end" in mixed.measured
    assert judged(rise(35), 0.9).verdict == FAILS


def test_thirty_percent_before_the_repair_is_a_condition():
    def judged(early: float, end: float) -> Judged:
        cells = federation({"fedrecover": repaired(rise(9, early), end)}, data="cifar10")
        return recover.judge_thirty(evidence(cells))

    assert judged(0.32, 0.33).verdict == HOLDS
    assert (judged(0.32, 0.4).verdict, judged(0.32, 0.4).why) == (
        CONDITIONS,
        "true before its last exact rounds, not at the end",
    )
    assert judged(0.32, 0.4).brief == "before its last exact rounds 32.0%, at the end 40.0%"
    assert judged(0.5, 0.31).why == "not before its last exact rounds, true at the end"
    assert judged(0.5, 0.4).verdict == FAILS


def test_fedrecover_on_cifar10_is_compared_before_the_repair_too():
    mnist = federation({"retrain": rise(9), "fedrecover": repaired(rise(9, 0.88), 0.9)})
    cifar = federation(
        {"retrain": rise(9), "fedrecover": repaired(rise(9, 0.5), 0.9)}, data="cifar10", per_client=2500
    )
    judged = recover.judge_weaker(evidence(mnist, cifar))
    assert (judged.verdict, judged.why) == (CONDITIONS, "true before its last exact rounds, not at the end")
    assert "-40.0 / -2.0 before its last exact rounds, +0.0 / +0.0 at the end" in judged.measured


def test_a_fedrecover_that_breaks_off_is_said_to():
    cells = [failing(one, "fedrecover") for one in federation({})]
    judged = recover.judge_recovered(evidence(cells))
    assert judged.verdict == FAILS
    assert "broke off in 3 of 3 seeds" in judged.measured


def test_one_broken_seed_leaves_the_others():
    runs = {"retrain": rise(30), "feduhb": rise(9), "fedrecover": rise(3, 0.8)}
    some = [failing(one, "fedrecover") if one.place.seed == 1 else one for one in federation(runs)]
    judged = recover.judge_recovered(evidence(some))
    assert judged.verdict == HOLDS
    assert judged.measured.endswith("iid: 3.0 / 30.0 / -10.0, broke off in 1 of 3 seeds")
    other = [replace(one, place=replace(one.place, data="cifar10")) for one in some]
    assert recover.judge_weaker(evidence(federation(runs), other)).verdict == FAILS
    assert (
        "-10.0, broke off in 1 of 3 seeds / -10.0"
        in recover.judge_weaker(evidence(federation(runs), other)).measured
    )


def test_a_method_that_was_not_run_leaves_nothing_to_compare():
    few = [
        replace(one, runs={name: run for name, run in one.runs.items() if name != "federaser"})
        for one in federation({})
    ]
    for judge in (
        accuracy.judge_satisfying,
        partial(accuracy.judge_best, data="mnist"),
        convergence.judge_behind,
    ):
        assert judge(evidence(few)) == Judged("", UNKNOWN, "there are no numbers to judge it by")


def test_fedrecover_is_weaker_on_cifar10():
    near, far = (
        {"retrain": rise(9), "fedrecover": rise(9, 0.85)},
        {"retrain": rise(9), "fedrecover": rise(9, 0.5)},
    )
    mnist, cifar = federation(near), federation(far, data="cifar10", per_client=2500)
    assert recover.judge_weaker(evidence(mnist, cifar)).verdict == HOLDS
    assert "iid: -40.0 / -5.0" in recover.judge_weaker(evidence(mnist, cifar)).measured
    other = federation(far, per_client=3000)
    assert recover.judge_weaker(evidence(mnist, other, cifar)).verdict == FAILS
    hardly = federation({**near, "fedrecover": rise(9, 0.845)}, data="cifar10")
    assert recover.judge_weaker(evidence(mnist, hardly)).verdict == FAILS
    assert recover.judge_weaker(evidence(mnist)).why == "there is no cell of CIFAR-10"
    assert recover.judge_weaker(evidence(cifar)).why == "there is no cell of MNIST"
    assert recover.judge_weaker(evidence(mnist, [failing(c, "fedrecover") for c in cifar])).verdict == HOLDS


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(took(0.89), HOLDS), (took(0.91), FAILS), (took(1.0, 20), FAILS), (took(1.0), FAILS)],
)
def test_seconds_of_a_round_against_retrains(ours, verdict):
    judged = time.judge_each_round(evidence(federation({"feduhb": ours, "retrain": took(1.0)})), data="mnist")
    assert judged.verdict == verdict


def test_rounds_never_run_do_not_shorten_a_round():
    runs = {"feduhb": took(1.0, 20), "retrain": took(1.0)}
    judged = time.judge_each_round(evidence(federation(runs)), data="mnist")
    assert (judged.verdict, judged.why) == (FAILS, time.NEVER_RUN)
    assert "iid: 1.00 / 1.00 / 0.500 / 1.00" in judged.measured
    same = time.judge_each_round(evidence(federation({**runs, "feduhb": took(1.0)})), data="mnist")
    assert not same.why


def test_a_verdict_that_noise_would_turn_is_marked():
    def why(ours: Track) -> str:
        runs = {"feduhb": ours, "retrain": took(1.0), "federaser": took(1.0), "fedrecover": took(1.0)}
        return time.judge_in_all(evidence(federation(runs)), data="mnist").why

    near = "0.890 of Retrain's for iid, 0.890 of FedEraser's for iid and 0.890 of FedRecover's for iid"
    assert why(took(0.89)) == f"borderline: {near}, against 0.90"
    assert why(took(0.91)).startswith("borderline: 0.910 of Retrain's")
    assert not why(took(0.87))
    assert not why(took(0.93))
    runs = {"feduhb": took(0.89), "retrain": took(1.0)}
    told = time.judge_each_round(evidence(federation(runs)), data="mnist").why
    assert told == "borderline: 0.890 of Retrain's for iid, against 0.90"


def test_seconds_of_a_round_against_the_others():
    runs = {"feduhb": took(1.0), "federaser": took(2.0), "fedrecover": took(0.5)}
    judged = time.judge_than_others(evidence(federation(runs)), data="mnist")
    assert (judged.verdict, judged.why) == (CONDITIONS, "against FedEraser only")
    assert (
        time.judge_than_others(evidence(federation({**runs, "feduhb": took(0.4)})), data="mnist").verdict
        == HOLDS
    )
    assert (
        time.judge_than_others(evidence(federation({**runs, "feduhb": took(2.0)})), data="mnist").verdict
        == FAILS
    )


def test_seconds_in_all():
    runs = {
        "feduhb": took(1.0, 20),
        "retrain": took(1.0),
        "federaser": took(0.5, 20),
        "fedrecover": took(1.0),
    }
    judged = time.judge_in_all(evidence(federation(runs)), data="mnist")
    assert judged.why == "against Retrain and FedRecover only"
    assert judged.measured.endswith("iid: 20.0 / 40.0 / 10.0 / 40.0")


def test_rounds_that_compiled_count_as_the_usual():
    """Retrain compiles in its first round, which is no merit of the others."""
    first = took(1.0)
    late = replace(first, series={**first.series, "client_seconds": (30.0, *[1.0] * 39)})
    judged = time.judge_each_round(evidence(federation({"feduhb": took(1.0), "retrain": late})), data="mnist")
    assert judged.verdict == FAILS
    assert "iid: 1.00 / 1.00 / 1.00 / 1.00" in judged.measured


def test_only_cells_that_were_alone_are_asked_for_seconds():
    judged = time.judge_in_all(evidence(federation({}, alone=False)), data="mnist")
    assert judged == Judged("", UNKNOWN, "no cell of MNIST ran alone on its machine")


FOUR = {"feduhb": rise(9, 0.95), "retrain": rise(9), "federaser": rise(9, 0.88), "fedrecover": rise(9, 0.86)}


def test_all_four_satisfy():
    whole = {**FOUR, "original": rise(9)}
    assert accuracy.judge_satisfying(evidence(federation(whole))).verdict == HOLDS
    judged = accuracy.judge_satisfying(evidence(federation({**whole, "fedrecover": rise(9, 0.84)})))
    assert judged.why == "true of FedUHB, Retrain and FedEraser only"
    assert (
        accuracy.judge_satisfying(evidence(federation({**whole, "original": rise(9, 1.01)}))).verdict == FAILS
    )
    broken = [failing(one, "fedrecover") for one in federation(whole)[:1]]
    assert accuracy.judge_satisfying(evidence(broken)).verdict == CONDITIONS


def test_the_best_of_the_four_or_not():
    assert accuracy.judge_best(evidence(federation(FOUR)), data="mnist").verdict == HOLDS
    judged = accuracy.judge_best(evidence(federation({**FOUR, "federaser": rise(9, 0.95)})), data="mnist")
    assert judged.why == "against Retrain and FedRecover only"
    assert (
        accuracy.judge_best(evidence(federation({**FOUR, "feduhb": rise(9, 0.1)})), data="mnist").verdict
        == FAILS
    )
    noisy = {0: {"feduhb": rise(9, 0.99)}, 1: {"feduhb": rise(9, 0.81)}}
    assert (
        "against FedEraser"
        not in accuracy.judge_best(evidence(federation(FOUR, apart=noisy)), data="mnist").why
    )


def test_fedrecover_at_thirty_percent():
    for final, verdict in ((0.3, HOLDS), (0.34, HOLDS), (0.36, FAILS), (0.24, FAILS)):
        cells = federation({"fedrecover": rise(9, final)}, data="cifar10")
        assert recover.judge_thirty(evidence(cells)).verdict == verdict
    assert recover.judge_thirty(evidence([failing(c, "fedrecover") for c in cells])).verdict == FAILS


def test_the_other_three_decline():
    whole = {**FOUR, "original": rise(9, 0.96)}
    assert accuracy.judge_declined(evidence(federation(whole, data="cifar10"))).verdict == HOLDS
    judged = accuracy.judge_declined(
        evidence(federation({**whole, "original": rise(9, 0.92)}, data="cifar10"))
    )
    assert judged.why == "true of Retrain and FedEraser only"
    assert "iid: +3.0 / -2.0 / -4.0" in judged.measured


def test_a_decline_from_mnist_is_the_other_reading():
    def why(*mnist: list[Cell]) -> str:
        here = federation({**FOUR, "original": rise(9, 0.96)}, data="cifar10", per_client=2500)
        return accuracy.judge_declined(evidence(here, *mnist)).why

    high = federation(dict.fromkeys(FOUR, rise(9, 0.97)))
    assert why(high) == "read as lower than on MNIST, true of all three in all federations"
    assert (
        why(high, federation(FOUR, per_client=3000))
        == "read as lower than on MNIST, true of all three for none"
    )
    assert not why()


def test_without_any_evidence_nothing_is_judged():
    found = claims.judge_claims(Evidence({}))
    assert {one.verdict for one in found} == {UNKNOWN}
    assert all(one.why for one in found)


def test_a_whole_grid_is_judged_in_every_claim():
    whole = evidence(grid(seeds=range(2)), grid(sizes=(2500,), seeds=range(2), data="cifar10"))
    found = claims.judge_claims(whole)
    known = {
        claim.topic
        for claim, one in zip((*claims.CLAIMS, *claims.TARGETS), found, strict=True)
        if one.verdict != UNKNOWN
    }
    assert {claim.topic for claim in claims.CLAIMS} - known == {"Exactness", "Theorem"}
    assert all(one.measured for one in found if one.verdict != UNKNOWN)
    assert claims.count_verdicts(found).startswith(f"Of {len(claims.CLAIMS)} claims of the paper, ")
    assert all(one.brief for one in found if one.verdict != UNKNOWN)


def test_the_verdicts_are_counted():
    verdicts: list[Verdict] = [HOLDS, HOLDS, FAILS, UNKNOWN]
    told = claims.count_verdicts([Judged("", verdict) for verdict in verdicts])
    assert (
        told
        == "Of 4 claims of the paper, 2 hold, 0 hold under conditions, 1 does not hold and 1 cannot be judged."
    )
