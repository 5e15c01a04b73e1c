from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from feduhb.report.audit_tables import make_grids, to_latex, to_markdown
from feduhb.report.runs import RunView, read_runs
from feduhb.report.tables import list_json_rows
from feduhb.report.tables import make_grids as make_run_grids
from feduhb.report.words import NOTHING, list_notes
from report.audits import attack, audit, bare, comparison, make_checks, put
from report.folders import rivals, series, write

EVERY = [
    "verdicts",
    "exactness",
    "attacks",
    "misr",
    "backdoor",
    "accuracy",
    "clients",
    "distance",
    "relearn",
    "cost",
]


@pytest.fixture
def two(tmp_path: Path) -> list[RunView]:
    folders = rivals(tmp_path)
    put(folders[1], audit())
    put(folders[3], audit("not forgotten", exact=False, membership=[attack(found="caught", unlearned=0.7)]))
    return read_runs(folders)


def one(tmp_path: Path, **changes: Any) -> list[RunView]:
    return read_runs([put(write(tmp_path / "u", "feduhb", series(4)), audit(**changes))])


def test_every_part_has_its_make_rows(two):
    assert list(make_grids(two)) == EVERY
    for grid in make_grids(two).values():
        assert grid.note
        assert all(len(row) == len(grid.headers) for row in grid.rows), grid.title


def test_retrains_cost_is_what_its_own_run_recorded(two):
    """The audit ran Retrain again, in 6 s; the run in the report took 16."""
    assert two[1].audit is not None
    assert two[1].audit.cost["retrain"].seconds == 6.0
    for grid in (make_grids(two)["cost"], make_grids(two[1:2], two)["cost"]):
        rows = {row[1]: row[2:] for row in grid.rows if row[0] == "FedUHB"}
        assert rows["Retrain"] == ["8", "64", "8.00", "16.0", NOTHING, "16.0"]
        assert rows["original"][0] == "40"
    (alone,) = (row for row in make_grids(two[1:2])["cost"].rows if row[1] == "Retrain")
    assert alone[-1] == "6.00", "without that run, the audit's own"


def test_only_checks_that_compare_weights_say_identical_and_how_far_apart(tmp_path: Path):
    """A method that must give other weights from another draw passes; its weights are not identical."""
    names = ("noise", "never", "beginning", "draw", "bare", "nudge", "failed")
    exactness = make_checks(*names, failed=("never", "nudge", "failed"))
    grid = make_grids(one(tmp_path, exactness=exactness))["exactness"]
    assert [row[2:] for row in grid.rows] == [
        ["identical", "0"],
        ["different", "0.25"],
        ["passed", "0"],
        ["passed", NOTHING],
        ["passed", NOTHING],
        ["failed", NOTHING],
        ["failed", NOTHING],
    ]


def test_what_the_original_reveals_if_it_is_kept(tmp_path: Path):
    grid = make_grids(one(tmp_path, membership=[attack(), comparison()]))["kept"]
    assert [row[1:5] for row in grid.rows] == [
        ["change of confidence, canaries", "itself one round later", "0.490 [0.459, 0.521]", ""],
        ["change of confidence, canaries", "Retrain", "0.910 [0.879, 0.941]", ""],
        [
            "change of confidence, canaries",
            "the unlearned model",
            "0.860 [0.829, 0.891]",
            "-0.050 [-0.100, +0.000]",
        ],
    ]
    assert "does not count for the verdict" in grid.note


def test_runs_without_an_audit_are_in_none(two):
    names = {row[0] for grid in make_grids(two).values() for row in grid.rows}
    assert names == {"FedUHB", "FedEraser"}


def test_parts_that_are_missing_have_no_table(tmp_path: Path):
    views = read_runs([put(write(tmp_path / "u", "feduhb", series(4)), bare())])
    assert list(make_grids(views)) == ["verdicts", "distance", "cost"]
    assert make_grids(views)["verdicts"].rows == [["FedUHB", "inconclusive", *[NOTHING] * 4]]


def test_models_without_labels_have_no_distances(tmp_path: Path):
    views = read_runs([put(write(tmp_path / "u", "feduhb", series(4)), bare() | {"distance": {}})])
    assert list(make_grids(views)) == ["verdicts", "cost"]


def test_no_audit_no_make_rows(views):
    assert make_grids(views) == {}
    assert to_markdown(views) == to_latex(views) == ""
    assert "audit" not in make_run_grids(views)[0].headers
    assert all("audit" not in row for row in list_json_rows(views))


def test_verdicts_with_their_parts(two):
    grid = make_grids(two)["verdicts"]
    assert grid.rows[0] == [
        "FedUHB", "forgotten", "bit for bit",
        "No power here: loss, all forgotten data. Not caught: loss, canaries; LiRA, canaries.",
        "not caught", "89.9%",
    ]  # fmt: skip
    assert grid.rows[1][:4] == ["FedEraser", "not forgotten", "bit for bit", "Caught: loss, canaries."]
    assert grid.sentences[0] == "FedUHB: Both checks gave the same weights to the last bit."


def test_attacks_have_controls_intervals_and_power(two):
    grid = make_grids(two)["attacks"]
    own = [row for row in grid.rows if row[:2] == ["FedEraser", "loss, canaries"]]
    assert [row[2:5] for row in own] == [
        ["original", "must be caught", "0.820 [0.789, 0.851]"],
        ["Retrain", "must not be caught", "0.497 [0.466, 0.528]"],
        ["unlearned", "caught", "0.700 [0.669, 0.731]"],
    ]
    assert [row[-1] for row in own] == ["", "", "87.0%"]
    assert [row[5] for row in own] == ["", "", "+0.203 [+0.177, +0.229]"]
    assert own[0][6:9] == ["11.7% [9.7%, 13.7%]", "4.1% [3.1%, 5.1%]", "400 / 130"]
    assert "FedEraser: With 400 canaries the chance is 21%." in grid.sentences
    assert "within 0.5 ± 0.05" in grid.note
    assert "FedEraser: loss, canaries: the loss attack on canaries says caught" in grid.sentences


def test_seeds_that_were_audited_together_have_a_row_of_their_mean(tmp_path: Path):
    """0.505 and 0.525 against 0.497: +0.008 and +0.028, whose mean is +0.018; the error 0.01 stays."""
    made = [
        put(
            write(tmp_path / str(seed), "feduhb", series(4), seed=seed),
            audit(seed=seed, procedure="feduhb-1", membership=[attack(unlearned=auc)]),
        )
        for seed, auc in ((1, 0.505), (2, 0.525))
    ]
    rows = make_grids(read_runs(made))["attacks"].rows
    assert rows[-1] == [
        "FedUHB, 2 seeds", "loss, canaries", "unlearned", "mean over seeds", "", "+0.018 [-0.008, +0.044]", "", "", "400 / 130", "",
    ]  # fmt: skip
    assert len(rows) == 7
    assert len(make_grids(read_runs(made[:1]))["attacks"].rows) == 3


def test_liras_self_test_has_a_row(two):
    rows = [row for row in make_grids(two)["attacks"].rows if row[2] == "its own shadows"]
    assert [row[1:5] for row in rows] == [
        ["LiRA, canaries", "its own shadows", "what it can do", "0.800 [0.769, 0.831]"]
    ]


def test_every_misr_has_the_rate_on_test_data_beside_it(two):
    grid = make_grids(two)["misr"]
    assert grid.headers[2:] == [
        "original",
        "on test data",
        "Retrain",
        "on test data",
        "unlearned",
        "on test data",
    ]
    assert grid.rows[0] == ["FedUHB", "boosted trees", "66.0%", "33.0%", "30.0%", "28.0%", "31.0%", "29.0%"]
    assert grid.sentences == ["MISR is a recall, and chance is the rate on test data."], "said once"


def test_the_backdoor_stands_against_its_floor(two):
    row = make_grids(two)["backdoor"].rows[0]
    assert row == ["FedUHB", "98.0%", "0.1%", "0.3%", "+0.2 [−0.4, +0.9] points", "911", "not caught"]  # noqa: RUF001


def test_accuracies_that_are_null_are_dashes(tmp_path: Path):
    told = audit()["accuracy"]
    told["retrain"] = dict.fromkeys(told["retrain"])
    told["original"]["forgotten"] = None
    rows = make_grids(one(tmp_path, accuracy=told))["accuracy"].rows
    assert rows == [
        ["FedUHB", "original", NOTHING, "94.0%", "90.0%"],
        ["FedUHB", "unlearned", "90.0%", "93.0%", "89.9%"],
    ]


def test_remaining_clients_are_summed_up(two):
    row = make_grids(two)["clients"].rows[0]
    assert row[:3] == ["FedUHB", "held-out data", "6"]
    assert sum(map(int, row[3:6])) == 6


def test_relearning_that_did_not_happen_is_said(two):
    assert make_grids(two)["relearn"].rows[0] == ["FedUHB", "99.0%", "not within 10", "4"]


def test_costs_of_all_three(two):
    rows = make_grids(two)["cost"].rows
    assert rows[2] == ["FedUHB", "unlearned", "32", "1,728", "117", "117", NOTHING, "4.80"]
    assert [row[1] for row in rows[:3]] == ["original", "Retrain", "unlearned"]


def test_distances(two):
    assert make_grids(two)["distance"].rows[1] == ["FedUHB", "unlearned", "7.31", "0.710", "0.112", "6.4%"]


def test_markdown_and_latex_carry_the_same_rows(two):
    for grid in make_grids(two).values():
        assert f"## {grid.title}\n\n{grid.note}\n\n{grid.to_markdown()}" in to_markdown(two)
        assert grid.to_latex() in to_latex(two)
    assert to_latex(two).count(r"\begin{tabular}") == len(EVERY)
    assert all(line.startswith(("%", "\\")) or "&" in line or not line for line in to_latex(two).splitlines())


def test_marks_in_sentences_stay_text(tmp_path: Path):
    hostile = "<script>alert(1)</script>\n| a | b |\n# c"
    views = one(tmp_path, verdict={"word": "useless", "reasons": [hostile]})
    text = to_markdown(views)
    assert "<script>" not in re.sub(r"\\<", "", text)
    assert "\n# c" not in text
    commented = [line for line in to_latex(views).splitlines() if "script" in line]
    assert commented
    assert all(line.startswith("% ") for line in commented)


def test_the_main_table_has_the_word(two):
    results, _ = make_run_grids(two)
    assert results.headers[-1] == "audit"
    assert [row[-1] for row in results.rows] == [NOTHING, "forgotten", NOTHING, "not forgotten", NOTHING]
    assert [row["audit"] for row in list_json_rows(two)] == [None, "forgotten", None, "not forgotten", None]


def test_an_audit_of_other_weights_is_never_a_verdict_alone(tmp_path: Path):
    views = one(tmp_path, weights_sha256="cd" * 32)
    assert make_run_grids(views)[0].rows[0][-1] == "forgotten (of other weights)"
    assert list_json_rows(views)[0]["audit"] == "forgotten (of other weights)"
    assert make_grids(views)["verdicts"].rows[0][1] == "forgotten (of other weights)"
    (said,) = list_notes(views)
    assert "other weights" in said
    assert list_notes(one(tmp_path / "own")) == []
