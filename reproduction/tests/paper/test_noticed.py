"""What was noticed beside the claims: the numbers in each phrase, and when a phrase is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feduhb.report.words import NOTHING
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.claims.noticed import tabulate_methods, tabulate_notes
from feduhb_reproduction.claims.parts import Evidence
from paper.cells import cell, failing, falling, grid, place, track
from paper.judging import evidence, federation, rise


def find_notes(words: str, *cells: list[Cell], data: str = "MNIST") -> list[str]:
    """Return the phrases in the row whose name has these words, of one data set."""
    table = tabulate_notes(evidence(*cells))
    column = list(table.headers).index(data)
    return [row[column] for row in table.rows if words in row[0] and row[column] != NOTHING]


def test_phrases_are_made_from_the_numbers():
    both = grid(seeds=range(2)), grid(sizes=(2500,), seeds=range(2), data="cifar10")
    assert find_notes("paper's seconds", *both)[0].startswith(
        "0.611; if these are totals divided by 40 scheduled rounds, FedUHB ran 24.4"
    )
    assert "ran 29.6 rounds" in find_notes("paper's seconds", *both, data="CIFAR-10")[0]
    assert find_notes("client rounds of FedRecover", *both)[0].startswith(
        "saves 72% of them, with correction 56%;"
    )
    assert find_notes("images a client", *both)[0].endswith("; paper 93.02%")
    assert find_notes("rule fires", *both, data="CIFAR-10")[0].startswith("8 / ")


def test_a_loss_that_turns_up_is_noticed():
    up = track(rise(9), falling())
    turned = replace(up, series={**up.series, "test_loss": (*[1.0] * 10, 0.5, *[0.6] * 29)})
    (phrase,) = find_notes("turns up", federation({"feduhb-on": turned}))
    assert phrase == "in 1 of 1 federations, lowest at round 11.0 for iid; ends over 5% higher"
    late = replace(turned, series={**turned.series, "test_accuracy": tuple(rise(20))})
    (phrase,) = find_notes("turns up", federation({"feduhb-on": late}))
    assert phrase.endswith("; accuracy still rises in 1")
    flat = replace(up, series={**up.series, "test_loss": (0.5,) * 40})
    assert not find_notes("turns up", federation({"feduhb-on": flat}))


def test_slow_rounds_are_summed():
    first = track(rise(9))
    late = replace(first, series={**first.series, "client_seconds": (31.75, *[1.75] * 39)})
    assert find_notes("compiling", federation({"retrain": late}, seeds=1)) == ["Retrain 30.0 s"]
    assert not find_notes("compiling", federation({}))


def test_what_correction_changes():
    runs = {"fedrecover": track(rise(5, 0.5), asked=5), "fedrecover-corrected": track(rise(5, 0.7), asked=9)}
    assert find_notes("client rounds of", federation(runs)) == [
        "saves 72% of them, with correction 50%; needs 28 % of Retrain's"
    ]
    (phrase,) = find_notes("correction adds", federation(runs))
    assert phrase == "+20.0 points before its last exact rounds, +20.0 at the end"
    exact = replace(track([*rise(5, 0.5, rounds=36), *[0.7] * 4], asked=5), settings={"final": 4})
    (phrase,) = find_notes("correction adds", federation({**runs, "fedrecover": exact}))
    assert phrase == "+20.0 points before its last exact rounds, +0.0 at the end"
    broken = [failing(each, "fedrecover-corrected") for each in federation(runs)]
    assert not find_notes("correction adds", broken)


def test_a_seed_that_saves_nothing_is_named():
    cells = federation({"fedrecover": track(rise(5), asked=5)}, seeds=3)
    assert not find_notes("saves under 10%", cells)
    full = replace(cells[1], runs={**cells[1].runs, "fedrecover": track(rise(5))})
    assert find_notes("saves under 10%", [cells[0], full, cells[2]]) == [
        "1 of 3 runs of FedRecover: seed 1 of iid"
    ]


@pytest.mark.parametrize(
    ("ours", "side"),
    [
        (rise(10), "clearly ahead"),
        (rise(11), "clearly behind"),
        (rise(9, 0.8), "neither ahead nor behind"),
    ],
)
def test_equal_work_is_compared(ours, side):
    """FedEraser asks 9 of 18 clients for 20 rounds: a quarter of what FedUHB asks in 40."""
    eraser = track(rise(3, 0.8, rounds=20), asked=9)
    cells = federation({"feduhb-on": ours, "federaser": eraser})
    assert find_notes("against FedEraser", cells) == [
        f"{side} for iid (900 client epochs: 10 rounds of FedUHB)"
    ]


def test_a_rule_that_never_fires_is_not_a_number_of_rounds():
    (never,) = find_notes("paper's seconds", federation({"feduhb-on": track(rise(9), [1.0] * 40)}))
    assert never.endswith("here the rule never fired")
    (fires,) = find_notes("paper's seconds", federation({"feduhb-on": track(rise(9), falling())}))
    assert fires.endswith("here it ran 24.0 rounds with λ 0.6")


def test_what_methods_ask_of_clients():
    """FedEraser runs half of the rounds with half of the 18 clients."""
    cells = federation({"federaser": track(rise(3, rounds=20), asked=9)})
    (phrase,) = find_notes("FedEraser runs", cells)
    assert phrase.startswith(
        "20 rounds of 5 local epochs, no client trains in the first; Retrain runs 40 rounds of 5; FedEraser needs 25 %"
    )
    assert find_notes("time of a round", cells) == ["1.00 (timed: iid)"]


@pytest.mark.parametrize(
    ("fire", "ended"), [((True, True), "24"), ((True, False), "32 (1 of 2 seeds)"), ((False, False), "never")]
)
def test_the_mean_round_and_how_many_seeds_the_rule_ends(fire, ended):
    cells = [
        cell(place(seed=seed), runs_too={"feduhb-on": track([0.9] * 40, falling() if fires else [1.0] * 40)})
        for seed, fires in enumerate(fire)
    ]
    table = tabulate_methods(evidence(cells))
    (row,) = table.rows
    assert table.headers[2] == "Retrain, 40 rounds"
    assert row[0] == "MNIST iid"
    assert row[4] == ended


def test_nothing_is_noticed_in_nothing():
    assert tabulate_notes(Evidence({})).rows == []
    bare = [
        replace(each, runs={name: each.runs[name] for name in ("original", "retrain")}, misr={})
        for each in federation({})
    ]
    assert {row[0] for row in tabulate_notes(evidence(bare)).rows} <= {
        "the paper's seconds per round of FedUHB, divided by those of Retrain"
    }
