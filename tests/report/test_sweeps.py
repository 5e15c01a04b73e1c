from __future__ import annotations

from pathlib import Path

import pytest

from feduhb.report import draw_figures
from feduhb.report.curves import chart_sweep, find_sweep
from feduhb.report.runs import RunView, read_runs
from feduhb.stopping import DynamicStop
from report.folders import judged, series, write
from report.looking import legible

BETAS = {0.9: 0.4, 0.0: 0.8, 0.5: 0.6}  # and how fast each converges


def write_sweep(root: Path, *, rounds: int = 8, retrain: bool = True, **settings: float) -> list[RunView]:
    paths = [
        write(root / f"b{beta}", "feduhb", series(rounds, rate=rate), changes={"settings": {"momentum": beta, **settings}})
        for beta, rate in BETAS.items()
    ]  # fmt: skip
    return read_runs([*paths, write(root / "r", "retrain", series(6))] if retrain else paths)


def test_runs_that_differ_in_momentum_are_found_in_order(tmp_path: Path):
    found = find_sweep(write_sweep(tmp_path))
    assert found is not None
    assert list(found.runs) == [0.0, 0.5, 0.9]
    assert found.retrain is not None
    assert found.goal == pytest.approx(0.96 * (1 - 0.5**6))


def test_one_beta_is_no_sweep(tmp_path: Path, five):
    assert find_sweep(five) is None
    alone = write_sweep(tmp_path)[:1]
    assert find_sweep(alone) is None


def test_runs_of_other_worlds_or_settings_are_no_sweep(tmp_path: Path):
    told = {"momentum": 0.9, "step_size": 1.0}
    runs = [
        write(tmp_path / "a", "feduhb", series(4), changes={"settings": told}),
        write(tmp_path / "seed", "feduhb", series(4), seed=2, changes={"settings": told | {"momentum": 0.5}}),
        write(tmp_path / "who", "feduhb", series(4), forget="c03", changes={"settings": told | {"momentum": 0.5}}),
        write(tmp_path / "step", "feduhb", series(4), changes={"settings": {"momentum": 0.5, "step_size": 0.1}}),
    ]  # fmt: skip
    assert find_sweep(read_runs(runs)) is None


def test_the_run_that_no_rule_cut_is_preferred(tmp_path: Path):
    told = {"settings": {"momentum": 0.9}}
    cut = judged(series(12, rate=0.6), DynamicStop(0.9))
    assert cut[-1].stopped
    short = write(tmp_path / "cut", "feduhb", cut, scale=0.9, changes=told)
    views = [*read_runs([short]), *write_sweep(tmp_path)]
    for order in (views, views[::-1]):
        found = find_sweep(order)
        assert found is not None
        assert found.cut == []
        assert len(found.runs[0.9].rounds) == 8


def test_a_rule_that_cut_is_told(tmp_path: Path):
    cut = judged(series(12, rate=0.6), DynamicStop(0.9))
    views = read_runs(
        [
            write(tmp_path / "low", "feduhb", cut, scale=0.9, changes={"settings": {"momentum": 0.1}}),
            write(
                tmp_path / "high", "feduhb", series(12), scale=0.9, changes={"settings": {"momentum": 0.9}}
            ),
        ]
    )
    found = find_sweep(views)
    assert found is not None
    assert found.cut == [0.1]
    said = " ".join(found.describe())
    assert "A stop rule cut β 0.1 short, and it fires early at a low β" in said
    assert "--stop never" in said
    whole = find_sweep(write_sweep(tmp_path / "whole"))
    assert whole is not None
    assert len(whole.describe()) == 1


def test_rounds_to_reach_retrain(tmp_path: Path):
    found = find_sweep(write_sweep(tmp_path))
    assert found is not None
    rate = {beta: next((n for n in range(1, 9) if 1 - r**n >= 1 - 0.5**6), None) for beta, r in BETAS.items()}
    assert found.reached == {beta: rate[beta] for beta in (0.0, 0.5, 0.9)}
    assert None in found.reached.values()
    dots = chart_sweep(found)["beta-reach"]
    assert [dot.texts[0] for dot in dots.series] == [
        "never" if n is None else f"round {n}" for n in found.reached.values()
    ]
    assert dots.series[0].y[0] > 8, "over every round that was run"
    assert dots.notes[0][0] == "open: never in the rounds run"


def test_without_retrain_the_final_accuracy_is_shown(tmp_path: Path):
    views = write_sweep(tmp_path, retrain=False)
    found = find_sweep(views)
    assert found is not None
    dots = chart_sweep(found)["beta-reach"]
    assert dots.title == "Final test accuracy"
    assert [dot.y[0] for dot in dots.series] == [
        view.final("test_accuracy") for view in (views[1], views[2], views[0])
    ]


def test_each_beta_has_its_line_and_the_figure_can_be_read(tmp_path: Path):
    views = write_sweep(tmp_path)
    found = find_sweep(views)
    assert found is not None
    drawn = chart_sweep(found)
    for name in ("beta-accuracy", "beta-loss"):
        assert [line.name for line in drawn[name].series] == ["β 0", "β 0.5", "β 0.9"]
    assert drawn["beta-accuracy"].notes[-1][0] == "Dashed: Retrain's final 94.5%."
    figure = draw_figures(views)["beta"]
    assert len(figure.axes) == 3
    legible(figure)
