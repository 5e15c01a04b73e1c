"""Which run of FedUHB a claim is judged by: it says so, and no number of the other run changes what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from feduhb_reproduction import claims
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.claims import CLAIMS, Claim, Evidence
from feduhb_reproduction.claims.parts import BOTH, NEITHER, OFF, REPLAYED, UNDER
from paper.cells import grid, track

OTHERS = {UNDER: ["feduhb-on"], OFF: ["feduhb"], REPLAYED: ["feduhb"], NEITHER: ["feduhb", "feduhb-on"]}
DATA = ("mnist", "cifar10")


@pytest.fixture(scope="module")
def cells() -> dict[str, list[Cell]]:
    return {data: grid(["iid", "dirichlet:0.5"], [525], range(2), data=data) for data in DATA}


def spoilt(found: Sequence[Cell], runs: Sequence[str]) -> list[Cell]:
    """Let these runs be of nothing but nonsense."""
    wrong = track([0.01] * 7, [5.0, 1.0, 9.0, 2.0, 8.0, 3.0, 0.001], backdoor=0.99, asked=3)
    wrong = replace(wrong, series={**wrong.series, "client_seconds": (7.0,) * 7})
    none = dict.fromkeys(runs, (0.011, 0.99))
    return [
        replace(
            cell,
            runs={**cell.runs, **dict.fromkeys(runs, wrong)},
            misr={attacker: {**told, **none} for attacker, told in cell.misr.items()},
        )
        for cell in found
    ]


@pytest.mark.parametrize(
    "claim", [claim for claim in CLAIMS if claim.run != BOTH], ids=lambda claim: claim.words[:40]
)
def test_a_claim_is_judged_by_the_run_it_names(cells, claim: Claim):
    whole = claim.judge(Evidence(cells))
    other = {data: spoilt(found, OTHERS[claim.run]) for data, found in cells.items()}
    assert claim.judge(Evidence(other)) == whole


@pytest.mark.parametrize(
    "claim",
    [claim for claim in CLAIMS if claim.run in {UNDER, OFF, REPLAYED}],
    ids=lambda claim: claim.words[:40],
)
def test_and_the_run_it_names_matters(cells, claim: Claim):
    """All but those that no cell here can judge, and claims on bytes that nonsense has as many of."""
    named = ["feduhb" if claim.run == UNDER else "feduhb-on"]
    whole = claim.judge(Evidence(cells))
    other = claim.judge(Evidence({data: spoilt(found, named) for data, found in cells.items()}))
    assert other != whole or whole.verdict == "cannot be judged" or claim.topic == "Storage and communication"


def test_every_claim_says_which_run_it_means():
    assert {claim.run for claim in CLAIMS} == {UNDER, OFF, BOTH, REPLAYED, NEITHER}
    assert all(f"“{run}”" in claims.RUNS for run in (UNDER, OFF, REPLAYED))
