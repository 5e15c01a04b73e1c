"""Claims on forgetting, the theorem and costs, judged both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from feduhb_reproduction.cells import Cell, Track
from feduhb_reproduction.claims import costs, forgetting, theory
from feduhb_reproduction.claims.parts import CONDITIONS, FAILS, HOLDS, UNKNOWN, Evidence, Judged
from paper.cells import track
from paper.judging import audit, evidence, federation, rise, summed, theorem

AUDITS = {"feduhb": audit(same=True), "federaser": audit(same=False), "fedrecover": audit(same=False)}


def test_exact_is_the_same_weights_whatever_was_forgotten():
    judged = forgetting.judge_exact(Evidence({}, audits=AUDITS))
    assert judged.verdict == CONDITIONS
    assert judged.why.endswith("works over the floor is unknown: no original model learned a backdoor")
    assert (
        "FedUHB: the same weights, bit for bit\nFedEraser: other weights, up to 0.0200 apart"
        in judged.measured
    )
    assert (
        forgetting.judge_exact(Evidence({}, audits={**AUDITS, "feduhb": audit(same=False)})).verdict == FAILS
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
    judged = theory.judge_bounded(Evidence({}, below))
    assert judged.verdict == CONDITIONS
    assert judged.why.startswith("for full gradients")
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
        return costs.judge_stored(evidence(federation({"feduhb": summed(history_bytes_read=own), **runs})))

    assert judged(0, 5e9).verdict == HOLDS
    assert judged(0, 5e9).measured.endswith("MNIST iid: 1.00 / 800 / 5,000"), (
        "40 rounds of 20 clients, a MB each"
    )
    assert judged(1e6, 5e9).verdict == FAILS
    assert judged(0, 1e5).verdict == FAILS
    few = {"federaser": track(rise(5, rounds=10)), "fedrecover": summed(history_bytes_read=5e9)}
    kept = costs.judge_stored(evidence(federation({"feduhb": summed(), **few})))
    assert kept.measured.endswith("1.00 / 200 / 5,000"), "FedEraser keeps fewer rounds"
    alone = federation({"feduhb": summed(), **few, "federaser": track([0.1])}, clients=1)
    assert costs.judge_stored(evidence(alone)).verdict == FAILS


def sending(megabytes: float, at: int, top: float = 0.9) -> Track:
    """A run that sends so many MB in all and has its final accuracy from a round on."""
    made = track(rise(at, top))
    return replace(made, sums={**made.sums, "bytes_up": megabytes * 1e6, "bytes_down": 0.0})


def sent(recover: float, *, at: int = 20, eraser: float = 0.8) -> Judged:
    runs = {
        "retrain": sending(900, 40),
        "feduhb": sending(800, at, 0.95),
        "federaser": sending(500, 9, eraser),
        "fedrecover": sending(recover, 40),
    }
    return costs.judge_sent(evidence(federation(runs)))


def test_bytes_are_compared_at_equal_accuracy():
    """FedUHB sends 20 MB a round: 400 up to round 20, and 800 in its whole run."""
    less = sent(410)
    assert less.verdict == HOLDS
    assert less.measured.endswith("MNIST iid: 400 / 500 / 400 / 410 / 400 / 800")
    assert less.why.endswith(
        "In whole runs, which end unequally accurate, less on average than FedEraser in 0 of 1 and than FedRecover in 0 of 1"
    )
    more = sent(390)
    assert more.verdict == CONDITIONS
    assert more.why.startswith(
        "than FedEraser only. Up to the other's final accuracy, less on average than FedEraser in 1 of 1 federations (clearly in 1) "
        "and than FedRecover in 0 of 1 federations (clearly in 0; clearly more for MNIST iid). Up to Retrain's final accuracy, "
    )
    assert sent(390, at=30).verdict == FAILS


def test_an_accuracy_that_feduhb_never_has_counts_a_round_more_than_were_scheduled():
    assert "MNIST iid: 820 / 500" in sent(410, eraser=0.97).measured


def test_a_round_sends_more_or_does_not():
    same = costs.judge_overhead(evidence(federation({"feduhb": summed(), "retrain": summed()})))
    assert (same.verdict, same.why) == (CONDITIONS, "storage rises by one model, communication does not")
    more = costs.judge_overhead(evidence(federation({"feduhb": summed(bytes_up=1e9), "retrain": summed()})))
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
    assert fine.verdict == CONDITIONS, "nothing is known of what the other two leave"
    assert "3 of 3 of FedUHB, 3 of 3 of Retrain, 0 of 3 of FedEraser and 0 of 3 of FedRecover" in fine.brief
    assert "FedUHB: the same weights, bit for bit, 3 of 3 cells" in fine.measured
    assert "Retrain: 3 of 3 cells" in fine.measured
    assert judged(federaser="cd", fedrecover="cd", feduhb="cd").verdict == FAILS
    assert judged(federaser="cd", fedrecover="cd", retrain="cd").verdict == FAILS


def left(rates: Mapping[str, float], *idle: Mapping[str, float]) -> Judged:
    """Judge by a federation that learned the backdoor, and by others."""
    every = [{run: track(rise(9), backdoor=rate) for run, rate in each.items()} for each in (rates, *idle)]
    cells = [
        federation(runs, backdoor=True, per_client=n) for runs, n in zip(every, (3000, 525), strict=False)
    ]
    return forgetting.judge_exact(replace(evidence(*cells), audits=AUDITS))


def test_harm_is_a_backdoor_that_works_over_the_floor():
    both = left(GONE)
    assert both.verdict == HOLDS
    assert both.why.endswith("not FedAvg's")
    assert both.measured.endswith("MNIST iid: +2.00 / +3.00")
    one = left({**GONE, "federaser": 0.02})
    assert (one.verdict, one.why.rpartition(". ")[2]) == (
        CONDITIONS,
        "That an approximate method leaves a backdoor that works over the floor is shown for FedRecover only"
        + forgetting.UNSEEN,
    )
    none = left({**GONE, "federaser": 0.02, "fedrecover": 0.01})
    assert (none.verdict, none.why.rpartition(" is ")[2]) == (
        CONDITIONS,
        "shown for none" + forgetting.UNSEEN,
    )


def test_more_than_where_nothing_was_learned_or_it_is_no_harm():
    """The trigger works a little more often on a less accurate model, whether or not it was learned."""
    quiet = {**GONE, "original": 0.1, "federaser": 0.06, "fedrecover": 0.02}
    judged = left(GONE, quiet)
    assert judged.why.endswith("shown for FedRecover only" + forgetting.UNSEEN)
    assert judged.measured.endswith(
        "MNIST iid (3000): +2.00 / +3.00\nMNIST iid (525), where the original model did not learn it: +4.00 / +0.00"
    )
