from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from feduhb.report.drawing import spread
from feduhb.report.figures import backdoor, curves, draw, movement, overview, pdf, png
from feduhb.report.runs import read_runs
from feduhb.report.stop_figures import heat_map, scales
from feduhb.report.style import GREY, OWN, VIOLET, Stroke, strokes
from report.folders import series, story, write
from report.looking import legible, written


def test_every_figure_is_drawn_and_saved(views):
    figures = draw(views)
    assert list(figures) == ["overview", "curves", "movement", "backdoor", "stop-map", "lambda"]
    for figure in figures.values():
        assert png(figure).startswith(b"\x89PNG")
        assert pdf(figure).startswith(b"%PDF")


def test_the_same_runs_give_the_same_bytes(views):
    assert png(draw(views)["curves"]) == png(draw(views)["curves"])
    assert pdf(draw(views)["curves"]) == pdf(draw(views)["curves"])


def test_drawing_leaves_matplotlib_as_it_was(views):
    before = dict(mpl.rcParams)
    draw(views)
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("runs", ["views", "five"])
@pytest.mark.parametrize("figure", [overview, curves, movement, backdoor, heat_map, scales])
def test_no_two_texts_overlap_and_none_is_cut_off(request: pytest.FixtureRequest, runs: str, figure):
    legible(figure(request.getfixturevalue(runs)))


def test_the_movement_figure_tells_why_the_run_stopped(views):
    said = " ".join(written(movement(views)))
    assert f"FedUHB stopped after round {views[1].fired}: movement" in said
    assert "threshold" in said
    assert "Retrain" not in said


def test_only_the_run_with_a_rule_moves_among_four_methods(five):
    said = " ".join(written(movement(five)))
    assert "FedUHB stopped after round" in said
    assert not any(name in said for name in ("FedEraser", "FedRecover", "Retrain"))


def test_the_movement_figure_tells_when_the_rule_did_not_fire(tmp_path: Path):
    views = read_runs(story(tmp_path, scale=0.0))
    assert "the stop rule did not fire within 12 rounds" in " ".join(written(movement(views)))


def test_without_a_stop_rule_every_unlearning_run_moves(tmp_path: Path):
    views = read_runs([write(tmp_path / m, m, series(4)) for m in ("feduhb", "retrain")])
    said = " ".join(written(movement(views)))
    assert "FedUHB: no stop rule, 4 rounds" in said
    assert "Retrain: no stop rule, 4 rounds" in said
    assert "dashed" not in said


def test_the_backdoor_figure_has_the_numbers(views):
    said = written(backdoor(views))
    assert {"92.0%", "2.0%", "1.0%"} <= set(said)
    assert "Benign floor: Retrain, which never saw the trigger." in said


def test_figures_that_nothing_fills_are_left_out(tmp_path: Path):
    plain = read_runs([write(tmp_path / "t", None, series(3, backdoor=None))])
    assert list(draw(plain)) == ["overview", "curves"]
    unscored = [replace(record, scores={}) for record in series(3)]
    assert draw(read_runs([write(tmp_path / "x", None, unscored)])) == {}


def test_odd_series_are_drawn(tmp_path: Path):
    holes = [replace(record, moved=0.0, scores={} if record.round else record.scores) for record in series(3)]
    paths = [write(tmp_path / "holes", "feduhb", holes), write(tmp_path / "one", "retrain", series(1))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [png(figure) for figure in draw(read_runs(paths)).values()]


def test_a_label_is_never_read_as_mathematics(tmp_path: Path):
    paths = [write(tmp_path / f"$x^{{{i}$", "feduhb", series(4), scale=0.6) for i in range(2)]
    views = read_runs(paths)
    assert views[0].label == "FedUHB ($x^{0$)"
    assert all(png(figure) for figure in draw(views).values())


def test_many_runs_get_a_legend(tmp_path: Path):
    paths = [
        write(tmp_path / f"{s}", "feduhb", series(6), scale=s) for s in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    ]
    drawn = curves(read_runs(paths))
    assert drawn is not None
    assert len(drawn.legends[0].get_texts()) == 7


def test_strokes_tell_runs_apart(tmp_path: Path):
    paths = [write(tmp_path / f"{i}", "feduhb", series(2), scale=i / 10) for i in range(12)]
    paths += [write(tmp_path / f"t{i}", None, series(2), seed=i) for i in range(2)]
    looks = strokes(read_runs(paths))
    assert len(set(looks.values())) == 14
    assert looks["original (seed 0)"] == Stroke(GREY, "dashed")


def test_a_method_keeps_its_colour_whoever_is_beside_it(five):
    assert {label: stroke.colour for label, stroke in strokes(five).items()} == {
        label: stroke.colour for label, stroke in strokes(five[::-1]).items()
    }
    assert all(strokes(five).values())
    assert strokes([five[4]])["FedRecover"].colour == VIOLET


# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as a dichromat sees it.
SEEN_BY = {
    "everyone": np.eye(3),
    "protanopes": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopes": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopes": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    """sRGB to linear light."""
    shares = np.array(to_rgb(colour))
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """Linear light to CIELAB, where distances are about as the eye takes them."""
    x, y, z = np.cbrt(TO_XYZ @ light.clip(0, 1) / TO_XYZ.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_methods_are_told_apart_by_colour_whatever_the_eyes(eyes: str):
    seen = {colour: lab(SEEN_BY[eyes] @ linear(colour)) for colour in (*OWN.values(), GREY)}
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 25, (one, other)


@pytest.mark.parametrize("colour", [*OWN.values(), GREY])
def test_a_colour_shows_on_white_and_on_the_dark_page(colour: str):
    light, dark, own = (TO_XYZ[1] @ linear(c) + 0.05 for c in ("#ffffff", "#14161a", colour))
    assert light / own > 2.9
    assert own / dark > 2.9


@given(st.lists(st.floats(0, 1), max_size=10))
def test_spread_labels_keep_their_distance_and_their_order(heights: list[float]):
    placed = spread(sorted(heights), 0.075)
    assert all(high - low >= 0.075 - 1e-9 for low, high in pairwise(placed))
    assert all(0 <= height <= 1 for height in placed)
