"""Claims on forgetting, the theorem and costs, judged both ways; and what was noticed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from feduhb.report.paper import claims_forgetting, claims_theory
from feduhb.report.paper.claims_noticed import noticed
from feduhb.report.paper.claims_parts import CONDITIONS, FAILS, HOLDS, UNKNOWN, Evidence, Judged
from report.cells import failing, falling, grid, track
from report.judging import audit, evidence, federation, rise, summed, theorem

AUDITS = {"feduhb": audit(same=True), "federaser": audit(same=False), "fedrecover": audit(same=False)}


def test_exact_is_the_same_weights_where_the_others_have_other_ones():
    judged = claims_forgetting.exact(Evidence({}, audits=AUDITS))
    assert judged.verdict == HOLDS
    assert (
        "FedUHB: the same weights, bit for bit\nFedEraser: other weights, up to 0.0200 apart"
        in judged.measured
    )
    assert (
        claims_forgetting.exact(Evidence({}, audits={**AUDITS, "feduhb": audit(same=False)})).verdict == FAILS
    )
    assert (
        claims_forgetting.exact(Evidence({}, audits={**AUDITS, "federaser": audit(same=True)})).verdict
        == FAILS
    )


def test_half_the_counterfactuals_are_not_exact():
    mixed = audit(same=True)
    mixed["exactness"]["checks"][1] = {"name": "never", "identical": False, "largest_difference": 0.5}
    judged = claims_forgetting.exact(Evidence({}, audits={**AUDITS, "feduhb": mixed}))
    assert judged.verdict == FAILS
    assert "FedUHB: other weights, up to 0.500 apart" in judged.measured


@pytest.mark.parametrize(
    "audits", [None, {"feduhb": AUDITS["feduhb"]}, {**AUDITS, "feduhb": {"exactness": None}}]
)
def test_exactness_is_not_judged_by_half(audits):
    assert claims_forgetting.exact(Evidence({}, audits=audits)).verdict == UNKNOWN


def rates(**called: float) -> dict[str, tuple[float, float]]:
    return {run: (rate, 0.45) for run, rate in called.items()}


def test_one_half_must_tell_retrain_from_the_original():
    def judged(retrain: float, original: float) -> Judged:
        return claims_forgetting.half(
            evidence(federation({}, misr=rates(retrain=retrain, original=original)))
        )

    assert judged(0.5, 0.8).verdict == HOLDS
    assert judged(0.24, 0.8).verdict == FAILS
    assert judged(0.5, 0.55).verdict == FAILS
    assert "MNIST iid: 50.0% (45.0%) / 80.0% (45.0%)" in judged(0.5, 0.8).measured
    assert "recall" in judged(0.24, 0.8).why


def test_levels_of_misr():
    def judged(**called: float) -> Judged:
        return claims_forgetting.levels(evidence(federation({}, misr=rates(**called))))

    assert judged(retrain=0.25, federaser=0.5, fedrecover=0.55).verdict == HOLDS
    assert judged(retrain=0.5, federaser=0.5, fedrecover=0.5).verdict == FAILS
    assert judged(retrain=0.25, federaser=0.5, fedrecover=0.7).verdict == FAILS
    assert judged(retrain=0.5, federaser=0.9, fedrecover=0.7).verdict == FAILS
    assert judged(retrain=0.5, federaser=0.9).verdict == UNKNOWN


def lower(**called: float) -> Judged:
    cells = federation({}, misr=rates(**called))
    return claims_forgetting.lower(evidence(cells), data="mnist", than=("federaser", "fedrecover"))


def test_a_lower_misr():
    assert lower(feduhb=0.3, federaser=0.5, fedrecover=0.5, original=0.9).verdict == HOLDS
    assert lower(feduhb=0.3, federaser=0.5, fedrecover=0.2, original=0.9).why == "than FedEraser only"
    assert lower(feduhb=0.6, federaser=0.5, fedrecover=0.2, original=0.9).verdict == FAILS


def test_a_low_misr_means_nothing_where_the_original_has_retrains():
    judged = lower(feduhb=0.3, federaser=0.5, fedrecover=0.5, original=0.64, retrain=0.6)
    assert judged.verdict == HOLDS
    assert (
        judged.why
        == "a low MISR means nothing for iid, where the original model's is less than 5 points above Retrain's"
    )
    assert not lower(feduhb=0.3, federaser=0.5, fedrecover=0.5, original=0.66, retrain=0.6).why


def planted(success: Mapping[str, float], data: str = "mnist") -> Evidence:
    runs = {run: track(rise(9), backdoor=rate) for run, rate in success.items()}
    return evidence(federation(runs, data=data, backdoor=True))


GONE = {"original": 0.9, "feduhb": 0.03, "retrain": 0.02, "federaser": 0.04, "fedrecover": 0.05}


def test_the_backdoor_is_gone_or_is_not():
    judged = claims_forgetting.removed(planted(GONE))
    assert judged.verdict == HOLDS
    assert judged.measured.endswith("iid: 90.0% / 3.0% / 2.0% / 4.0% / 5.0%")
    kept = claims_forgetting.removed(planted({**GONE, "federaser": 0.5}))
    assert kept.why == "true of FedUHB and FedRecover only"
    high = dict.fromkeys(("feduhb", "federaser", "fedrecover"), 0.5)
    assert claims_forgetting.removed(planted({**GONE, **high})).verdict == FAILS


def test_a_backdoor_that_did_not_take_cannot_be_removed():
    judged = claims_forgetting.removed(planted({**GONE, "original": 0.1}))
    assert (judged.verdict, judged.why) == (UNKNOWN, "the backdoor did not take: there was nothing to remove")
    assert "10.0% / 3.0%" in judged.measured
    assert claims_forgetting.removed(evidence(federation({}))).why == "no cell has a backdoor"


def test_federations_whose_backdoor_did_not_take_are_named():
    loud, quiet = (
        {run: track(rise(9), backdoor=rate) for run, rate in rates.items()}
        for rates in (GONE, {**GONE, "original": 0.1})
    )
    cells = [*federation(quiet, backdoor=True), *federation(loud, backdoor=True, per_client=3000)]
    judged = claims_forgetting.removed(evidence(cells))
    assert judged.verdict == CONDITIONS
    assert judged.why == "for iid (3000); nothing is known of iid (525), where the backdoor did not take"
    assert judged.measured.endswith("iid (3000): 90.0% / 3.0% / 2.0% / 4.0% / 5.0%")


def test_exact_methods_below_the_approximate():
    apart = {**GONE, "federaser": 0.2, "fedrecover": 0.2}
    assert claims_forgetting.below(planted(apart, "cifar10")).verdict == HOLDS
    assert (
        claims_forgetting.below(planted({**apart, "fedrecover": 0.01}, "cifar10")).why
        == "than that of FedEraser only"
    )
    assert claims_forgetting.below(planted({**apart, "feduhb": 0.3}, "cifar10")).verdict == FAILS


def test_the_bound():
    below, above = theorem((0.9, 3.8, 0.001, 86.8)), theorem((0.9, 3.8, 0.001, 86.8), under=False)
    assert claims_theory.bounded(Evidence({}, below)).verdict == HOLDS
    assert claims_theory.bounded(Evidence({}, above)).verdict == FAILS
    assert claims_theory.bounded(Evidence({})).verdict == UNKNOWN


def test_a_higher_beta_leads_further():
    rising, falls = theorem((0.3, 1, 0, 9), (0.9, 3, 0, 9)), theorem((0.3, 3, 0, 9), (0.9, 1, 0, 9))
    assert claims_theory.further(Evidence({}, rising)).verdict == HOLDS
    assert claims_theory.further(Evidence({}, falls)).verdict == FAILS
    assert claims_theory.further(Evidence({}, theorem((0.3, 1, 0, 9)))).verdict == FAILS
    bent = theorem((0.3, 1, 0, 9), (0.6, 3, 0, 9), (0.9, 2, 0, 9))
    assert claims_theory.further(Evidence({}, bent)).verdict == FAILS


def test_the_limit_is_reached_or_is_not():
    assert claims_theory.stabilised(Evidence({}, theorem((0.9, 90, 80, 86)))).verdict == HOLDS
    judged = claims_theory.stabilised(Evidence({}, theorem((0, 0, 0, 9), (0.9, 3, 0.001, 86))))
    assert judged.verdict == FAILS
    assert judged.measured == "Distance after 400 rounds (limit of the bound).\n0.00100 (86.0), β 0.9"
    assert claims_theory.stabilised(Evidence({}, theorem((0, 0, 0, 9)))).verdict == UNKNOWN
    one = theorem((0.3, 3, 0.001, 12), (0.9, 90, 80, 86))
    assert claims_theory.stabilised(Evidence({}, one)).verdict == FAILS


def test_a_bound_that_tells_nothing_of_an_untrained_model():
    assert claims_theory.telling(Evidence({}, theorem((0.9, 3, 0, 3.9)))).verdict == HOLDS
    assert claims_theory.telling(Evidence({}, theorem((0.9, 3, 0, 4.1)))).verdict == FAILS
    judged = claims_theory.telling(Evidence({}, theorem((0.3, 3, 0, 1.0), (0.9, 3, 0, 9))))
    assert (judged.verdict, judged.why) == (CONDITIONS, "for β = 0.3; not for β = 0.9")
    assert claims_theory.telling(Evidence({}, theorem((0, 0, 0, 9)))).verdict == UNKNOWN


def test_storage_is_one_model_against_a_history():
    def judged(own: float, kept: float) -> Judged:
        runs = {run: summed(history_bytes_read=kept) for run in ("federaser", "fedrecover")}
        return claims_theory.stored(evidence(federation({"feduhb": summed(history_bytes_read=own), **runs})))

    assert judged(0, 5e9).verdict == HOLDS
    assert judged(0, 5e9).measured.endswith("MNIST: 1.00 / 5,000 / 5,000")
    assert judged(1e6, 5e9).verdict == FAILS
    assert judged(0, 1e5).verdict == FAILS
    kept = {"federaser": summed(history_bytes_read=5e9), "fedrecover": summed(history_bytes_read=1e5)}
    assert claims_theory.stored(evidence(federation({"feduhb": summed(), **kept}))).verdict == FAILS


def test_bytes_sent():
    def judged(ours: float, eraser: float, recover: float) -> Judged:
        sent = {"feduhb": ours, "federaser": eraser, "fedrecover": recover}
        return claims_theory.sent(evidence(federation({run: summed(bytes_up=n) for run, n in sent.items()})))

    assert judged(1e6, 2e6, 2e6).verdict == HOLDS
    assert judged(1e6, 2e6, 5e5).why == "than FedEraser only"
    assert judged(3e6, 2e6, 5e5).verdict == FAILS


def test_a_round_sends_more_or_does_not():
    same = claims_theory.overhead(evidence(federation({"feduhb": summed(), "retrain": summed()})))
    assert (same.verdict, same.why) == (CONDITIONS, "storage rises by one model, communication does not")
    more = claims_theory.overhead(evidence(federation({"feduhb": summed(bytes_up=1e9), "retrain": summed()})))
    assert more.verdict == HOLDS


def test_what_was_noticed_is_made_from_the_numbers():
    said = noticed(evidence(grid(seeds=range(2)), grid(sizes=(2500,), seeds=range(2), data="cifar10")))
    assert any("stand as 0.611 to 1" in line and "a run of 24.4 rounds" in line for line in said)
    assert any("a run of 29.6 rounds" in line for line in said)
    assert any("saves 72% of the client rounds, with it 56%" in line for line in said)
    assert any("with 525 images a client" in line and "the paper's is at 93.02%" in line for line in said)
    assert any(line.startswith("CIFAR-10: the stop rule fires in 8 of 8 runs") for line in said)


def test_a_loss_that_turns_up_is_noticed():
    up = track(rise(9), falling())
    losses = (*[1.0] * 10, 0.5, *[0.6] * 29)
    turned = replace(up, series={**up.series, "test_loss": losses})
    (line,) = [line for line in noticed(evidence(federation({"feduhb-on": turned}))) if "test loss" in line]
    assert "in 1 of 1 federations" in line
    assert line.endswith("lowest at round 11.0 for iid, and ends more than 5% higher.")
    late = replace(turned, series={**turned.series, "test_accuracy": tuple(rise(20))})
    (line,) = [line for line in noticed(evidence(federation({"feduhb-on": late}))) if "test loss" in line]
    assert line.endswith(
        "The accuracy goes on rising in 1 of these: momentum makes a model confident, also where it is wrong."
    )
    flat = replace(up, series={**up.series, "test_loss": (0.5,) * 40})
    assert not [line for line in noticed(evidence(federation({"feduhb-on": flat}))) if "test loss" in line]


def test_what_compiling_cost_is_noticed():
    first = track(rise(9))
    late = replace(first, series={**first.series, "client_seconds": (31.75, *[1.75] * 39)})
    (line,) = [
        line
        for line in noticed(evidence(federation({"retrain": late}, seeds=1)))
        if "compile kernels" in line
    ]
    assert "30.0 s of Retrain went into rounds of more than 5 times their run's median" in line
    assert "FedUHB" not in line
    assert not [line for line in noticed(evidence(federation({}))) if "compile kernels" in line]


def test_what_correction_changes():
    runs = {"fedrecover": track(rise(5, 0.5), asked=5), "fedrecover-corrected": track(rise(5, 0.7), asked=9)}
    (line,) = [line for line in noticed(evidence(federation(runs))) if "correction" in line]
    assert line.endswith(
        "saves 72% of the client rounds, with it 50%; correction changes the final accuracy by +20.0 points."
    )
    broken = [failing(cell, "fedrecover-corrected") for cell in federation(runs)]
    assert not [line for line in noticed(evidence(broken)) if "correction" in line]


def test_nothing_is_noticed_in_nothing():
    assert noticed(Evidence({})) == []
