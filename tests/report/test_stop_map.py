from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feduhb.report.figures import draw
from feduhb.report.runs import RunView, read_runs
from feduhb.report.stop_charts import stop_charts
from feduhb.report.stop_map import SCALES, WINDOWS, about, about_marks, about_windows, mapped, stop_map
from feduhb.runs.folder import Round
from feduhb.stopping import DynamicStop
from report.folders import COSTS, judged, series, story, write
from report.looking import written

PEAKED = [math.exp(-((t - 3) ** 2) / 20) + 0.2 for t in range(25)]


def run(moved: list[float], **about: float) -> RunView:
    """A run that is nowhere on disk, accuracy rising by a point a round."""
    rounds = [
        replace(COSTS, round=t, moved=m, scores={"test_accuracy": t / 100}) for t, m in enumerate(moved)
    ]
    return RunView(Path(), "FedUHB", "feduhb", rounds, {"settings": about}, {"unlearn": {}}, "")


def brute(moved: list[float], scale: float, window: int | None) -> int | None:
    """The rule by its formula: δ[t] < λ times the population standard deviation of the last k."""
    for n in range(max(3, window or 0), len(moved) + 1):
        seen = moved[:n] if window is None else moved[n - window : n]
        mean = sum(seen) / len(seen)
        if moved[n - 1] < scale * math.sqrt(sum((m - mean) ** 2 for m in seen) / len(seen)):
            return n
    return None


@given(st.lists(st.integers(1, 160).map(lambda n: n / 16), min_size=1, max_size=30))
def test_the_map_is_what_the_formula_says(moved: list[float]):
    found = stop_map(run(moved, momentum=0.9))
    assert len(found.endings) == len(SCALES) * len(WINDOWS)
    for (scale, window), ending in found.endings.items():
        expected = brute(moved, scale, window)
        if ending.round != expected:  # only where the movement equals the threshold to the last bits
            n = min(x for x in (ending.round, expected) if x is not None)
            threshold = DynamicStop(scale, window).threshold(moved[:n])
            assert moved[n - 1] == pytest.approx(threshold)
        elif expected is not None:
            assert ending.accuracy == (expected - 1) / 100


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_momentum_cancels(momentum: float):
    assert stop_map(run(PEAKED, momentum=momentum)).endings == stop_map(run(PEAKED)).endings


def test_a_larger_lambda_never_stops_later():
    for window in WINDOWS:
        ends = [math.inf if e.round is None else e.round for e in stop_map(run(PEAKED)).line(window)]
        assert ends == sorted(ends, reverse=True)


def test_an_ending_is_spelled_with_its_accuracy():
    found = stop_map(run(PEAKED))
    ending = found.endings[1.0, None]
    assert ending.round is not None
    assert found.told(ending) == f"{ending.round}\n{(ending.round - 1):.1f}%"
    assert found.told(replace(ending, round=None), " ") == "not in 25"
    assert found.told(replace(ending, accuracy=None)) == str(ending.round)


def test_only_runs_that_a_rule_could_end_are_mapped(five, tmp_path: Path):
    assert [view.label for view in mapped(five)] == ["FedUHB"]
    other = read_runs([write(tmp_path / "r", "retrain", judged(series(8), DynamicStop(0.0)), scale=0.0)])
    assert mapped(other) == other, "under a rule, whatever the method"
    short = read_runs([write(tmp_path / "s", "feduhb", series(2))])
    assert mapped(short) == []
    assert stop_charts(short) == {}
    assert not {"stop-map", "lambda"} & set(draw(short))


def test_the_runs_own_rule_is_found_where_the_map_has_it(views, tmp_path: Path):
    assert stop_map(views[1]).own == (0.6, None)
    assert stop_map(views[1]).endings[0.6, None].round == views[1].fired
    odd = read_runs([write(tmp_path / "odd", "feduhb", series(5), scale=0.65)])[0]
    assert stop_map(odd).own is None
    for extra in ("floor = 0.1", "as_printed = true", "min_rounds = 5"):
        config = views[1].path / "config.toml"
        text = config.read_text()
        config.write_text(f"{text}\n{extra}\n")
        assert stop_map(read_runs([views[1].path])[0]).own is None, extra
        config.write_text(text)


def test_a_run_cut_by_its_rule_says_what_the_map_cannot_know(views, tmp_path: Path):
    said = " ".join(about(views[1]))
    fired = views[1].fired
    assert f"the map only knows the {fired} rounds run" in said
    assert "unlearn with --stop never" in said
    whole = read_runs([write(tmp_path / "whole", "feduhb", series(12, rate=0.6))])[0]
    assert "--stop never" not in " ".join(about(whole))


def test_windows_that_never_fire_are_named():
    steady = run([1.0] * 8)
    assert "With a window of 5, 10 or 20 rounds it fires at no λ shown." in about_windows(steady)
    assert "thin" not in about_windows(steady)[0]
    falling = run([2.0] * 4 + [0.001])
    assert "(thin: on a window of them)" in about_windows(falling)[0]


def test_the_heat_map_shows_every_ending(views):
    figure = draw(views)["stop-map"]
    found = stop_map(views[1])
    cells = [text for text in written(figure) if "\n" in text]
    assert sorted(cells) == sorted(found.told(ending) for ending in found.endings.values())
    assert any("not\nin" in cell for cell in cells)
    assert "outlined: the run's own rule" in " ".join(written(figure))


def test_the_heat_map_in_the_page_shows_the_same(views):
    spoke, silent = stop_charts(views)["stop-map-0"]["data"]
    found = stop_map(views[1])
    assert spoke["z"] == [[found.endings[s, w].round for w in WINDOWS] for s in SCALES]
    for own, other in zip(spoke["z"], silent["z"], strict=True):
        assert [value is None for value in own] == [value is not None for value in other], "each cell once"
    assert stop_charts(views)["stop-map-0"]["layout"]["shapes"][0]["x0"] == -0.48


def test_every_run_has_its_map_in_the_page(tmp_path: Path):
    runs = read_runs([write(tmp_path / f"{s}", "feduhb", series(5), seed=s) for s in range(3)])
    assert [name for name in stop_charts(runs) if name.startswith("stop-map")] == [
        f"stop-map-{i}" for i in range(3)
    ]


def test_lambda_that_did_not_fire_is_an_open_mark(tmp_path: Path):
    steady: list[Round] = [replace(r, moved=1.0) for r in series(6)]
    views = read_runs([write(tmp_path / "u", "feduhb", steady)])
    drawn = stop_charts(views)
    (mark,) = drawn["lambda-rounds"]["data"]
    assert mark["x"] == list(SCALES)
    assert mark["y"] == [6.6] * len(SCALES)
    assert mark["marker"]["symbol"] == "circle-open"
    (last,) = drawn["lambda-accuracy"]["data"]
    assert set(last["y"]) == {views[0].accuracy[-1]}
    figure = draw(views)["lambda"]
    assert "did not fire in 6" in " ".join(written(figure))
    assert "open: did not fire" in " ".join(written(figure))


def test_lambda_that_the_runs_own_rule_left_unknown_has_no_mark(views):
    """The rule ended the run: a smaller λ might have fired in the next round, or never."""
    found = stop_map(views[1])
    assert views[1].fired == found.rounds
    assert found.unknown == [scale for scale in SCALES if found.endings[scale, None].round is None]
    assert found.unknown
    assert found.silent == []
    for name in ("lambda-rounds", "lambda-accuracy"):
        chart = stop_charts(views)[name]
        assert not {x for trace in chart["data"] for x in trace["x"]} & set(found.unknown)
        (shade,), (words,) = chart["layout"]["shapes"], chart["layout"]["annotations"]
        assert shade["x1"] == pytest.approx(found.unknown[-1] + 0.05)
        assert words["text"] == "not known"
    figure = draw(views)["lambda"]
    text = " ".join(written(figure))
    assert text.count("not known") == 3, "in both panels, and in the note"
    assert "did not fire" not in text
    for axes in figure.axes:
        marks = [float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line.get_marker() == "o"]
        assert sorted(marks) == [scale for scale in SCALES if scale not in found.unknown]
    assert f"its own rule ended it after {found.rounds} rounds" not in about_marks(views[1])
    assert any(
        f"the run's own rule ended it after {found.rounds} rounds" in line for line in about_windows(views[1])
    )


def test_where_every_lambda_is_unknown_nothing_is_drawn(tmp_path: Path):
    still = [replace(r, moved=1.0) for r in judged(series(6), DynamicStop(0.6))]
    views = read_runs([write(tmp_path / "u", "feduhb", still, scale=0.6)])
    assert views[0].fired
    assert stop_map(views[0]).unknown == list(SCALES)
    assert "lambda" not in draw(views)
    assert not any(stop_charts(views)[name]["data"] for name in ("lambda-rounds", "lambda-accuracy"))


def test_open_marks_are_explained_where_there_are_some():
    assert "an open mark" in about_marks(run([1.0] * 8))
    assert about_marks(run([2.0] * 4 + [0.001])) == "A larger λ stops earlier."


def test_lambda_is_replayed_from_one_run(tmp_path: Path):
    views = read_runs(story(tmp_path, scale=0.0))
    bold = next(t for t in stop_charts(views)["lambda-rounds"]["data"] if t["name"] == "all so far")
    expected = [(e.scale, e.round) for e in stop_map(views[1]).line(None) if e.round is not None]
    assert list(zip(bold["x"], bold["y"], strict=True)) == expected
    assert expected


def test_without_accuracy_the_rounds_are_shown_alone(tmp_path: Path):
    bare = [replace(record, scores={}) for record in series(6)]
    views = read_runs([write(tmp_path / "u", "feduhb", bare)])
    assert "lambda-accuracy" not in stop_charts(views)
    assert len(draw(views)["lambda"].axes) == 1
    assert "%" not in "".join(text for text in written(draw(views)["stop-map"]) if "\n" in text)
