from __future__ import annotations

import io
import json
import re
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from feduhb.report.page import render_report
from feduhb.report.runs import RunView, read_runs
from feduhb.report.tables import (
    list_json_rows,
    make_grids,
    make_grids_of_each,
    make_terminal_tables,
    sort_views,
)
from feduhb.report.words import NOTHING
from report.folders import rivals, series, unlabelled, write


def cells(views: list[RunView], label: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for grid in make_grids(views):
        found |= zip(grid.headers, next(row for row in grid.rows if row[0] == label), strict=True)
    return found


def headers_of(views: list[RunView]) -> list[str]:
    return [header for grid in make_grids(views) for header in grid.headers]


def test_the_numbers(views):
    assert cells(views, "Retrain") == {
        "run": "Retrain",
        "exact": "yes",
        "rounds / max": "8 / 8",
        "client epochs": "64",
        "MB down + up": "24.0",
        "seconds": "16.0",
        "seconds a round": "2.00",
        "server seconds": "2.00",
        "needs": "only sums",
        "test accuracy": "95.6%",
        "test loss": "0.00898",
        "backdoor success": "1.0%",
        "reaches Retrain's final accuracy at round": "8",
    }


def test_the_original_run_is_asked_nothing_about_forgetting(views):
    row = cells(views, "original")
    assert row["exact"] == NOTHING
    assert row["reaches Retrain's final accuracy at round"] == NOTHING


def test_a_run_that_stopped_early_shows_both_counts(views):
    uhb = views[1]
    assert cells(views, "FedUHB")["rounds / max"] == f"{uhb.fired} / 12"


def test_the_round_that_reaches_retrain(tmp_path: Path):
    views = read_runs(
        [
            write(tmp_path / "fast", "feduhb", series(8, rate=0.3)),
            write(tmp_path / "slow", "fedrecover", series(8, rate=0.8)),
            write(tmp_path / "retrain", "retrain", series(4)),
        ]
    )
    goal = 0.96 * (1 - 0.5**4)
    expected = next(n for n in range(1, 9) if 0.96 * (1 - 0.3**n) >= goal)
    assert cells(views, "FedUHB")["reaches Retrain's final accuracy at round"] == str(expected)
    assert cells(views, "FedRecover")["reaches Retrain's final accuracy at round"] == "never"


def test_columns_nobody_fills_are_left_out(tmp_path: Path):
    views = read_runs([write(tmp_path / "u", "feduhb", series(3, backdoor=None))])
    headers = headers_of(views)
    assert "backdoor success" not in headers
    assert not any("Retrain" in header for header in headers)


def test_histories_and_what_they_save(five):
    told = {view.label: cells(five, view.label) for view in five}
    assert [row["stored MB"] for row in told.values()] == ["12.5", NOTHING, NOTHING, "12.5", "12.5"]
    assert [row["client rounds saved"] for row in told.values()] == [NOTHING] * 3 + ["25.0%", "50.0%"]
    assert [row["needs"] for row in told.values()] == ["only sums"] * 3 + ["each update, stored updates"] * 2


def test_without_a_history_nothing_is_said_of_one(views):
    headers = headers_of(views)
    assert not {"stored MB", "client rounds saved"} & set(headers)


def test_a_silent_client_of_an_exact_method_is_no_saving(tmp_path: Path):
    path = write(tmp_path / "r", "retrain", series(3), changes={"client_rounds_saved": 0.1})
    assert "client rounds saved" not in headers_of(read_runs([path]))


def test_a_method_that_needs_every_update_says_so(tmp_path: Path):
    row = cells(read_runs([write(tmp_path / "e", "federaser", series(3))]), "FedEraser")
    assert row["exact"] == "no"
    assert row["needs"] == "each update"


def test_a_score_that_is_missing_is_a_dash(tmp_path: Path):
    views = read_runs([write(tmp_path / "u", "feduhb", series(3), changes={"scores": {}})])
    assert cells(views, "FedUHB")["test accuracy"] == NOTHING


def test_a_regression_is_compared_by_its_loss(tmp_path: Path):
    paths = [
        write(tmp_path / "fast", "feduhb", unlabelled(series(8, rate=0.3))),
        write(tmp_path / "slow", "fedrecover", unlabelled(series(8, rate=0.8))),
        write(tmp_path / "retrain", "retrain", unlabelled(series(4))),
    ]
    views = read_runs(paths)
    assert "test accuracy" not in headers_of(views)
    assert cells(views, "FedUHB")["test loss"] == "0.000151"
    assert cells(views, "FedUHB")["reaches Retrain's final loss at round"] == "3"  # 0.3³ < 0.5⁴ < 0.3²
    assert cells(views, "FedRecover")["reaches Retrain's final loss at round"] == "never"
    assert list_json_rows(views)[0]["test_accuracy"] is None


def test_every_rendering_carries_the_same_cells(views):
    rows = [list(row) for grid in make_grids(views) for row in grid.rows]
    in_markdown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for grid in make_grids(views)
        for line in grid.to_markdown().splitlines()[2:]
    ]
    bodies = [
        grid.to_latex().split(r"\midrule")[1].split(r"\bottomrule")[0].strip() for grid in make_grids(views)
    ]
    in_latex = [line.removesuffix(r" \\").split(" & ") for body in bodies for line in body.splitlines()]
    in_page = [
        re.findall(r"<td[^>]*>(.*?)</td>", line)
        for line in render_report(views).splitlines()
        if "<td" in line
    ]
    assert in_markdown == rows
    assert [[cell.replace("--", NOTHING).replace(r"\%", "%") for cell in row] for row in in_latex] == rows
    assert in_page == rows
    printed = [re.split(r"\s{2,}", line.strip()) for line in printed_lines(views)]
    assert [line for line in printed if line in rows] == rows


def test_exact_and_approximate_runs_are_groups_whatever_their_order(five):
    original, uhb, retrain, eraser, recover = five
    mixed = [eraser, uhb, original, recover, retrain]
    ordered, groups = sort_views(mixed)
    assert [view.label for view in ordered] == ["original", "FedUHB", "Retrain", "FedEraser", "FedRecover"]
    assert groups == {1: "Exact", 3: "Approximate"}
    assert [row["run"] for row in list_json_rows(mixed)] == [view.label for view in mixed]
    for grid in make_grids(mixed):
        assert "exact" not in grid.headers, "the headings say it"
        first = [line.strip("|").split("|")[0].strip() for line in grid.to_markdown().splitlines()[2:]]
        assert first == [
            "original",
            "**Exact**",
            "FedUHB",
            "Retrain",
            "**Approximate**",
            "FedEraser",
            "FedRecover",
        ]
        lines = grid.to_latex().splitlines()
        heading = rf"\multicolumn{{{len(grid.headers)}}}{{l}}{{\emph{{Approximate}}}} \\"
        assert lines[lines.index(heading) + 1].startswith("FedEraser & ")
    page = re.findall(
        r'<tr class="group"><th colspan="(\d+)" scope="rowgroup">(\w+)</th>', render_report(mixed)
    )
    widths = [str(len(grid.headers)) for grid in make_grids(mixed)]
    assert page == [(width, name) for width in widths for name in ("Exact", "Approximate")]
    wide = [line.strip() for line in printed_lines(mixed)]
    assert [line for line in wide if line in {"Exact", "Approximate"}] == ["Exact", "Approximate"] * 2


def test_runs_of_one_kind_have_no_headings(views):
    assert sort_views(views) == (views, {})
    assert "exact" in make_grids(views)[0].headers


def test_needs_and_stored_bytes_are_those_that_the_run_recorded(tmp_path: Path):
    needs = ["the old model", "the leaver's cooperation"]
    recorded = {"requires": needs, "leaver_epochs": 7, "kept_models_bytes": 2_500_000}
    row = cells(read_runs([write(tmp_path / "p", "pga", series(3), changes=recorded)]), "PGA")
    assert row["needs"] == "the old model, the leaver's cooperation"
    assert row["leavers' epochs"] == "7"
    assert row["stored MB"] == "2.50"
    old = write(tmp_path / "r", "rollback", series(3), changes={"restart_round": 1, "restart_sha256": ""})
    assert cells(read_runs([old]), "Rollback")["needs"] == "kept models"


@pytest.mark.parametrize(("restart", "says"), [(0, "2.00"), (6, "8.00"), (8, NOTHING)])
def test_seconds_a_round_are_of_the_rounds_that_a_rollback_repeated(tmp_path: Path, restart: int, says: str):
    recorded = {"restart_round": restart, "client_seconds": 14.0, "server_seconds": 2.0}
    [view] = read_runs([write(tmp_path / "r", "rollback", series(8), changes=recorded)])
    assert cells([view], "Rollback")["seconds a round"] == says


def test_needs_that_were_recorded_in_part_are_completed(tmp_path: Path):
    recorded = {"requires": ["the old model"], "history_bytes_read": 5}
    view = read_runs([write(tmp_path / "e", "federaser", series(3), changes=recorded)])
    assert cells(view, "FedEraser")["needs"] == "each update, stored updates, the old model"


def test_runs_that_differ_in_their_seed_share_a_row(tmp_path: Path):
    paths = [
        write(tmp_path / f"{method}{seed}", method, series(rounds), seed=seed, scheduled=9)
        for seed, rounds in {1: 4, 2: 6}.items()
        for method in ("feduhb", "retrain")
    ]
    both = read_runs(paths)
    row = cells(both, "FedUHB")
    assert row["seeds"] == "2"
    assert row["rounds / max"] == "5.0 ± 1.4 / 9"
    assert row["client epochs"] == "40.0 ± 11.3"  # 32 and 48: their mean, and their difference over √2
    ends = [0.96 * (1 - 0.5**rounds) for rounds in (4, 6)]
    assert row["test accuracy"] == f"{statistics.fmean(ends):.1%} ± {statistics.stdev(ends):.1%}"
    assert row["exact"] == "yes"
    assert "Mean ± standard deviation over seeds" in make_grids(both)[0].note
    results, costs = make_grids_of_each(both)
    labels = ["FedUHB (seed 1)", "Retrain (seed 1)", "FedUHB (seed 2)", "Retrain (seed 2)"]
    assert [row[0] for row in results.rows] == [row[0] for row in costs.rows] == labels
    assert len(list_json_rows(both)) == 4
    assert "Results: each run" in render_report(both)
    assert make_grids_of_each(read_runs(paths[:2])) == []


def test_two_runs_of_one_seed_keep_their_rows(tmp_path: Path):
    paths = [write(tmp_path / name, "feduhb", series(3)) for name in "ab"]
    assert [row[0] for row in make_grids(read_runs(paths))[0].rows] == ["FedUHB (a)", "FedUHB (b)"]


def test_words_of_seeds_are_counted(tmp_path: Path):
    goals = {1: 3, 2: 8}  # FedUHB has five rounds, so that it reaches Retrain only once
    paths = [
        write(tmp_path / f"r{seed}", "retrain", series(n), seed=seed, scheduled=9)
        for seed, n in goals.items()
    ]
    paths += [write(tmp_path / f"u{seed}", "feduhb", series(5), seed=seed, scheduled=9) for seed in goals]
    assert cells(read_runs(paths), "FedUHB")["reaches Retrain's final accuracy at round"] == "3, never (1)"


@pytest.mark.parametrize("width", [40, 60])
def test_parts_of_a_split_table_are_set_apart(tmp_path: Path, width: int):
    views = read_runs([write(tmp_path / f"m{i}", f"method{i}", series(3)) for i in range(7)])
    lines = [line.strip() for line in printed_lines(views, width)]
    heads = [at for at, line in enumerate(lines) if line.startswith("─")]
    assert len(heads) > 2
    lasts = [at for at, line in enumerate(lines) if line.startswith("method6")]
    assert all(lines[at + 1] == "" for at in lasts[:-1])


def test_a_wrapped_phrase_begins_beside_its_run(tmp_path: Path):
    needs = ["each update", "stored updates", "the old model", "unlabelled data of the server"]
    paths = [
        write(tmp_path / f"m{i}", f"method{i}", series(3), changes={"requires": needs}) for i in range(7)
    ]
    lines = printed_lines(read_runs(paths), 60)
    assert sum(bool(re.match(r"method\d .*each update", line)) for line in lines) == 7


@pytest.mark.parametrize("width", [80, 120])
def test_many_methods_stay_rows_in_a_terminal(tmp_path: Path, width: int):
    paths = [write(tmp_path / f"m{i}", f"method{i}", series(3)) for i in range(18)]
    lines = printed_lines(read_runs(paths), width)
    assert max(map(len, lines)) <= width
    for i in range(18):
        assert sum(line.split()[:1] == [f"method{i}"] for line in lines) == 2


def printed_lines(views: list[RunView], width: int = 120) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(make_terminal_tables(views))
    return out.getvalue().rstrip().splitlines()


def test_the_terminal_table_fits_120_columns_with_whole_words(views):
    lines = printed_lines(views)
    assert max(map(len, lines)) <= 120
    for word in ("needs", "accuracy", "backdoor", "Retrain's", "seconds"):
        assert any(re.search(rf"(?<!\S){word}(?!\S)", line) for line in lines)


def test_a_narrow_terminal_gets_the_same_cells_in_columns(views):
    results, _ = make_grids(views)
    lines = printed_lines(views, width=50)
    assert max(map(len, lines)) <= 50
    split = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert split[0] == ["run", "original", "FedUHB", "Retrain"]
    end = next(at for at, line in enumerate(lines) if not line.strip())
    found = [tuple(parts[-3:]) for parts in split[1:end] if len(parts) == 4]
    assert found == list(zip(*(row[1:] for row in results.rows), strict=True))


def test_a_narrow_terminal_says_what_is_exact(five):
    lines = [line.split() for line in printed_lines(five, width=70)]
    assert ["exact", NOTHING, "yes", "yes", "no", "no"] in lines


@pytest.mark.parametrize("width", [80, 120, 160])
def test_four_methods_and_the_original_are_legible_at_every_width(tmp_path: Path, width: int):
    views = read_runs(rivals(tmp_path))
    lines = printed_lines(views, width)
    assert max(map(len, lines)) <= width
    said = " ".join(lines).split()
    for view in views:
        assert view.label in said
    for header in headers_of(views):
        assert set(header.split()) <= set(said), header


def test_json_has_the_unrounded_numbers(views):
    told = json.loads(json.dumps(list_json_rows(views)))
    run = told[2]
    assert run["run"] == "Retrain"
    assert run["rounds"] == 8
    assert run["scheduled_rounds"] == 8
    assert run["test_accuracy"] == pytest.approx(0.96 * (1 - 0.5**8))
    assert run["stopped"] == "all 8 scheduled rounds were run"
    assert told[0]["exact"] is None


def test_json_has_the_history_too(five):
    told = list_json_rows(five)
    assert [run["history_megabytes"] for run in told] == [12.5, None, None, 12.5, 12.5]
    assert [run["client_rounds_saved"] for run in told] == [None, None, None, 0.25, 0.5]


def test_marks_of_markdown_latex_and_rich_stay_text(tmp_path: Path):
    views = read_runs([write(tmp_path / f"[red]{i}_a|b%$x", "feduhb", series(3)) for i in range(2)])
    assert r"\|b" in make_grids(views)[0].to_markdown()
    assert r"\_a\textbar{}b\%\$x" in make_grids(views)[0].to_latex()
    assert "[red]0" in "".join(line.replace(" ", "") for line in printed_lines(views))
