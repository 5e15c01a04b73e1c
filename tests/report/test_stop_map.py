from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feduhb.report import draw_figures
from feduhb.report.page import render_report
from feduhb.report.runs import RunView, read_runs
from feduhb.report.stop_map import SCALES, WINDOWS, chart_map, chart_scales, list_mapped, replay_rules
from feduhb.runs.folder import Result, Round
from feduhb.stopping import DynamicStop
from report.folders import COSTS, judged, series, story, write
from report.reading import points, words

PEAKED = [math.exp(-((t - 3) ** 2) / 20) + 0.2 for t in range(25)]


def run(moved: list[float], **about: float) -> RunView:
    """A run that is nowhere on disk, accuracy rising by a point a round."""
    rounds = [
        replace(COSTS, round=t, moved=m, scores={"test_accuracy": t / 100}) for t, m in enumerate(moved)
    ]
    result = cast("Result", {"settings": about})  # nothing else of it is read
    return RunView(Path(), "FedUHB", "feduhb", rounds, result, {"unlearn": {}}, "")


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
    found = replay_rules(run(moved, momentum=0.9))
    assert len(found.endings) == len(SCALES) * len(WINDOWS)
    for (scale, window), ending in found.endings.items():
        expected = brute(moved, scale, window)
        if ending.round != expected:  # only where the movement equals the threshold to the last bits
            n = min(x for x in (ending.round, expected) if x is not None)
            threshold = DynamicStop(scale, window=window).threshold(moved[:n])
            assert moved[n - 1] == pytest.approx(threshold)
        elif expected is not None:
            assert ending.value == (expected - 1) / 100


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_momentum_cancels(momentum: float):
    assert replay_rules(run(PEAKED, momentum=momentum)).endings == replay_rules(run(PEAKED)).endings


def test_a_larger_lambda_never_stops_later():
    for window in WINDOWS:
        ends = [math.inf if e.round is None else e.round for e in replay_rules(run(PEAKED)).line(window)]
        assert ends == sorted(ends, reverse=True)


def test_an_ending_is_written_with_its_accuracy():
    found = replay_rules(run(PEAKED))
    ending = found.endings[1.0, None]
    assert ending.round is not None
    assert found.format(ending) == f"{ending.round}\n{(ending.round - 1):.1f}%"
    assert found.format(replace(ending, round=None), " ") == "not in 25"
    assert found.format(replace(ending, value=None)) == str(ending.round)


def test_only_runs_that_a_rule_could_end_are_list_mapped(five, tmp_path: Path):
    assert [view.label for view in list_mapped(five)] == ["FedUHB"]
    other = read_runs([write(tmp_path / "r", "retrain", judged(series(8), DynamicStop(0.0)), scale=0.0)])
    assert list_mapped(other) == other, "under a rule, whatever the method"
    short = read_runs([write(tmp_path / "s", "feduhb", series(2))])
    assert list_mapped(short) == []
    assert "stop-map" not in draw_figures(short)


def test_the_runs_own_rule_is_found_where_the_map_has_it(views, tmp_path: Path):
    assert replay_rules(views[1]).own == (0.6, None)
    assert replay_rules(views[1]).endings[0.6, None].round == views[1].fired
    odd = read_runs([write(tmp_path / "odd", "feduhb", series(5), scale=0.65)])[0]
    assert replay_rules(odd).own is None
    for extra in ("floor = 0.1", "as_printed = true", "min_rounds = 5"):
        config = views[1].path / "config.toml"
        text = config.read_text()
        config.write_text(f"{text}\n{extra}\n")
        assert replay_rules(read_runs([views[1].path])[0]).own is None, extra
        config.write_text(text)


def test_a_run_cut_by_its_rule_says_what_the_map_cannot_know(views, tmp_path: Path):
    said = " ".join(replay_rules(views[1]).describe())
    fired = views[1].fired
    assert f"the map only knows the {fired} rounds run" in said
    assert "unlearn with --stop never" in said
    whole = read_runs([write(tmp_path / "whole", "feduhb", series(12, rate=0.6))])[0]
    assert "--stop never" not in " ".join(replay_rules(whole).describe())


def test_windows_that_never_fire_are_named():
    steady = run([1.0] * 8)
    assert (
        "With a window of 5, 10 or 20 rounds it fires at no λ shown."
        in replay_rules(steady).describe_windows()
    )
    assert "thin" not in replay_rules(steady).describe_windows()[0]
    falling = run([2.0] * 4 + [0.001])
    assert "(thin: on a window of them)" in replay_rules(falling).describe_windows()[0]


def test_the_map_shows_every_ending(views):
    found = replay_rules(views[1])
    chart = chart_map(found)
    assert chart is not None
    (cells,) = chart.series
    assert len(cells.texts) == len(SCALES) * len(WINDOWS)
    for text, ending in zip(cells.texts, found.endings.values(), strict=True):
        assert text.startswith(f"λ {ending.scale:g}, window ")
        assert text.endswith(found.format(ending, " "))
    assert "framed: the run's own rule" in chart.notes[0][0]
    svg, _ = chart.render("m")
    assert svg.count(f">in {found.rounds}<") == sum(ending.round is None for ending in found.endings.values())


def test_lambda_that_did_not_fire_is_an_open_mark_at_the_top(tmp_path: Path):
    """4, 4, 4, 4, 4, 1: only λ = 0.9 and 1 fire, for σ is 3 sqrt(5) / 6 = 1.118."""
    last = [replace(r, moved=1.0 if r.round == 5 else 4.0) for r in series(6)]
    (view,) = read_runs([write(tmp_path / "u", "feduhb", last)])
    drawn = chart_scales(replay_rules(view))
    bold = drawn["lambda-rounds"].series[-1]
    assert list(bold.x) == list(SCALES)
    assert list(bold.y) == pytest.approx([6.6] * 7 + [6.0] * 2)
    assert set(bold.texts[:7]) == {"did not fire in 6"}
    assert set(drawn["lambda-accuracy"].series[-1].y) == {view.accuracy[-1]}
    assert "open: did not fire" in drawn["lambda-accuracy"].notes[0][0]


def test_where_no_rule_fires_a_sentence_stands_instead_of_a_map(tmp_path: Path):
    steady: list[Round] = [replace(r, moved=1.0) for r in series(6)]
    views = read_runs([write(tmp_path / "u", "feduhb", steady)])
    (found,) = map(replay_rules, views)
    assert chart_map(found) is None
    assert chart_scales(found) == {}
    said = "None of 63 rules (λ 0.2 to 1) would have ended FedUHB in 6 rounds."
    assert found.describe() == [said]
    document = render_report(views)
    assert words(document).count(said) == 1
    assert not {"stop-map-0", "lambda-rounds"} & set(points(document))
    assert not {"stop-map", "lambda"} & set(draw_figures(views))


def test_lambda_that_the_runs_own_rule_left_unknown_has_no_mark(views):
    """The rule ended the run: a smaller λ might have fired in the next round, or never."""
    found = replay_rules(views[1])
    assert views[1].fired == found.rounds
    assert found.unknown == [scale for scale in SCALES if found.endings[scale, None].round is None]
    assert found.unknown
    assert found.silent == []
    for chart in chart_scales(found).values():
        assert not {x for line in chart.series for x in line.x} & set(found.unknown)
        assert ">not known<" in chart.render("l")[0]
    assert any(f"ended it after {found.rounds} rounds" in line for line in found.describe_windows())


def test_where_every_lambda_is_unknown_nothing_is_drawn(tmp_path: Path):
    still = [replace(r, moved=1.0) for r in judged(series(6), DynamicStop(0.6))]
    (view,) = read_runs([write(tmp_path / "u", "feduhb", still, scale=0.6)])
    assert view.fired
    assert replay_rules(view).unknown == list(SCALES)
    assert chart_scales(replay_rules(view)) == {}


def test_lambda_is_replayed_from_one_run(tmp_path: Path):
    found = replay_rules(read_runs(story(tmp_path, scale=0.0))[1])
    bold = next(line for line in chart_scales(found)["lambda-rounds"].series if line.name == "all so far")
    fired = {ending.scale: ending.round for ending in found.line(None) if ending.round is not None}
    assert fired
    assert {x: y for x, y in zip(bold.x, bold.y, strict=True) if x in fired} == fired


def test_without_accuracy_the_rounds_are_shown_alone(tmp_path: Path):
    bare = [replace(record, scores={}) for record in series(6)]
    found = replay_rules(read_runs([write(tmp_path / "u", "feduhb", bare)])[0])
    assert list(chart_scales(found)) == ["lambda-rounds"]
    chart = chart_map(found)
    assert chart is not None
    assert "%" not in "".join(chart.series[0].texts)
    assert "accuracy" not in chart.notes[0][0]
