"""What was noticed beside the claims: each sentence, and the numbers that leave it out."""

from __future__ import annotations

from dataclasses import replace

from feduhb_reproduction.cells import Cell
from feduhb_reproduction.report.claims_noticed import noticed
from feduhb_reproduction.report.claims_parts import Evidence
from paper.cells import failing, falling, grid, track
from paper.judging import evidence, federation, rise


def test_what_was_noticed_is_made_from_the_numbers():
    said = noticed(evidence(grid(seeds=range(2)), grid(sizes=(2500,), seeds=range(2), data="cifar10")))
    assert any("stand as 0.611 to 1" in line and "a run of 24.4 rounds" in line for line in said)
    assert any("a run of 29.6 rounds" in line for line in said)
    assert any("saves 72% of the client rounds, with it 56%" in line for line in said)
    assert any("with 525 images a client" in line and "the paper's is at 93.02%" in line for line in said)
    assert any(line.startswith("CIFAR-10: with λ 0.6 the stop rule fires in 8 of 8 runs") for line in said)


def test_a_loss_that_turns_up_is_noticed():
    up = track(rise(9), falling())
    losses = (*[1.0] * 10, 0.5, *[0.6] * 29)
    turned = replace(up, series={**up.series, "test_loss": losses})
    (line,) = [line for line in noticed(evidence(federation({"feduhb-on": turned}))) if "test loss" in line]
    assert "in 1 of 1 federations" in line
    assert line.endswith("lowest at round 11.0 for iid, and ends more than 5% higher.")
    late = replace(turned, series={**turned.series, "test_accuracy": tuple(rise(20))})
    (line,) = [line for line in noticed(evidence(federation({"feduhb-on": late}))) if "test loss" in line]
    assert line.endswith("The accuracy goes on rising in 1 of these.")
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
        "saves 72% of the client rounds, with it 50%; correction changes the accuracy by +20.0 points before its last exact rounds, "
        "in which every client trains again, and by +20.0 at the end."
    )
    exact = replace(track([*rise(5, 0.5, rounds=36), *[0.7] * 4], asked=5), settings={"final": 4})
    (line,) = [
        line for line in noticed(evidence(federation({**runs, "fedrecover": exact}))) if "correction" in line
    ]
    assert "by +20.0 points before its last exact rounds" in line
    assert line.endswith("and by +0.0 at the end.")
    broken = [failing(cell, "fedrecover-corrected") for cell in federation(runs)]
    assert not [line for line in noticed(evidence(broken)) if "correction" in line]


def test_a_seed_that_saves_nothing_is_named():
    cells = federation({"fedrecover": track(rise(5), asked=5)}, seeds=3)
    assert not [line for line in noticed(evidence(cells)) if "nearly everyone trains" in line]
    full = replace(cells[1], runs={**cells[1].runs, "fedrecover": track(rise(5))})
    (line,) = [
        line for line in noticed(evidence([cells[0], full, cells[2]])) if "nearly everyone trains" in line
    ]
    assert "MNIST: in 1 of 3 runs (seed 1 of iid) FedRecover saves less than 10% of the client rounds" in line


def said(words: str, *cells: list[Cell]) -> list[str]:
    return [line for line in noticed(evidence(*cells)) if words in line]


def test_equal_work_is_compared():
    """FedEraser asks 9 of 18 clients for 20 rounds: a quarter of what FedUHB asks in 40."""
    eraser = track(rise(3, 0.8, rounds=20), asked=9)
    (line,) = said("equal client work: FedEraser", federation({"feduhb-on": rise(10), "federaser": eraser}))
    assert "takes 900 client epochs in all, with which FedUHB, its rule off, runs 10 rounds." in line
    assert line.endswith("There FedUHB is clearly ahead for iid.")
    (late,) = said("equal client work: FedEraser", federation({"feduhb-on": rise(11), "federaser": eraser}))
    assert late.endswith("clearly behind for iid.")
    (level,) = said(
        "equal client work: FedEraser", federation({"feduhb-on": rise(9, 0.8), "federaser": eraser})
    )
    assert level.endswith("neither clearly ahead nor behind for iid.")


def test_a_rule_that_never_fires_has_run_no_rounds():
    still = track(rise(9), [1.0] * 40)
    (line,) = said("stand as", federation({"feduhb-on": still}))
    assert line.endswith("The rule with λ 0.6 never fired here in 40 rounds.")
    (fires,) = said("stand as", federation({"feduhb-on": track(rise(9), falling())}))
    assert fires.endswith("The rule with λ 0.6 ran 24.0 here.")


def test_nothing_is_noticed_in_nothing():
    assert noticed(Evidence({})) == []
