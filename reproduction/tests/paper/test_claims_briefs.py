"""What stands in the claims table: each claim's numbers, as ranges, in the order that its words say."""

from __future__ import annotations

import pytest

from feduhb_reproduction.cells import Cell
from feduhb_reproduction.claims import CLAIMS
from feduhb_reproduction.claims.parts import Evidence
from paper.cells import failing, track
from paper.judging import Runs, audit, evidence, federation, rise, ruled, summed, theorem, took

FOUR: Runs = {
    "original": rise(9, 0.8), "feduhb": rise(10, 0.82), "retrain": rise(40, 0.79), "federaser": rise(12, 0.78, rounds=20), "fedrecover": rise(5, 0.7),
}  # fmt: skip
TIMES: Runs = {"feduhb": took(1, 20), "retrain": took(1.5), "federaser": took(0.5, 20), "fedrecover": took(2)}
RATES = {"original": (0.9, 0.4), "retrain": (0.3, 0.4), "feduhb": (0.2, 0.4), "federaser": (0.5, 0.4), "fedrecover": (0.6, 0.4)}  # fmt: skip
NEAR = "near its own level at round 5.0 to 6.0, Retrain at 40.0, -12.0 to -2.0 points from FedUHB"
ASRS = {"original": 0.9, "feduhb": 0.03, "retrain": 0.02, "federaser": 0.04, "fedrecover": 0.05}


def brief(number: int, found: Evidence) -> str:
    """Return the numbers of a claim in brief; claims are numbered from 1."""
    return CLAIMS[number - 1].judge(found).brief


def both(runs: Runs, other: Runs, data: str = "mnist") -> Evidence:
    """Two federations, which differ."""
    return evidence(
        federation(runs, data=data), federation({**runs, **other}, data=data, partition="shards:2")
    )


@pytest.mark.parametrize(
    ("number", "runs", "other", "told"),
    [
        (1, FOUR, {"feduhb": rise(14, 0.82)}, "Retrain's final accuracy at round 10.0 to 14.0, Retrain itself at 40.0; 93% at nothing, Retrain at nothing"),
        (3, {"feduhb-on": rise(30), "retrain": rise(40, 0.8)}, {"feduhb-on": rise(9)}, "10.0% to 90.0% at round 20, 90.0% at its best; Retrain at the last round 80.0%"),
        (4, {**FOUR, "feduhb-on": rise(9)}, {}, "90.0% at round 20; Retrain 10.0%, FedEraser 78.0%"),
        (5, FOUR, {"fedrecover": rise(6, 0.8)}, f"before its last exact rounds: {NEAR}; at the end: {NEAR}"),
        (13, FOUR, {"fedrecover": rise(6, 0.81)}, "the lowest of the four -10.0 to -2.0 points from the original model"),
        (14, FOUR, {"fedrecover": rise(6, 0.81)}, "82.0%; the best of the others 79.0% to 81.0%"),
        (25, {"feduhb-on": ruled(rise(30, 0.9))}, {"feduhb-on": ruled(rise(9, 0.9))}, "24.0 rounds run, -80.0 to +0.0 points from the last round"),
        (27, {"feduhb-on": ruled([0.5 + 0.01 * t for t in range(40)])}, {}, "λ 0.2: 34.0 rounds, 83.0%; λ 1: 20.0 rounds, 69.0%"),
        (29, {"feduhb-on": ruled(rise(9, 0.93))}, {"feduhb-on": ruled(rise(9, 0.95))}, "24.0 rounds, 93.0% to 95.0%"),
        (30, {"retrain": rise(40), "momentum-0.5": rise(30), "feduhb-on": rise(9)}, {"feduhb-on": rise(11)}, "with the lowest β at round 40.0, with the highest at 9.0 to 11.0"),
        (31, {"retrain": rise(40), "step-2": rise(30, 0.95), "feduhb-on": rise(9, 0.97)}, {}, "at round 9.0, with a tuned step at 30.0; ends at 97.0%, with a tuned step at 95.0%"),
        (33, {"feduhb-on": [0.1, 0.5, 0.3], "retrain": rise(9)}, {"retrain": [0.5, 0.1]}, "falls by 20.0 points; Retrain's by 0.0 to 40.0"),
        (7, TIMES, {"feduhb": took(1, 30)}, "1.00 s a round, Retrain 1.50; total over the scheduled rounds 0.500 to 0.750, Retrain 1.50"),
        (8, TIMES, {}, "1.00 s a round; FedEraser 0.500, FedRecover 2.00"),
        (9, TIMES, {"fedrecover": took(60)}, "20.0 s; Retrain 60.0, FedEraser 10.0, FedRecover 80.0 to 2,400"),
        (38, {"feduhb": summed(), "federaser": summed(history_bytes_read=2e9), "fedrecover": summed(history_bytes_read=3e9)}, {}, "1.0 MB; FedEraser 800, FedRecover 3,000"),
        (39, {"retrain": rise(40)} | {run: summed(bytes_up=n * 4e7, bytes_down=0) for n, run in enumerate(("feduhb", "federaser", "fedrecover"), 1)}, {}, "up to FedEraser's final accuracy 9 MB, FedEraser 80; up to FedRecover's 9, FedRecover 120; up to Retrain's 9; whole run 40"),
        (40, {"feduhb": summed(bytes_up=80e6, bytes_down=0), "retrain": summed(bytes_up=40e6, bytes_down=0)}, {}, "2.0 MB a round, Retrain 1.0"),
    ],
)  # fmt: skip
def test_of_mnist(number, runs, other, told):
    assert brief(number, both(runs, other)) == told


@pytest.mark.parametrize(
    ("number", "runs", "other", "told"),
    [
        (2, FOUR, {}, "Retrain's final accuracy at round 10.0; Retrain itself 40.0, FedEraser 41.0, FedRecover 41.0 (41 stands for never)"),
        (15, FOUR, {"fedrecover": rise(9, 0.3)}, "before its last exact rounds 30.0% to 70.0%, at the end 30.0% to 70.0%"),
        (16, FOUR, {"feduhb": rise(9, 0.85)}, "FedUHB +2.0 to +5.0 points, Retrain -1.0, FedEraser -2.0"),
        (17, FOUR, {}, "82.0%; the best of the others 79.0%"),
    ],
)  # fmt: skip
def test_of_cifar10(number, runs, other, told):
    assert brief(number, both(runs, other, "cifar10")) == told


def test_of_both_data_sets():
    near = federation({**FOUR, "fedrecover": rise(5, 0.75)})
    found = evidence(near, federation(FOUR, data="cifar10"))
    words = "-9.0 points from Retrain, on MNIST -4.0"
    assert brief(6, found) == f"before its last exact rounds: {words}; at the end: {words}"


@pytest.mark.parametrize(
    ("number", "data", "told"),
    [
        (19, "mnist", "Retrain 30.0%, the original model 90.0%"),
        (20, "mnist", "Retrain 30.0%, FedEraser 50.0%, FedRecover 60.0%"),
        (21, "mnist", "rate 20.0%; the lowest of the others 50.0%; minus the rate on test data, for iid by boosted trees, -20.0 points; the lowest of the others +10.0; the original model +50.0"),
        (22, "cifar10", "rate 20.0%; the lowest of the others 30.0%; minus the rate on test data, for iid by boosted trees, -20.0 points; the lowest of the others -10.0; the original model +50.0"),
    ],
)  # fmt: skip
def test_of_misr(number, data, told):
    found = evidence(*(federation({}, data=each, misr=RATES) for each in dict.fromkeys(("mnist", data))))
    assert brief(number, found) == told


@pytest.mark.parametrize(("number", "data"), [(23, "mnist"), (24, "cifar10")])
def test_of_asr(number, data):
    runs = {run: track(rise(9), backdoor=rate) for run, rate in ASRS.items()}
    found = evidence(federation(runs, data=data, backdoor=True))
    assert (
        brief(number, found) == "original 90.0%, FedUHB 3.0%, Retrain 2.0%, FedEraser 4.0%, FedRecover 5.0%"
    )


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (34, "under the bound in every round"),
        (35, "at most 0.500 (β 0.3) / 3.00 (β 0.9)"),
        (36, "distance (limit) 0.00200 (12.0), β 0.3 / 0.00100 (86.0), β 0.9"),
        (37, "limit 12.0 (β 0.3) / 86.0 (β 0.9); untrained model 4.00"),
    ],
)
def test_of_the_theorem(number, told):
    assert brief(number, Evidence({}, theorem((0.3, 0.5, 0.002, 12.0), (0.9, 3.0, 0.001, 86.0)))) == told


def test_of_exactness():
    audits = {"feduhb": audit(same=True), "federaser": audit(same=False), "fedrecover": audit(same=False)}
    assert brief(18, Evidence({}, audits=audits)) == "the same weights bit for bit: FedUHB"
    none = {name: audit(same=False) for name in audits}
    assert brief(18, Evidence({}, audits=none)) == "the same weights bit for bit: none"


def broken(data: str) -> list[Cell]:
    return [failing(cell, "fedrecover") for cell in federation(FOUR, data=data)]


def test_where_fedrecover_broke_off():
    assert brief(5, evidence(broken("mnist"))) == "broke off in 3 of 3 seeds"
    assert brief(13, evidence(broken("mnist"))).startswith("the lowest of the four -2.0 points")
    assert brief(15, evidence(broken("cifar10"))).endswith("at the end nothing")
    assert brief(6, evidence(federation(FOUR), broken("cifar10"))) == "broke off in 3 of 3 seeds"
