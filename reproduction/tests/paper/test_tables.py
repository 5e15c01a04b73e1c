from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from feduhb.report.grids import Grid
from feduhb.report.words import NOTHING
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.federations import group_cells
from feduhb_reproduction.measures import Reached, Spread, Stops
from feduhb_reproduction.tables import format_latex, format_markdown, make_tables
from feduhb_reproduction.words import (
    format_counts,
    format_fired,
    format_numbers,
    format_points,
    format_ratio,
    format_reached,
    format_seeds,
    format_shares,
)
from paper.cells import cell, failing, falling, grid, place, track

UNDER = "FedUHB, under its rule"
NAMES = ["runs", "table-1", "accuracy", "reached", "misr", "asr", "beta", "lambda", "ablation"]


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return grid(["iid", "dirichlet:0.5"], [525], range(3))


def rows(found: Grid, **where: str) -> list[dict[str, str]]:
    """The rows with these cells, by header; headers that stand twice get the later cell."""
    told = [dict(zip(found.headers, row, strict=True)) for row in found.rows]
    return [row for row in told if all(row[key] == value for key, value in where.items())]


@pytest.mark.parametrize(
    ("spread", "spell", "said"),
    [
        (Spread((0.93, 0.94)), format_shares, "93.5% ± 0.7"),
        (Spread((0.93,)), format_shares, "93.0%"),
        (Spread(), format_shares, NOTHING),
        (Spread((0.5, 0.5)), format_shares, "50.0%"),
        (Spread((24.0, 24.0)), format_counts, "24"),
        (Spread((24.0, 25.0)), format_counts, "24.5 ± 0.7"),
        (Spread((3600.0,)), format_counts, "3,600"),
        (Spread((1.0, 1.5)), format_numbers, "1.25 ± 0.35"),
        (Spread((0.02,)), format_points, "+2.0"),
        (Spread((-0.02, -0.04)), format_points, "-3.0 ± 1.4"),
    ],
)
def test_spreads_are_spelled(spread: Spread, spell, said: str):
    assert spell(spread) == said


def test_how_many_got_there_is_said_where_not_all_did():
    assert format_reached(Reached({0: 16, 1: 18})) == "17.0 ± 1.4"
    assert format_reached(Reached({0: 16, 1: None})) == "16 (1 of 2)"
    assert format_reached(Reached({0: None})) == "never"
    assert format_reached(Reached({})) == NOTHING
    assert format_fired(Stops({0: 3, 1: None}, Spread(), Spread())) == "1 of 2"
    assert format_fired(Stops({}, Spread(), Spread())) == NOTHING
    assert format_ratio(Spread((1.0,)), Spread((4.0,))) == "0.25"
    assert format_ratio(Spread((1.0,)), Spread()) == format_ratio(Spread(), Spread((1.0,))) == NOTHING


def test_seeds_that_broke_off_are_counted():
    (found,) = group_cells([cell(place(seed=0)), failing(cell(place(seed=1)), "fedrecover")])
    assert (format_seeds(found, "fedrecover"), format_seeds(found, "retrain")) == ("1 (1 broke off)", "2")


def test_every_table_is_there_and_has_what_its_headers_promise(cells):
    found = make_tables(cells)
    assert list(found) == NAMES
    for name, table in found.items():
        assert all(len(row) == len(table.headers) for row in table.rows), name
        assert name == "runs" or any("paper" in header for header in table.headers), name
        assert "seeds" in table.headers, name


def test_table_1_has_rounds_seconds_and_the_papers_beside(cells):
    table = make_tables(cells)["table-1"]
    (retrain,) = rows(table, federation="iid, 525 images a client", method="Retrain")
    (uhb,) = rows(table, federation="iid, 525 images a client", method=UNDER)
    assert (retrain["s per executed round"], retrain["s in total"], retrain["rounds executed"]) == ("2.00", "80.0", "40")  # fmt: skip
    assert (uhb["s per executed round"], uhb["s in total"], uhb["rounds executed"]) == ("2.00", "48.0", "24")
    assert uhb["s in total / rounds scheduled"] == "1.20"
    assert (uhb["paper: s per round"], uhb["paper: of Retrain's"]) == ("0.77", "0.61")
    assert uhb["seeds"] == "1", "only one seed was timed"
    assert "NVIDIA H200 (engine stacked, tf32)" in table.note


def test_ratios_to_retrain_are_per_round_and_in_total(cells):
    row = make_tables(cells)["table-1"].rows[4]
    assert row[1] == UNDER
    assert (row[4], row[7]) == ("1.00", "0.60"), "a round takes as long as Retrain's, the whole does not"


def test_quartiles_over_rounds_stand_beside_the_median():
    seconds = (*[1.0] * 10, *[2.0] * 20, *[3.0] * 10)
    timed = track([0.9] * 40)
    timed = replace(timed, series={**timed.series, "client_seconds": seconds, "server_seconds": (0.0,) * 40})
    table = make_tables([cell(runs_too={"retrain": timed})])["table-1"]
    (row,) = rows(table, method="Retrain")
    assert (row["s per executed round"], row["quartiles over rounds"]) == ("2.00", "1.75 to 2.25")
    assert "One seed of each federation was timed" in table.note
    two = make_tables([cell(), cell(place(seed=1))])["table-1"]
    assert "The quartiles are means over the timed seeds." in two.note


def test_client_epochs_up_to_retrains_accuracy():
    runs = {
        "retrain": track([0.1] * 39 + [0.9]), "feduhb-on": track([0.1] * 9 + [0.9] * 31), "feduhb": track([0.1] * 9 + [0.9] * 15),
        "federaser": track([0.1] * 10 + [0.9] * 10, asked=9), "fedrecover": track([0.1] * 30 + [0.9] * 10, asked=5),
        "fedrecover-corrected": track([0.1] * 40),
    }  # fmt: skip
    found = {
        row["method"]: row["client epochs up to it"]
        for row in rows(make_tables([cell(runs_too=runs)])["reached"])
    }
    assert found == {
        "Retrain": "3,600", UNDER: "900", "FedUHB, rule off": "900", "FedEraser": f"{900 * 10 / 19:.0f}", "FedRecover": "1,000", "FedRecover, corrected": NOTHING,
    }  # fmt: skip


def test_a_step_that_was_hardly_tuned_is_said_to_be():
    note = make_tables(grid(["dirichlet:0.5"], [525], range(2)))["ablation"].note
    assert (
        "Dirichlet 0.5, 525 images a client: step 3 is best against the steps tried (0.5, 1, 2, 3); none over 3 was tried."
        in note
    )


def test_without_a_timed_cell_there_is_no_table_1():
    assert "table-1" not in make_tables([cell(alone=False)])


def test_accuracy_has_every_method_and_the_papers_number(cells):
    table = make_tables(cells)["accuracy"]
    got = rows(table, federation="iid, 525 images a client")
    assert [row["method"] for row in got] == [
        "original", "Retrain", "FedEraser", "FedRecover", "FedRecover, corrected", UNDER, "FedUHB, rule off",
    ]  # fmt: skip
    assert got[5]["paper"] == "93.02% (22 rounds)"
    assert "24" in got[5]["rounds executed"]
    assert "secure aggregation" in table.note


AGAINST = "client rounds saved against Retrain"


def test_client_rounds_are_held_against_the_same_seeds_retrain():
    """FedEraser replays half of the rounds and asks half of the clients; FedUHB ends 16 rounds early."""
    table = make_tables([cell()])["accuracy"]
    assert {row["method"]: row[AGAINST] for row in rows(table)} == {
        "original": NOTHING, "Retrain": NOTHING, "FedEraser": "75.0%", "FedRecover": "72.2%", "FedRecover, corrected": "55.6%",
        UNDER: "40.0%", "FedUHB, rule off": "0.0%",
    }  # fmt: skip
    assert "Client rounds saved: the share of the client rounds of the same seed's Retrain" in table.note
    assert "client epochs count the epochs." in table.note


def test_every_seed_is_held_against_its_own_retrain_and_without_one_against_nothing():
    long, short = {"retrain": track([0.9] * 40)}, {"retrain": track([0.9] * 20)}
    asks = {"fedrecover": track([0.9] * 40, asked=9)}
    both = [cell(place(seed=i), runs_too=runs | asks) for i, runs in enumerate((long, short))]
    (row,) = rows(make_tables(both)["accuracy"], method="FedRecover")
    assert row[AGAINST] == "25.0% ± 35.4", "half of the first's, as many as the second's"
    (row,) = rows(make_tables([both[0], failing(both[1], "retrain")])["accuracy"], method="FedRecover")
    assert row[AGAINST] == "50.0%"
    alone = replace(both[0], runs={name: run for name, run in both[0].runs.items() if name != "retrain"})
    assert {row[AGAINST] for row in rows(make_tables([alone])["accuracy"])} == {NOTHING}
    untold = replace(both[0].runs["fedrecover"], sums={})
    (row,) = rows(
        make_tables([cell(runs_too=long | {"fedrecover": untold})])["accuracy"], method="FedRecover"
    )
    assert row[AGAINST] == NOTHING


def test_a_run_that_broke_off_has_no_accuracy_and_is_counted():
    broken = [failing(cell(place(seed=seed)), "fedrecover") for seed in (0, 1)]
    (row,) = rows(make_tables(broken)["accuracy"], method="FedRecover")
    assert (row["test accuracy"], row["seeds"]) == (NOTHING, "0 (2 broke off)")


def test_rounds_to_retrain_say_what_the_rule_leaves():
    late = [0.5] * 30 + [0.9] * 3 + [0.7] + [0.9] * 6
    runs = {"retrain": track([0.8] * 40), "feduhb": track(late[:24]), "feduhb-on": track(late, falling())}
    table = make_tables([cell(place(), runs_too=runs)])["reached"]
    (row,), (on,) = rows(table, method=UNDER), rows(table, method="FedUHB, rule off")
    assert on["first round with it"] == "31"
    assert on["kept from"] == "35", "it falls back once"
    assert on["of the scheduled rounds"] == "77.5%"
    assert row["first round with it"] == "never", "the rule fires at 24"
    assert on["first round with 93.0%"] == "never"
    assert (row["paper: rounds"], on["paper: rounds"]) == ("about 20", NOTHING)


@pytest.mark.parametrize("name", ["table-1", "accuracy", "reached", "misr", "asr"])
def test_no_table_leaves_open_which_run_of_feduhb_it_means(cells, name):
    named = [row[2 if name == "reached" else 1] for row in make_tables(cells)[name].rows]
    assert {label for label in named if "UHB" in label} <= {UNDER, "FedUHB, rule off"}
    assert UNDER in named


def test_a_rounds_seconds_are_the_plain_median_and_totals_those_of_a_warm_machine():
    seconds = (*[1.0] * 19, *[2.0] * 20, 90.0)
    timed = track([0.9] * 40)
    timed = replace(timed, series={**timed.series, "client_seconds": seconds, "server_seconds": (0.0,) * 40})
    table = make_tables([cell(runs_too={"retrain": timed})])["table-1"]
    (row,) = rows(table, method="Retrain")
    assert row["s per executed round"] == f"{statistics.median(seconds):.2f}" == "2.00"
    assert row["s in total"] == "61.0", "the round of 90 s counts as one of 2 s"
    assert "In a total, a rare round" in table.note


def test_lambda_has_one_line_where_the_rule_never_fires_and_the_paper_no_number():
    still = {"feduhb-on": track([0.9] * 40, [1.0] * 40)}
    table = make_tables([cell(place(data="cifar10"), runs_too=still)])["lambda"]
    assert [row[1:-1] for row in table.rows] == [["0.2 to 1", *["not in 40"] * 4, NOTHING]]
    assert "The rule fires in no seed of iid in 40 rounds, with λ from 0.2 to 1" in table.note
    ours = make_tables([cell(place(), runs_too=still)])["lambda"]
    assert len(ours.rows) == 5, "the paper's numbers stand beside these"


def test_the_papers_numbers_stand_beside_their_own_data_set_alone():
    for data, said in (("cifar10", "around 30%"), ("mnist-5k", NOTHING)):
        found = make_tables([cell(place(data=data))])
        (row,) = rows(found["accuracy"], method="FedRecover")
        assert row["paper"] == said
        assert not any("93.0%" in header for header in found["reached"].headers)


def test_misr_has_its_controls(cells):
    table = make_tables(cells)["misr"]
    got = rows(table, federation="iid, 525 images a client")
    assert [row["model"] for row in got][:2] == ["original", "Retrain"]
    assert (got[0]["boosted trees"], got[0]["on test data"]) == ("81.0% ± 1.0", "45.0%")
    assert got[1]["paper"] == "23.9%"
    assert table.headers.count("on test data") == 2
    assert "50% has no meaning of its own" in table.note


def test_asr_is_held_against_the_floor(cells):
    table = make_tables(cells)["asr"]
    (original,), (uhb,) = rows(table, model="original"), rows(table, model=UNDER)
    assert (original["ASR"], original["over Retrain's (points)"]) == ("92.0%", "+90.0")
    assert (uhb["ASR"], uhb["over Retrain's (points)"], uhb["paper"]) == ("2.0%", "+0.0", "3.35%")
    assert all("backdoor" in row[0] for row in table.rows)


def test_beta_has_a_row_each_where_more_were_run(cells):
    table = make_tables(cells)["beta"]
    assert [row[1] for row in table.rows] == ["0", "0.3", "0.5", "0.7", "0.9"]
    assert {row[0] for row in table.rows} == {"Dirichlet 0.5, 525 images a client"}


def test_lambda_says_where_each_window_fires():
    slow = track([0.9] * 40, [1.0] * 40)
    fast = track([0.9] * 20 + [0.95] * 20, falling())
    both = [cell(place(seed=i), runs_too={"feduhb-on": run}) for i, run in enumerate((fast, slow))]
    one = rows(make_tables(both[:1])["lambda"], λ="0.6")[0]
    assert one["window: all so far"] == "24; 95.0%"
    assert one["window: 5"] == "not in 40"
    assert one["paper"] == "22; 93.02%"
    two = rows(make_tables(both)["lambda"], λ="0.6")[0]
    assert two["window: all so far"] == "32.0 ± 11.3 (1 of 2 fire); 92.5% ± 3.5"
    assert [row["λ"] for row in rows(make_tables(both)["lambda"])] == ["0.2", "0.4", "0.6", "0.8", "1"]


def test_the_ablation_keeps_momentum_and_rule_apart(cells):
    table = make_tables(cells)["ablation"]
    plain = rows(table, federation="iid, 525 images a client")
    assert [row["variant"] for row in plain] == [
        "β 0, no rule", "β 0, with the rule", "β 0.9, no rule", "β 0.9, with the rule",
    ]  # fmt: skip
    assert [row["rounds executed"] for row in plain][::2] == ["40", "40"]
    assert [row["the rule fires"] for row in plain] == [NOTHING, "3 of 3", NOTHING, "3 of 3"]
    assert plain[3]["paper"] == "22 rounds, 93.0%"
    swept = rows(table, federation="Dirichlet 0.5, 525 images a client")
    assert swept[-1]["variant"].startswith("FedAvg, server step ")
    assert "chosen on the test data, which favours it" in table.note


def test_the_rule_on_beta_0_is_replayed_on_retrains_own_movements():
    runs = {"retrain": track([i / 40 for i in range(40)], falling(peak=3)), "feduhb-on": track([0.9] * 40, [1.0] * 40)}  # fmt: skip
    table = make_tables([cell(place(), runs_too=runs)])["ablation"]
    (ruled,), (uhb,) = rows(table, variant="β 0, with the rule"), rows(table, variant="β 0.9, with the rule")
    assert ruled["the rule fires"] == "1 of 1"
    assert int(ruled["rounds executed"]) < 40
    assert ruled["first round with Retrain's final accuracy"] == "never", "Retrain is cut before its best"
    assert (uhb["the rule fires"], uhb["rounds executed"]) == ("0 of 1", "40")


def test_what_was_run_names_device_commit_and_seeds(cells):
    (row,) = rows(make_tables(cells)["runs"], federation="Dirichlet 0.5, 525 images a client")
    assert (row["seeds"], row["timed seeds"], row["rounds"]) == ("0, 1 and 2", "0", "40")
    assert (row["device"], row["engine"], row["commit"]) == ("NVIDIA H200", "stacked tf32", "0123456789")
    other = replace(cells[0], made={**cells[0].made, "device": "CPU", "finished": "2026-11-17T01:00:00"})
    (row,) = rows(make_tables([other, cells[1]])["runs"], federation="iid, 525 images a client")
    assert row["device"] == "CPU, NVIDIA H200"
    assert row["finished"] == "2026-11-15 to 2026-11-17"


def test_markdown_and_latex_have_every_cell(cells):
    text = format_markdown(cells)
    assert text.count("\n## ") + text.startswith("## ") == len(NAMES)
    assert (
        "| FedUHB, under its rule | 2.00 | 2.00 to 2.00 | 1.00 | 24 | 48.0 | 0.60 | 1.20 | 0.77 | 0.61 | 1 |"
        in text
    )
    tex = format_latex(make_tables(cells)["table-1"])
    assert (
        r"FedUHB, under its rule & 2.00 & 2.00 to 2.00 & 1.00 & 24 & 48.0 & 0.60 & 1.20 & 0.77 & 0.61 & 1 \\"
        in tex
    )
    assert tex.startswith("% Table I: running time\n% ")
    assert r"\end{tabular}" in tex


def test_one_seed_has_no_spread_and_says_so():
    text = format_markdown([cell(place("dirichlet:0.5"))])
    assert " ± " not in "".join(line for line in text.splitlines() if line.startswith("|"))
    assert "no ± with one seed" in text
