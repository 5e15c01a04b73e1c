from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

from feduhb.report.figures import draw
from feduhb.report.runs import RunView, read_runs
from feduhb.report.style import graded
from feduhb.report.sweep_charts import sweep_charts
from feduhb.report.sweeps import about, sweep
from feduhb.stopping import DynamicStop
from report.folders import judged, series, write
from report.looking import written

BETAS = {0.9: 0.4, 0.0: 0.8, 0.5: 0.6}  # and how fast each converges


def swept(root: Path, *, rounds: int = 8, retrain: bool = True, **settings: float) -> list[RunView]:
    paths = [
        write(root / f"b{beta}", "feduhb", series(rounds, rate=rate), changes={"settings": {"momentum": beta, **settings}})
        for beta, rate in BETAS.items()
    ]  # fmt: skip
    return read_runs([*paths, write(root / "r", "retrain", series(6))] if retrain else paths)


def test_runs_that_differ_in_momentum_are_found_in_order(tmp_path: Path):
    found = sweep(swept(tmp_path))
    assert found is not None
    assert list(found.runs) == [0.0, 0.5, 0.9]
    assert found.retrain is not None
    assert found.goal == pytest.approx(0.96 * (1 - 0.5**6))


def test_one_beta_is_no_sweep(tmp_path: Path, five):
    assert sweep(five) is None
    alone = swept(tmp_path)[:1]
    assert sweep(alone) is None
    assert sweep_charts(alone) == {}
    assert "beta" not in draw(alone)


def test_runs_of_other_worlds_or_settings_are_no_sweep(tmp_path: Path):
    told = {"momentum": 0.9, "step_size": 1.0}
    runs = [
        write(tmp_path / "a", "feduhb", series(4), changes={"settings": told}),
        write(tmp_path / "seed", "feduhb", series(4), seed=2, changes={"settings": told | {"momentum": 0.5}}),
        write(tmp_path / "who", "feduhb", series(4), forget="c03", changes={"settings": told | {"momentum": 0.5}}),
        write(tmp_path / "step", "feduhb", series(4), changes={"settings": {"momentum": 0.5, "step_size": 0.1}}),
    ]  # fmt: skip
    assert sweep(read_runs(runs)) is None


def test_the_run_that_no_rule_cut_is_preferred(tmp_path: Path):
    told = {"settings": {"momentum": 0.9}}
    cut = judged(series(12, rate=0.6), DynamicStop(0.9))
    assert cut[-1].stopped
    short = write(tmp_path / "cut", "feduhb", cut, scale=0.9, changes=told)
    views = [*read_runs([short]), *swept(tmp_path)]
    for order in (views, views[::-1]):
        found = sweep(order)
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
    found = sweep(views)
    assert found is not None
    assert found.cut == [0.1]
    said = " ".join(about(found))
    assert "A stop rule cut β 0.1 short, and it fires early at a low β" in said
    assert "--stop never" in " ".join(written(draw(views)["beta"])).replace("\n", " ")
    whole = sweep(swept(tmp_path / "whole"))
    assert whole is not None
    assert len(about(whole)) == 1


def test_rounds_to_reach_retrain(tmp_path: Path):
    views = swept(tmp_path)
    found = sweep(views)
    assert found is not None
    rate = {beta: next((n for n in range(1, 9) if 1 - r**n >= 1 - 0.5**6), None) for beta, r in BETAS.items()}
    assert found.reached == {beta: rate[beta] for beta in (0.0, 0.5, 0.9)}
    assert None in found.reached.values()
    (dots,) = sweep_charts(views)["beta-reach"]["data"]
    assert dots["marker"]["symbol"] == [
        "circle-open" if n is None else "circle" for n in found.reached.values()
    ]
    assert dots["text"][0] == "never"
    assert dots["y"][0] > 8, "over every round that was run"
    assert "open: never in the rounds run" in written(draw(views)["beta"])


def test_without_retrain_the_final_accuracy_is_shown(tmp_path: Path):
    views = swept(tmp_path, retrain=False)
    (dots,) = sweep_charts(views)["beta-reach"]["data"]
    assert dots["y"] == [view.final("test_accuracy") for view in (views[1], views[2], views[0])]
    assert "Final test accuracy" in written(draw(views)["beta"])


def test_each_beta_has_its_line(tmp_path: Path):
    drawn = sweep_charts(swept(tmp_path))
    assert [t["name"] for t in drawn["beta-accuracy"]["data"]] == ["β 0", "β 0.5", "β 0.9", "Retrain's final"]
    assert [t["name"] for t in drawn["beta-loss"]["data"]] == ["β 0", "β 0.5", "β 0.9"]
    said = written(draw(swept(tmp_path / "again"))["beta"])
    assert any(text.startswith("β 0.5  ") for text in said)


def test_graded_colours_run_from_amber_to_blue():
    colours = graded(5)
    assert len(set(colours)) == 5
    blues = [to_rgb(colour)[2] for colour in colours]
    assert blues == sorted(blues)
    assert graded(1) == ["#2A6FC0"] == graded(7)[-1:]
