"""The charts and figures: their numbers, and that their words can be read."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from feduhb.report import draw_figures
from feduhb.report.audit_charts import chart_attacks, chart_attacks_by_kind, chart_clients, chart_kept
from feduhb.report.audit_tables import describe_changes, list_changes
from feduhb.report.charts import Chart, Series, compose
from feduhb.report.curves import chart_backdoor, chart_movement, chart_score
from feduhb.report.drawing import (
    BLUE,
    GREY,
    OWN,
    VERMILLION,
    VIOLET,
    Stroke,
    choose_strokes,
    grade_colours,
    save_figure,
    spread_apart,
)
from feduhb.report.runs import RunView, read_runs
from report.audits import attack, audit, bare, comparison, put, read, stayed
from report.folders import rivals, series, story, write
from report.looking import legible, written

pytestmark = pytest.mark.slow

NAMES = ["overview", "curves", "movement", "backdoor", "work", "stop-map", "lambda", "audit", "clients"]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> list[RunView]:
    """Five runs, two of them audited, the second with one attack fewer."""
    folders = rivals(tmp_path_factory.mktemp("audited"))
    put(folders[1], audit(staying=18))
    caught = [attack(on="all forgotten data", found="inconclusive", unlearned=0.55), attack(found="caught", unlearned=0.7)]  # fmt: skip
    put(folders[3], audit("not forgotten", membership=caught, staying=60))
    return read_runs(folders)


@pytest.fixture(scope="module")
def figures(audited: list[RunView]) -> dict[str, Figure]:
    before = dict(mpl.rcParams)
    drawn = draw_figures(audited)
    assert dict(mpl.rcParams) == before, "matplotlib is left as it was"
    return drawn


def test_every_figure_is_drawn(figures: dict[str, Figure]):
    assert list(figures) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_no_two_texts_overlap_and_none_is_cut_off(figures: dict[str, Figure], name: str):
    legible(figures[name])


def test_figures_that_nothing_fills_are_left_out(tmp_path: Path):
    plain = read_runs([write(tmp_path / "t", None, series(3, backdoor=None))])
    assert list(draw_figures(plain)) == ["overview", "curves"]
    unscored = [replace(record, scores={}) for record in series(3)]
    assert draw_figures(read_runs([write(tmp_path / "x", None, unscored)])) == {}
    assert compose([None], width=1, height=1) is None


def test_odd_series_and_labels_are_drawn(tmp_path: Path):
    holes = [replace(record, moved=0.0, scores={} if record.round else record.scores) for record in series(3)]
    paths = [write(tmp_path / f"$x^{{{i}$", "feduhb", holes, scale=0.6) for i in range(2)]
    rows = stayed(4)
    rows[0]["client"] = "$x^{<b>\x07"
    told = audit(clients={"on": "$y_{", "rows": rows}, membership=[attack("$z_{", "<i>")])
    views = read_runs([put(paths[0], told), paths[1], write(tmp_path / "one", "retrain", series(1))])
    assert views[0].label == "FedUHB ($x^{0$)"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for figure in draw_figures(views).values():
            assert save_figure(figure, format="png", dpi=30)
        assert views[0].audit is not None
        svg, _ = _need(chart_clients(views[0].audit, views[0].label)).render("c")
    assert "$x^{&lt;b&gt;?" in svg


def _need(chart: Chart | None) -> Chart:
    assert chart is not None
    return chart


def test_a_score_has_a_line_for_each_run(five):
    chart = _need(chart_score(five, choose_strokes(five), "test_loss"))
    assert [line.name for line in chart.series] == [
        "original",
        "FedUHB",
        "Retrain",
        "FedEraser",
        "FedRecover",
    ]
    assert [list(line.y) for line in chart.series] == [view.scored("test_loss") for view in five]
    assert chart.series[2].texts[-1] == "0.00898"
    assert "Retrain 0.00898" in chart.summary


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rounds", [1, 3])
def test_an_axis_of_shares_ends_at_nought_and_a_hundred_percent(tmp_path: Path, share: float, rounds: int):
    flat = [replace(record, scores={"test_accuracy": share, "backdoor": share}) for record in series(rounds)]
    rows = [{"client": "c", "examples": 4, "before": share, "after": share, "retrain": None}]
    told = audit(clients={"on": "held-out data", "rows": rows})
    drawn = draw_figures(read_runs([put(write(tmp_path / "u", "feduhb", flat), told)]))
    accuracy, _, backdoor = drawn["overview"].axes
    (clients,) = drawn["clients"].axes
    for low, high in (accuracy.get_ylim(), clients.get_ylim(), backdoor.get_xlim()):
        assert 0 <= low <= share <= high <= 1


def test_many_runs_get_a_legend(tmp_path: Path):
    views = read_runs([write(tmp_path / f"{i}", "feduhb", series(6), scale=i / 10) for i in range(1, 8)])
    chart = _need(chart_score(views, choose_strokes(views), "test_accuracy"))
    assert [key.name for key in chart.keys] == [view.label for view in views]
    figure = compose([chart], width=5, height=3)
    assert figure is not None
    assert len(figure.legends[0].get_texts()) == 7


def test_the_movement_has_its_threshold_and_its_end(views, five, tmp_path: Path):
    chart = _need(chart_movement(five, choose_strokes(five)))
    assert [line.name for line in chart.series] == ["FedUHB", "FedUHB: threshold"], "only runs under a rule"
    assert list(chart.series[0].y) == views[1].moved
    assert f"FedUHB stopped after round {views[1].fired}: movement" in chart.notes[0][0]
    silent = read_runs(story(tmp_path / "silent", scale=0.0))
    notes = _need(chart_movement(silent, choose_strokes(silent))).notes
    assert notes[0][0] == "FedUHB: the stop rule did not fire within 12 rounds"
    free = read_runs([write(tmp_path / f"free-{m}", m, series(4)) for m in ("feduhb", "federaser")])
    assert len(_need(chart_movement(free, choose_strokes(free))).series) == 2, (
        "without a rule every unlearning run"
    )


def test_the_backdoor_has_a_bar_for_each_run(views):
    chart = _need(chart_backdoor(views, choose_strokes(views)))
    assert {bar.name: bar.texts[0] for bar in chart.series} == {
        "original": "92.0%",
        "FedUHB": "2.0%",
        "Retrain": "1.0%",
    }
    assert chart.notes[0][0] == "Floor: Retrain, which never saw the trigger."


def test_every_attack_has_its_panel_and_every_run_its_verdict(
    figures: dict[str, Figure], audited: list[RunView]
):
    charts = chart_attacks_by_kind(audited, choose_strokes(audited))
    assert [chart.title for chart in charts] == [
        "Loss, all forgotten data", "Loss, canaries", "LiRA, canaries",
    ]  # fmt: skip
    figure = figures["audit"]
    assert {"no power here", "not caught", "inconclusive", "caught", "original", "Retrain"} <= set(
        written(figure)
    )
    panels = figure.axes[: len(charts)]
    named = [[label.get_text() for label in axes.get_yticklabels()] for axes in panels]
    assert named == [["FedUHB", "FedEraser"], ["FedUHB", "FedEraser"], ["FedUHB"]]
    (ends,) = {axes.get_xlim() for axes in panels}
    assert ends[0] < 0.45
    assert ends[1] > attack()["models"]["original"]["interval"]["high"]


def test_dots_intervals_and_band_are_the_audits(figures: dict[str, Figure]):
    axes = figures["audit"].axes[1]
    lines = [np.asarray(line.get_xdata(), dtype=float).tolist() for line in axes.get_lines()]
    assert [x[0] for x in lines if len(x) == 1] == [0.82, 0.497, 0.505, 0.82, 0.497, 0.7]
    roc = attack()["models"]["original"]
    for interval in ("interval", "equivalence"):
        assert [roc[interval]["low"], roc[interval]["high"]] in lines
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.x1) == pytest.approx((0.45, 0.55))


def test_the_page_draws_an_attack_on_each_row():
    chart = _need(chart_attacks(read(audit()), BLUE))
    assert [dot.x[0] for dot in chart.series] == [0.82, 0.497, 0.505] * 3
    assert chart.series[2].texts == ["AUC 0.505 [0.474, 0.536]"]
    assert [key.sign for key in chart.keys] == ["■", "◆", "●"], "not by colour alone"
    assert chart_attacks(read(bare()), BLUE) is None
    assert chart_clients(read(bare()), "FedUHB") is None


def test_the_page_draws_what_the_original_reveals_if_it_is_kept():
    chart = _need(chart_kept(read(audit(membership=[attack(), comparison()])), BLUE))
    assert [dot.x[0] for dot in chart.series] == [0.49, 0.91, 0.86]
    assert [key.name for key in chart.keys] == ["itself one round later", "Retrain", "the unlearned model"]
    assert chart.notes[0][0] == "Thin: 99% interval; thick: 90%.", "no band, since this is not a test"
    assert chart_kept(read(audit()), BLUE) is None


def test_attacks_stand_two_side_by_side(tmp_path: Path):
    kinds = [attack(on="all forgotten data"), comparison(on="all forgotten data"), attack(), comparison()]
    folder = put(write(tmp_path / "u", "feduhb", series(4)), audit(membership=kinds))
    figure = draw_figures(read_runs([folder]))["audit"]
    legible(figure)
    tops = [round(axes.get_position().y0, 2) for axes in figure.axes]
    assert tops[0] == tops[1] > tops[2] == tops[3]
    assert figure.get_figwidth() < 10, "words can be read where a page is 750 points wide"


def test_clients_stand_from_loss_to_gain(figures: dict[str, Figure]):
    ordered = list_changes(read(audit(staying=18)))
    assert [row.gain for row in ordered] == sorted(row.gain for row in ordered)
    few, many = figures["clients"].axes
    assert [label.get_text() for label in few.get_xticklabels()] == [row.client for row in ordered]
    assert many.get_xlabel().startswith("60 clients")
    (stems,) = (each for each in few.collections if isinstance(each, LineCollection))
    assert [[y for _, y in segment] for segment in stems.get_segments()] == [
        [row.before, row.after] for row in ordered
    ]
    chart = _need(chart_clients(read(audit(staying=18)), "FedUHB"))
    assert list(chart.series[0].y) == [row.after for row in ordered]
    assert {key.stroke.colour for key in chart.keys} == {GREY, VERMILLION, BLUE}


def test_clients_that_were_not_measured_are_left_out():
    told = audit()
    told["clients"]["rows"][0]["after"] = None
    assert len(list_changes(read(told))) == 5
    rows = [
        {"client": name, "examples": 9, "before": before, "after": after, "retrain": None}
        for name, before, after in (("a", 0.9, 0.8), ("b", 0.5, 0.5), ("c", 0.5, 0.75))
    ]
    said = describe_changes(read(audit(clients={"on": "held-out data", "rows": rows})))
    assert "Of 3 remaining clients, 1 score higher on their held-out data, 1 lower" in said
    assert "a lost most (−10.0 points); c gained most (+25.0 points)" in said  # noqa: RUF001
    assert describe_changes(read(bare())) == "No remaining client's accuracy was measured."


def test_svg_scales_follows_the_scheme_and_carries_no_date(five):
    chart = _need(chart_score(five, choose_strokes(five), "test_accuracy"))
    svg, told = chart.render("a")
    root = ElementTree.fromstring(svg)  # noqa: S314 (our own)
    assert "width" not in root.attrib
    assert root.attrib["aria-label"].startswith("Test accuracy: original 95.6%; FedUHB")
    assert not list(root.iter("metadata"))
    assert {"var(--ink)", "var(--soft)", "var(--blue)"} & set(svg.replace('"', " ").replace(";", " ").split())
    assert not {"#222222", "#666666", "#0072b2"} & set(
        svg.lower().replace('"', " ").replace(";", " ").split()
    )
    assert chart.render("a") == (svg, told), "the same runs give the same text"
    assert {each.get("id", "a-").partition("-")[0] for each in root.iter()} == {"a"}
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for line in told["series"]:
        assert all(0 < x < width and 0 < y < height for x, y, *_ in line["points"])


def test_a_point_lies_on_the_line_that_is_drawn():
    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1])
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)

    svg, told = Chart(
        "t", draw, [Series("s", BLUE, [0.0, 1.0, 2.0], [0.0, 1.0, float("nan")], ["a", "b", "c"])]
    ).render("p")
    low, high = told["series"][0]["points"]
    assert (low[2], high[2]) == ("a", "b"), "a missing value has no point"
    path = f"M {low[0]} {low[1]} L {high[0]} {high[1]}"
    assert path in svg


def test_strokes_tell_runs_apart(tmp_path: Path, five):
    paths = [write(tmp_path / f"{i}", "feduhb", series(2), scale=i / 10) for i in range(12)]
    paths += [write(tmp_path / f"t{i}", None, series(2), seed=i) for i in range(2)]
    looks = choose_strokes(read_runs(paths))
    assert len(set(looks.values())) == 14
    assert looks["original (seed 0)"] == Stroke(GREY, "dashed")
    assert choose_strokes(five) == choose_strokes(five[::-1]), "a method keeps its colour"
    assert choose_strokes([five[4]])["FedRecover"].colour == VIOLET


def test_graded_colours_run_from_amber_to_blue():
    colours = grade_colours(5)
    assert len(set(colours)) == 5
    blues = [to_rgb(colour)[2] for colour in colours]
    assert blues == sorted(blues)
    assert grade_colours(1) == ["#2A6FC0"] == grade_colours(7)[-1:]


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
    placed = spread_apart(sorted(heights), 0.075)
    assert all(high - low >= 0.075 - 1e-9 for low, high in pairwise(placed))
    assert all(0 <= height <= 1 for height in placed)
