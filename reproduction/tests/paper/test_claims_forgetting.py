"""Claims on forgetting, the theorem and costs, judged both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from feduhb_reproduction.cells import Cell
from feduhb_reproduction.claims import forgetting, theory
from feduhb_reproduction.claims.parts import CONDITIONS, FAILS, HOLDS, UNKNOWN, Evidence, Judged
from paper.cells import track
from paper.judging import audit, evidence, federation, rise, summed, theorem

AUDITS = {"feduhb": audit(same=True), "federaser": audit(same=False), "fedrecover": audit(same=False)}


def test_exact_is_the_same_weights_where_the_others_have_other_ones():
    judged = forgetting.judge_exact(Evidence({}, audits=AUDITS))
    assert judged.verdict == HOLDS
    assert (
        "FedUHB: the same weights, bit for bit\nFedEraser: other weights, up to 0.0200 apart"
        in judged.measured
    )
    assert (
        forgetting.judge_exact(Evidence({}, audits={**AUDITS, "feduhb": audit(same=False)})).verdict == FAILS
    )
    assert (
        forgetting.judge_exact(Evidence({}, audits={**AUDITS, "federaser": audit(same=True)})).verdict
        == FAILS
    )


def test_half_the_counterfactuals_are_not_exact():
    mixed = audit(same=True)
    mixed["exactness"]["checks"][1] = {"name": "never", "identical": False, "largest_difference": 0.5}
    judged = forgetting.judge_exact(Evidence({}, audits={**AUDITS, "feduhb": mixed}))
    assert judged.verdict == FAILS
    assert "FedUHB: other weights, up to 0.500 apart" in judged.measured


@pytest.mark.parametrize(
    "audits", [None, {"feduhb": AUDITS["feduhb"]}, {**AUDITS, "feduhb": {"exactness": None}}]
)
def test_exactness_is_not_judged_by_half(audits):
    assert forgetting.judge_exact(Evidence({}, audits=audits)).verdict == UNKNOWN


def planted(success: Mapping[str, float], data: str = "mnist") -> Evidence:
    runs = {run: track(rise(9), backdoor=rate) for run, rate in success.items()}
    return evidence(federation(runs, data=data, backdoor=True))


GONE = {"original": 0.9, "feduhb": 0.03, "retrain": 0.02, "federaser": 0.04, "fedrecover": 0.05}


def test_the_backdoor_is_gone_or_is_not():
    judged = forgetting.judge_removed(planted(GONE))
    assert judged.verdict == HOLDS
    assert judged.measured.endswith("iid: 90.0% / 3.0% / 2.0% / 4.0% / 5.0%")
    kept = forgetting.judge_removed(planted({**GONE, "federaser": 0.5}))
    assert kept.why == "true of FedUHB and FedRecover only"
    low = forgetting.judge_removed(planted({**GONE, "feduhb": 0.001}))
    assert (low.verdict, low.why) == (CONDITIONS, "prevented, but FedUHB's ASR is 0.1% and not 3.35%")
    high = dict.fromkeys(("feduhb", "federaser", "fedrecover"), 0.5)
    assert forgetting.judge_removed(planted({**GONE, **high})).verdict == FAILS


def test_a_backdoor_that_did_not_take_cannot_be_removed():
    judged = forgetting.judge_removed(planted({**GONE, "original": 0.1}))
    assert (judged.verdict, judged.why) == (
        UNKNOWN,
        "the original model did not learn the backdoor: there was nothing to remove",
    )
    assert "10.0% / 3.0%" in judged.measured
    assert forgetting.judge_removed(evidence(federation({}))).why == "no cell has a backdoor"


def test_federations_whose_backdoor_did_not_take_are_named():
    loud, quiet = (
        {run: track(rise(9), backdoor=rate) for run, rate in rates.items()}
        for rates in (GONE, {**GONE, "original": 0.1})
    )
    cells = [*federation(quiet, backdoor=True), *federation(loud, backdoor=True, per_client=3000)]
    judged = forgetting.judge_removed(evidence(cells))
    assert judged.verdict == CONDITIONS
    assert (
        judged.why
        == "for iid (3000); unknown for iid (525), where the original model did not learn the backdoor"
    )
    assert judged.measured.endswith("iid (3000): 90.0% / 3.0% / 2.0% / 4.0% / 5.0%")


def test_exact_methods_below_the_approximate():
    apart = {**GONE, "federaser": 0.2, "fedrecover": 0.2}
    assert forgetting.judge_below(planted(apart, "cifar10")).verdict == HOLDS
    assert (
        forgetting.judge_below(planted({**apart, "fedrecover": 0.01}, "cifar10")).why
        == "clearly lower only for FedUHB against FedEraser and Retrain against FedEraser"
    )
    assert (
        forgetting.judge_below(planted({**apart, "feduhb": 0.3, "retrain": 0.2}, "cifar10")).verdict == FAILS
    )


def test_the_bound():
    below, above = theorem((0.9, 3.8, 0.001, 86.8)), theorem((0.9, 3.8, 0.001, 86.8), under=False)
    assert theory.judge_bounded(Evidence({}, below)).verdict == HOLDS
    assert theory.judge_bounded(Evidence({}, above)).verdict == FAILS
    assert theory.judge_bounded(Evidence({})).verdict == UNKNOWN


def test_a_higher_beta_leads_further():
    rising, falls = theorem((0.3, 1, 0, 9), (0.9, 3, 0, 9)), theorem((0.3, 3, 0, 9), (0.9, 1, 0, 9))
    assert theory.judge_further(Evidence({}, rising)).verdict == HOLDS
    assert theory.judge_further(Evidence({}, falls)).verdict == FAILS
    assert theory.judge_further(Evidence({}, theorem((0.3, 1, 0, 9)))).verdict == FAILS
    bent = theorem((0.3, 1, 0, 9), (0.6, 3, 0, 9), (0.9, 2, 0, 9))
    assert theory.judge_further(Evidence({}, bent)).verdict == FAILS


def test_the_limit_is_reached_or_is_not():
    assert theory.judge_stabilised(Evidence({}, theorem((0.9, 90, 80, 86)))).verdict == HOLDS
    judged = theory.judge_stabilised(Evidence({}, theorem((0, 0, 0, 9), (0.9, 3, 0.001, 86))))
    assert judged.verdict == FAILS
    assert judged.measured == "Distance after 400 rounds (limit of the bound).\n0.00100 (86.0), β 0.9"
    assert theory.judge_stabilised(Evidence({}, theorem((0, 0, 0, 9)))).verdict == UNKNOWN
    one = theorem((0.3, 3, 0.001, 12), (0.9, 90, 80, 86))
    assert theory.judge_stabilised(Evidence({}, one)).verdict == FAILS


def test_a_bound_that_tells_nothing_of_an_untrained_model():
    assert theory.judge_telling(Evidence({}, theorem((0.9, 3, 0, 3.9)))).verdict == HOLDS
    assert theory.judge_telling(Evidence({}, theorem((0.9, 3, 0, 4.1)))).verdict == FAILS
    judged = theory.judge_telling(Evidence({}, theorem((0.3, 3, 0, 1.0), (0.9, 3, 0, 9))))
    assert (judged.verdict, judged.why) == (CONDITIONS, "for β = 0.3; not for β = 0.9")
    assert theory.judge_telling(Evidence({}, theorem((0, 0, 0, 9)))).verdict == UNKNOWN


def test_storage_is_one_model_against_a_history():
    def judged(own: float, kept: float) -> Judged:
        runs = {run: summed(history_bytes_read=kept) for run in ("federaser", "fedrecover")}
        return theory.judge_stored(evidence(federation({"feduhb": summed(history_bytes_read=own), **runs})))

    assert judged(0, 5e9).verdict == HOLDS
    assert judged(0, 5e9).measured.endswith("MNIST iid: 1.00 / 800 / 5,000"), (
        "40 rounds of 20 clients, a MB each"
    )
    assert judged(1e6, 5e9).verdict == FAILS
    assert judged(0, 1e5).verdict == FAILS
    few = {"federaser": track(rise(5, rounds=10)), "fedrecover": summed(history_bytes_read=5e9)}
    kept = theory.judge_stored(evidence(federation({"feduhb": summed(), **few})))
    assert kept.measured.endswith("1.00 / 200 / 5,000"), "FedEraser keeps fewer rounds"
    alone = federation({"feduhb": summed(), **few, "federaser": track([0.1])}, clients=1)
    assert theory.judge_stored(evidence(alone)).verdict == FAILS


def test_costs_are_ranges_over_all_federations():
    runs = [
        {"feduhb": track(rise(5, rounds=n)), "federaser": summed(), "fedrecover": summed()} for n in (20, 40)
    ]
    two = [federation(each, partition=name) for each, name in zip(runs, ("iid", "shards:2"), strict=True)]
    assert theory.judge_sent(evidence(*two)).brief.startswith(
        "720 to 1,440 MB; FedEraser 1,440, FedRecover 1,440"
    )


def test_bytes_sent():
    def judged(ours: float, eraser: float, recover: float) -> Judged:
        sent = {"feduhb": ours, "federaser": eraser, "fedrecover": recover}
        return theory.judge_sent(evidence(federation({run: summed(bytes_up=n) for run, n in sent.items()})))

    assert judged(1e6, 2e6, 2e6).verdict == HOLDS
    assert judged(1e6, 2e6, 5e5).why == "than FedEraser only"
    assert judged(3e6, 2e6, 5e5).verdict == FAILS


def test_a_round_sends_more_or_does_not():
    same = theory.judge_overhead(evidence(federation({"feduhb": summed(), "retrain": summed()})))
    assert (same.verdict, same.why) == (CONDITIONS, "storage rises by one model, communication does not")
    more = theory.judge_overhead(evidence(federation({"feduhb": summed(bytes_up=1e9), "retrain": summed()})))
    assert more.verdict == HOLDS


def test_cells_that_differ_in_the_forgotten_data_alone_must_agree():
    def cells(**other: str) -> list[Cell]:
        clean = federation({})
        return [
            *clean,
            *(
                replace(
                    cell,
                    place=replace(cell.place, backdoor=True),
                    runs={
                        name: replace(run, weights=other.get(name, run.weights))
                        for name, run in cell.runs.items()
                    },
                )
                for cell in clean
            ),
        ]

    def judged(**other: str) -> Judged:
        return forgetting.judge_exact(replace(evidence(cells(**other)), audits=AUDITS))

    fine = judged(federaser="cd", fedrecover="cd")
    assert fine.verdict == HOLDS
    assert fine.brief.endswith(
        "3 of 3 of FedUHB, 3 of 3 of Retrain, 0 of 3 of FedEraser and 0 of 3 of FedRecover"
    )
    assert "FedUHB: the same weights, bit for bit, 3 of 3 cells" in fine.measured
    assert fine.measured.endswith("Retrain: 3 of 3 cells")
    assert judged(federaser="cd").verdict == FAILS, "FedRecover has the same weights, too"
    assert judged(federaser="cd", fedrecover="cd", feduhb="cd").verdict == FAILS
    assert judged(federaser="cd", fedrecover="cd", retrain="cd").verdict == FAILS
