"""Who has Retrain's final accuracy first, by when, and whether for good."""

from __future__ import annotations

from dataclasses import replace

from feduhb_reproduction.cells import Cell
from feduhb_reproduction.claims import convergence
from feduhb_reproduction.claims.parts import CONDITIONS, FAILS, HOLDS, UNKNOWN, Judged
from feduhb_reproduction.federations import group_cells
from feduhb_reproduction.measures import find_kept
from paper.cells import failing
from paper.judging import evidence, federation, rise

SLOW = rise(40)
FALLEN = "reached by then, but not kept"


def soonest(**runs: list[float]) -> Judged:
    told = {"retrain": SLOW, "feduhb": rise(20), "federaser": rise(3, 0.5), "fedrecover": rise(39), **runs}
    return convergence.judge_soonest(evidence(federation(told, data="cifar10")), data="cifar10")


def test_the_best_is_before_everybody():
    assert soonest().verdict == HOLDS
    assert soonest().measured.endswith("iid: 20 of 40 / 40 of 40 / never in 3 of 3 seeds / 39 of 40")
    assert soonest().brief == (
        "Retrain's final accuracy at round 20.0; Retrain itself 40.0, FedEraser 41.0, FedRecover 39.0 (41 stands for never)"
    )
    beaten = soonest(fedrecover=rise(10))
    assert (beaten.verdict, beaten.why) == (CONDITIONS, "sooner than Retrain and FedEraser only")
    assert soonest(feduhb=rise(5, 0.6)).verdict == FAILS, "it never has it"
    cells = federation({"retrain": SLOW, "feduhb": rise(20)}, data="cifar10")
    alone = [replace(cell, runs={run: cell.runs[run] for run in ("retrain", "feduhb")}) for cell in cells]
    found = convergence.judge_soonest(evidence(alone), data="cifar10")
    assert found.verdict == UNKNOWN, "nobody else is there"


def halved(*curves: list[float], retrain: list[float] = SLOW) -> Judged:
    names = ("iid", "shards:2")
    told = [
        federation({"retrain": retrain, "feduhb": curve}, partition=name)
        for curve, name in zip(curves, names, strict=False)
    ]
    return convergence.judge_halved(evidence(*told), data="mnist")


def test_half_of_the_rounds_and_for_good_is_the_target():
    met = halved(rise(20))
    assert (met.verdict, met.brief) == (
        HOLDS,
        "first at round 20.0, kept from 20.0; half is 20",
    )
    assert met.why == "borderline: kept from round 20.0 for iid, with 3 of 3 seeds by then"
    assert halved(rise(18)).why == ""
    assert halved(rise(21)).verdict == FAILS
    assert halved(rise(3, 0.5)).verdict == FAILS
    some = halved(rise(18), rise(23))
    assert (some.verdict, some.why) == (CONDITIONS, "for iid; not for 2 classes a client")


def test_falling_back_is_said():
    late = [*rise(12, rounds=12), *[0.2] * 10, *[0.9] * 18]
    judged = halved(late)
    assert (judged.verdict, judged.why) == (CONDITIONS, FALLEN)
    assert judged.measured.endswith("iid: 12 of 40 / 23 of 40")
    early = [*rise(12, rounds=12), *[0.2] * 7, *[0.9] * 21]
    assert halved(early).verdict == HOLDS, "for good from round 20 on"
    never = halved([*rise(12, rounds=39), 0.2])
    assert never.why == FALLEN
    assert never.brief == "first at round 12.0, kept from 41.0; half is 20 (41 stands for never)"


def kept(curve: list[float]) -> int | None:
    cells: list[Cell] = federation({"retrain": [0.5, 0.6], "feduhb": curve}, seeds=1)
    (found,) = group_cells(cells)
    return find_kept(found, "feduhb").rounds[0]


def test_a_run_that_broke_off_does_not_stay():
    whole = federation({"retrain": SLOW, "feduhb": rise(12)})
    broken = [failing(cell, "feduhb", after=15) for cell in whole]
    for cells, kept_from in ((whole, 12), (broken, None)):
        (found,) = group_cells(cells)
        assert set(find_kept(found, "feduhb").rounds.values()) == {kept_from}


def test_to_stay_is_never_to_be_below_again():
    assert kept([0.6, 0.7]) == 1
    assert kept([0.6, 0.5, 0.6, 0.6]) == 3
    assert kept([0.6, 0.7, 0.5]) is None
    assert kept([0.1, 0.6]) == 2
    assert kept([0.7, float("nan"), 0.7]) == 3, "what is not a number is not there"
