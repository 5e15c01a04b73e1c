from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from feduhb.report.page import render_report
from feduhb.report.runs import RunView, read_runs
from feduhb.report.tables import list_json_rows, make_grid, make_rows, make_terminal_table
from feduhb.report.words import NOTHING
from report.folders import rivals, series, unlabelled, write


def cells(views: list[RunView], label: str) -> dict[str, str]:
    headers, rows = make_rows(views)
    return dict(zip(headers, next(row for row in rows if row[0] == label), strict=True))


def test_the_numbers(views):
    assert cells(views, "Retrain") == {
        "run": "Retrain",
        "exact": "yes",
        "secure aggregation": "yes",
        "rounds / max": "8 / 8",
        "client epochs": "64",
        "MB down + up": "24.0",
        "seconds": "16.0",
        "seconds a round": "2.00",
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
    headers, _ = make_rows(views)
    assert "backdoor success" not in headers
    assert not any("Retrain" in header for header in headers)


def test_histories_and_what_they_save(five):
    told = {view.label: cells(five, view.label) for view in five}
    assert [row["history MB"] for row in told.values()] == ["12.5", NOTHING, NOTHING, "12.5", "12.5"]
    assert [row["client rounds saved"] for row in told.values()] == [NOTHING] * 3 + ["25.0%", "50.0%"]
    assert [row["exact"] for row in told.values()] == [NOTHING, "yes", "yes", "no", "no"]
    assert [row["secure aggregation"] for row in told.values()] == ["yes", "yes", "yes", "no", "no"]


def test_without_a_history_nothing_is_said_of_one(views):
    headers, _ = make_rows(views)
    assert not {"history MB", "client rounds saved"} & set(headers)


def test_a_silent_client_of_an_exact_method_is_no_saving(tmp_path: Path):
    path = write(tmp_path / "r", "retrain", series(3), changes={"client_rounds_saved": 0.1})
    assert "client rounds saved" not in make_rows(read_runs([path]))[0]


def test_a_method_that_needs_every_update_says_so(tmp_path: Path):
    row = cells(read_runs([write(tmp_path / "e", "federaser", series(3))]), "FedEraser")
    assert row["exact"] == "no"
    assert row["secure aggregation"] == "no"


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
    assert "test accuracy" not in make_rows(views)[0]
    assert cells(views, "FedUHB")["test loss"] == "0.000151"
    assert cells(views, "FedUHB")["reaches Retrain's final loss at round"] == "3"  # 0.3³ < 0.5⁴ < 0.3²
    assert cells(views, "FedRecover")["reaches Retrain's final loss at round"] == "never"
    assert list_json_rows(views)[0]["test_accuracy"] is None


def test_every_rendering_carries_the_same_cells(views):
    _, rows = make_rows(views)
    in_markdown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in make_grid(views).to_markdown().splitlines()[2:]
    ]
    body = make_grid(views).to_latex().split(r"\midrule")[1].split(r"\bottomrule")[0]
    in_latex = [line.removesuffix(r" \\").split(" & ") for line in body.strip().splitlines()]
    in_page = [
        re.findall(r"<td[^>]*>(.*?)</td>", line)
        for line in render_report(views).splitlines()
        if "<td" in line
    ]
    assert in_markdown == rows
    assert [[cell.replace("--", NOTHING).replace(r"\%", "%") for cell in row] for row in in_latex] == rows
    assert in_page == rows
    printed = printed_lines(views)
    assert [re.split(r"\s{2,}", line.strip()) for line in printed[-len(rows) :]] == rows


def printed_lines(views: list[RunView], width: int = 120) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(make_terminal_table(views))
    return out.getvalue().rstrip().splitlines()


def test_the_terminal_table_fits_120_columns_with_whole_words(views):
    lines = printed_lines(views)
    assert max(map(len, lines)) <= 120
    for word in ("aggregation", "accuracy", "backdoor", "Retrain's", "seconds"):
        assert any(re.search(rf"(?<!\S){word}(?!\S)", line) for line in lines)


def test_a_narrow_terminal_gets_the_same_cells_in_columns(views):
    _, rows = make_rows(views)
    lines = printed_lines(views, width=80)
    assert max(map(len, lines)) <= 80
    split = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert split[0] == ["run", "original", "FedUHB", "Retrain"]
    found = [tuple(parts[1:]) for parts in split[1:] if len(parts) == 4]
    assert found == list(zip(*(row[1:] for row in rows), strict=True))


@pytest.mark.parametrize("width", [80, 120, 160])
def test_four_methods_and_the_original_are_legible_at_every_width(tmp_path: Path, width: int):
    views = read_runs(rivals(tmp_path))
    lines = printed_lines(views, width)
    assert max(map(len, lines)) <= width
    said = " ".join(lines).split()
    for view in views:
        assert view.label in said
    for header in make_rows(views)[0]:
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
    assert r"\|b" in make_grid(views).to_markdown()
    assert r"\_a\textbar{}b\%\$x" in make_grid(views).to_latex()
    assert "[red]0" in "".join(line.replace(" ", "") for line in printed_lines(views))
