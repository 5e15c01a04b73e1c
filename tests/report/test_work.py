from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from matplotlib.text import Text

from feduhb.report import draw_figures
from feduhb.report.charts import Series
from feduhb.report.drawing import SOFT, choose_strokes, label_points, new_figure
from feduhb.report.runs import RunView, group_seeds, read_runs
from feduhb.report.words import choose_drawn, list_notes
from feduhb.report.work import chart_work, list_groups, set_apart
from report.folders import series, write
from report.looking import legible, written

SEEDS = {1: 8, 2: 10, 3: 6}  # and the rounds that FedUHB ran


def write_seeds(root: Path) -> list[RunView]:
    paths = [
        write(root / f"{method}-{seed}", method, series(rounds, rate=rate), seed=seed, scheduled=12)
        for seed, rounds in SEEDS.items()
        for method, rate in (("feduhb", 0.4), ("federaser", 0.7))
    ]
    return read_runs(paths)


def test_a_line_follows_the_work_of_clients(five):
    chart = chart_work(five, choose_strokes(five))
    assert chart is not None
    lines = {line.name: line for line in chart.series}
    assert list(lines) == ["FedUHB", "Retrain", "FedEraser", "FedRecover"]  # the original served no request
    retrain = next(view for view in five if view.role == "retrain")
    assert list(lines["Retrain"].x) == [8.0 * n for n in range(1, len(retrain.rounds) + 1)]
    assert list(lines["Retrain"].y) == retrain.accuracy


def test_the_figure_can_be_read(five):
    figure = draw_figures(five)["work"]
    assert "● exact,  ■ approximate" in written(figure)
    assert any(text.startswith("FedEraser") for text in written(figure))
    legible(figure)


def test_seeds_of_a_method_are_one_point_with_bars(tmp_path: Path):
    views = write_seeds(tmp_path)
    chart = chart_work(views, choose_strokes(views))
    assert chart is not None
    uhb, eraser = chart.series
    assert [uhb.name, eraser.name] == ["FedUHB", "FedEraser"]
    assert list(uhb.x) == [statistics.fmean(8 * rounds for rounds in SEEDS.values())]
    ends = [0.96 * (1 - 0.4**rounds) for rounds in SEEDS.values()]
    assert list(uhb.y) == [pytest.approx(statistics.fmean(ends))]
    assert uhb.texts == [f"{statistics.fmean(ends):.1%} ± {statistics.stdev(ends):.1%}, 3 seeds"]
    figure = draw_figures(views)["work"]
    assert "points: means over seeds; bars: one standard deviation" in written(figure)
    legible(figure)


def test_other_settings_are_another_group(tmp_path: Path):
    views = write_seeds(tmp_path)
    other = write(tmp_path / "other", "feduhb", series(5), seed=4, changes={"settings": {"epochs": 1}})
    views = read_runs([*(view.path for view in views), other])
    groups = list_groups(views, choose_strokes(views), "test_accuracy")
    assert [len(group.views) for group in groups] == [3, 3, 1]
    assert len({group.name for group in groups}) == 3


def test_one_method_or_two_requests_are_not_compared(tmp_path: Path, views):
    alone = views[:2]
    assert chart_work(alone, choose_strokes(alone)) is None
    mixed = read_runs(
        [
            write(tmp_path / "a", "feduhb", series(4)),
            write(tmp_path / "b", "retrain", series(4), forget="c02"),
        ]
    )
    assert chart_work(mixed, choose_strokes(mixed)) is None


def test_many_methods_are_named_points(tmp_path: Path):
    exact, rest = [f"e{i}" for i in range(9)], [f"a{i}" for i in range(9)]
    paths = [
        write(tmp_path / name, name, series(4 + i, rate=0.4 + 0.02 * i), changes={"exact": name in exact})
        for i, name in enumerate([*exact, *rest])
    ]
    views = read_runs(paths)
    chart = chart_work(views, choose_strokes(views))
    assert chart is not None
    assert all(len(one.x) == 1 for one in chart.series)
    assert not chart.keys
    figure = draw_figures(views)["work"]
    assert {*exact, *rest, "● exact,  □ approximate"} <= {*written(figure)}
    marks = [line for line in figure.axes[0].lines if line.get_marker() in {"o", "s"}]
    looks = [(line.get_marker(), line.get_fillstyle()) for line in marks]
    assert looks == [("o", "full")] * 9 + [("s", "none")] * 9
    legible(figure)


def test_a_name_covers_no_point():
    points = [
        (2.0, 0.5, "a long name", SOFT),
        (12.0, 0.5, "b", SOFT),
        (20.0, 0.56, "c", SOFT),
        (90.0, 0.1, "d", SOFT),
    ]
    figure, (axes,) = new_figure(1, 1, width=6.4, height=4.2)
    axes.plot([x for x, *_ in points], [y for _, y, *_ in points], "o")
    axes.set_xlim(0, 100)
    label_points(axes, points, [x for x, *_ in points])
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without its line
    assert len(boxes) == 4
    for place in axes.transData.transform([(x, y) for x, y, *_ in points]):
        assert not any(box.contains(*place) for box in boxes)


def test_more_points_than_names_fit_have_a_legend(tmp_path: Path):
    views = read_runs([write(tmp_path / f"m{i}", f"m{i}", series(3 + i)) for i in range(21)])
    chart = chart_work(views, choose_strokes(views))
    assert chart is not None
    assert len(chart.keys) == 21


def test_points_of_equal_work_are_side_by_side(tmp_path: Path):
    names = [f"m{i}" for i in range(8)]
    views = read_runs([write(tmp_path / n, n, series(6, rate=0.4 + 0.02 * i)) for i, n in enumerate(names)])
    chart = chart_work(views, choose_strokes(views))
    assert chart is not None
    places = [one.x[-1] for one in chart.series]
    assert places == sorted(places), "the highest is on the left"
    assert len({*places}) == 8
    assert statistics.fmean(places) == pytest.approx(48)  # 6 rounds of 8 client epochs
    assert ("points of equal work are drawn side by side", SOFT) in chart.notes


def test_points_that_are_set_apart_pass_no_point_of_other_work():
    work = {"pga": 57.0, **{f"exact-{number}": 60.0 for number in range(8)}, "crab": 60.5, "eraser": 12.0}
    series = [
        Series(name, "", [x], [0.9 + number / 100], [""]) for number, (name, x) in enumerate(work.items())
    ]
    found = {one.name: one.x[-1] for one in set_apart(series)}
    assert found["pga"] == 57.0
    assert found["eraser"] == 12.0
    exact = [found[f"exact-{number}"] for number in range(8)]
    assert len(set(exact)) == 8
    assert 57.0 < min(exact) < 60.0 < max(exact) < found["crab"]


def test_a_replay_may_have_other_rounds_with_another_seed(tmp_path: Path):
    stored = {"history_bytes_read": 5}
    crabs = [write(tmp_path / f"c{s}", "crab", series(s + 5), seed=s, changes=stored) for s in (1, 2)]
    tuned = [write(tmp_path / f"f{s}", "finetune", series(s + 5), seed=s) for s in (1, 2)]
    assert [len(runs) for _, runs in group_seeds(read_runs([*crabs, *tuned]))] == [2, 1, 1]


def test_curves_of_many_runs_show_one_seed_of_each_method(tmp_path: Path):
    methods = ["feduhb", "retrain", "nesterov", "federaser", "fedrecover"]
    views = read_runs([write(tmp_path / f"{m}{s}", m, series(4), seed=s) for m in methods for s in (1, 2, 3)])
    drawn = choose_drawn(views)
    assert [view.label for view in drawn] == ["FedUHB", "Retrain", "Nesterov", "FedEraser", "FedRecover"]
    assert {view.config["seed"] for view in drawn} == {1}
    assert any("show the first seed" in note for note in list_notes(views))
    assert choose_drawn(views[:12]) == views[:12]
