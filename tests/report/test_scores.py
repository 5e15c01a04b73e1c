"""Reports of runs with other scores than the accuracy: names, formats, directions, and the score to compare by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from feduhb.report import draw_figures
from feduhb.report.curves import chart_score
from feduhb.report.drawing import choose_strokes
from feduhb.report.page import render_report
from feduhb.report.runs import RunView, read_runs, retrain_of
from feduhb.report.stop_map import chart_map, chart_scales, replay_rules
from feduhb.report.tables import find_reaching_round, list_json_rows, make_grids
from feduhb.report.words import choose_score, format_final, headline, is_low_best, list_notes, list_scores
from feduhb.runs.folder import Round
from feduhb.runs.scores import format_change, format_score, name_score
from report.folders import series, write


def rescored(rounds: list[Round], **scores: Callable[[float], float]) -> list[Round]:
    """Rounds with these functions of the loss in place of the accuracy."""
    return [
        replace(record, scores={"test_loss": loss} | {f"test_{name}": f(loss) for name, f in scores.items()})
        for record in rounds
        for loss in [record.scores["test_loss"]]
    ]


def say(folder: Path, **scores: str) -> Path:
    file = folder / "config.toml"
    told = "".join(f"{name} = {best!r}\n" for name, best in scores.items())
    file.write_text(file.read_text() + f"\n[scores]\n{told}")
    return folder


@pytest.fixture
def regression(tmp_path: Path) -> list[RunView]:
    """Runs whose RMSE falls to 0: after n rounds it is as good as Retrain's last from round 8 of rate 0.5 on."""
    made = [
        write(tmp_path / "train", None, rescored(series(8), rmse=lambda loss: 2000 * loss)),
        write(tmp_path / "new", "feduhb", rescored(series(12, rate=0.4), rmse=lambda loss: 2000 * loss)),
        write(tmp_path / "retrain", "retrain", rescored(series(8), rmse=lambda loss: 2000 * loss)),
    ]
    return read_runs([say(folder, rmse="low") for folder in made])


def test_names_and_formats():
    assert [name_score(score) for score in ("test_auroc", "test_f1", "test_rmse", "test_my_score", "mae")] == [
        "test AUROC", "test F1", "test RMSE", "test my score", "MAE",
    ]  # fmt: skip
    assert [format_score(f"test_{name}", 0.9531) for name in ("accuracy", "f1", "auroc", "rmse", "mine")] == [
        "95.3%", "95.3%", "0.953", "0.953", "0.953",
    ]  # fmt: skip
    assert format_score("rmse", 1234.5) == "1,234"
    assert [format_change("f1", -0.012), format_change("rmse", 0.1), format_change("auroc", -0.0312)] == [
        "−1.2", "+0.100", "−0.031",  # noqa: RUF001
    ]  # fmt: skip


def test_less_is_better_in_the_table(regression):
    results, _ = make_grids(regression)
    headers, rows = [*results.headers], results.rows
    column = headers.index("reaches Retrain's final RMSE at round")
    _, new, retrain = regression
    goal = retrain.final("test_rmse") or 0.0
    expected = next(n for n, value in enumerate(new.scored("test_rmse"), 1) if (value or 0.0) <= goal)
    assert [row[column] for row in rows] == ["–", str(expected), "8"]  # noqa: RUF001
    assert 1 < expected < 8
    assert "test accuracy" not in headers
    assert rows[2][headers.index("test RMSE")] == format_score("test_rmse", goal)
    assert find_reaching_round(new, retrain_of(new, regression)) == expected
    assert list_json_rows(regression)[2]["test_rmse"] == goal


def test_the_page_and_figures_are_about_the_score(regression):
    page = render_report(regression)
    assert "FedUHB: test RMSE" in page
    assert "Test RMSE" in page
    assert "ccuracy" not in page
    assert {"overview", "curves", "movement"} <= {*draw_figures(regression)}
    chart = chart_score(regression, choose_strokes(regression), "test_rmse")
    assert chart is not None
    assert all("%" not in text for line in chart.series for text in line.texts)


def test_the_stop_map_shows_the_score(regression):
    found = replay_rules(regression[1])
    assert found.score == "test_rmse"
    ended = next(one for one in found.endings.values() if one.round is not None)
    value = regression[1].scored("test_rmse")[(ended.round or 0) - 1]
    assert value is not None
    assert found.format(ended) == f"{ended.round}\n{format_score('test_rmse', value)}"
    chart = chart_map(found)
    assert chart is not None
    assert "test RMSE there" in chart.notes[0][0]
    assert [*chart_scales(found)] == ["lambda-rounds", "lambda-score"]


def test_a_headline_of_many_runs_ranges_over_the_score(tmp_path):
    made = [rescored(series(n), auroc=lambda loss: 1 - loss / 10) for n in (3, 4, 5, 6)]
    paths = [write(tmp_path / f"r{n}", "feduhb", rounds) for n, rounds in enumerate(made)]
    views = read_runs([say(path, auroc="high") for path in paths])
    assert headline(views).startswith(
        "4 unlearning runs took 3 to 6 rounds and ended at 0.971 to 0.996 test AUROC"
    )


def test_runs_are_compared_by_the_first_score_that_most_have(tmp_path):
    both = rescored(series(4), auroc=lambda loss: 1 - loss / 10, accuracy=lambda loss: 1 - loss / 5)
    one = say(write(tmp_path / "one", None, both), auroc="high", accuracy="high")
    two = write(tmp_path / "two", "retrain", series(4))
    assert choose_score(read_runs([one])) == "test_auroc"
    assert list_scores(read_runs([one])) == ["test_auroc", "test_accuracy", "test_loss"]
    assert list_scores(read_runs([one, two])) == ["test_accuracy", "test_auroc", "test_loss"]


def test_scores_do_not_make_the_data_another(tmp_path):
    one, two = (write(tmp_path / name, "retrain", series(4)) for name in ("one", "two"))
    file = two / "config.toml"
    file.write_text(file.read_text().replace("clients = 4", 'clients = 4\nscores = ["accuracy"]'))
    views = read_runs([one, two])
    assert views[0].world == views[1].world
    assert not [note for note in list_notes(views) if "data" in note]


def test_directions_come_from_the_record_and_a_strange_one_does_no_harm(tmp_path):
    rounds = rescored(series(4), mine=lambda loss: loss)
    [low] = read_runs([say(write(tmp_path / "low", None, rounds), mine="low")])
    assert is_low_best([low], "test_mine")
    odd = write(tmp_path / "odd", None, rounds)
    (odd / "config.toml").write_text(
        (odd / "config.toml").read_text() + '\n[scores]\n"a\\u0007<img src=x>" = 3\nmine = "up"\n'
    )
    [strange] = read_runs([odd])
    assert not is_low_best([strange], "test_mine")
    assert format_final(strange, "test_mine") == format_final(low, "test_mine")
    assert "<img src=x>" not in render_report([strange])
