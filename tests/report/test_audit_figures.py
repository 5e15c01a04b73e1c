from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection

from feduhb.report.audit_charts import audit_charts
from feduhb.report.audit_figures import auc, clients
from feduhb.report.audit_words import changes, fared
from feduhb.report.figures import draw, png
from feduhb.report.runs import RunView, read_runs
from feduhb.report.style import BLUE, GREY, VERMILLION, strokes
from report.audits import attack, audit, bare, put, read, stayed
from report.folders import rivals, series, write
from report.looking import legible, written


@pytest.fixture
def two(tmp_path: Path) -> list[RunView]:
    """Two audited runs of five, the second with one attack less."""
    folders = rivals(tmp_path)
    put(folders[1], audit(staying=18))
    caught = [attack(on="all forgotten data", found="inconclusive", unlearned=0.55), attack(found="caught", unlearned=0.7)]  # fmt: skip
    put(folders[3], audit("not forgotten", membership=caught, staying=60))
    return read_runs(folders)


def test_every_attack_has_its_panel_and_every_run_its_verdict(two):
    figure = auc(two)
    assert figure is not None
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "Loss attack on all forgotten data",
        "Loss attack on canaries",
        "LiRA attack on canaries",
    ]
    said = written(figure)
    assert {"no power here", "not caught", "inconclusive", "caught"} <= set(said)
    named = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert named == [["FedUHB", "FedEraser"], ["FedUHB", "FedEraser"], ["FedUHB"]]
    assert {"original", "Retrain", "unlearned"} <= set(said)


def test_dots_and_intervals_are_the_audits(two):
    figure = auc(two)
    assert figure is not None
    axes = figure.axes[1]
    lines = [line.get_xdata() for line in axes.get_lines()]
    dots = [float(x[0]) for x in map(np.asarray, lines) if len(x) == 1]
    assert dots == [0.82, 0.497, 0.505, 0.82, 0.497, 0.7]
    roc = attack()["models"]["original"]
    bars = [list(map(float, x)) for x in map(np.asarray, lines) if len(x) == 2]
    assert [roc["interval"]["low"], roc["interval"]["high"]] in bars
    assert [roc["equivalence"]["low"], roc["equivalence"]["high"]] in bars
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.x0, band.x1) == pytest.approx((0.45, 0.55))


def test_all_panels_share_one_scale_that_holds_every_interval(two):
    figure = auc(two)
    assert figure is not None
    (ends,) = {axes.get_xlim() for axes in figure.axes}
    assert ends[0] < 0.45
    assert ends[1] > attack()["models"]["original"]["interval"]["high"]


def test_the_figures_are_legible(two):
    for figure in (auc(two), clients(two)):
        assert figure is not None
        legible(figure)


def test_nothing_is_drawn_without_data(tmp_path: Path, views):
    assert auc(views) is None
    assert clients(views) is None
    empty = read_runs([put(write(tmp_path / "u", "feduhb", series(4)), bare())])
    assert auc(empty) is None
    assert clients(empty) is None
    assert not {"audit", "clients"} & set(draw(empty))
    assert [chart["data"] for chart in audit_charts(empty, strokes(empty)).values()] == [[], []]


def test_clients_stand_from_loss_to_gain(two):
    ordered = changes(read(audit(staying=18)))
    assert [row.gain for row in ordered] == sorted(row.gain for row in ordered)
    figure = clients(two)
    assert figure is not None
    few, many = figure.axes
    assert [label.get_text() for label in few.get_xticklabels()] == [row.client for row in ordered]
    assert many.get_xlabel().startswith("60 clients")
    (stems,) = (each for each in few.collections if isinstance(each, LineCollection))
    assert len(stems.get_segments()) == 18
    before, after = (each for each in few.collections if isinstance(each, PathCollection))
    assert np.asarray(before.get_offsets())[:, 1].tolist() == [row.before for row in ordered]
    assert np.asarray(after.get_offsets())[:, 1].tolist() == [row.after for row in ordered]


def test_those_who_were_not_measured_are_left_out():
    told = audit()
    told["clients"]["rows"][0]["after"] = None
    assert len(changes(read(told))) == 5
    assert fared(read(told)).startswith("Of 5 who stayed, ")
    assert fared(read(bare())) == "No remaining client's accuracy was measured."


def test_how_they_fared_is_told_in_one_sentence():
    rows = [
        {"client": name, "examples": 9, "before": before, "after": after, "retrain": None}
        for name, before, after in (("a", 0.9, 0.8), ("b", 0.5, 0.5), ("c", 0.5, 0.75))
    ]
    told = audit(clients={"on": "held-out data", "rows": rows})
    assert fared(read(told)) == (
        "Of 3 who stayed, 1 score higher on their held-out data, 1 lower; "
        "a lost most (−10.0 points); c gained most (+25.0 points)."  # noqa: RUF001
    )


def test_the_page_draws_the_same_dots(two):
    drawn = audit_charts(two, strokes(two))
    assert list(drawn) == ["auc-0", "clients-0", "auc-1", "clients-1"]
    named = {trace["name"]: trace for trace in drawn["auc-0"]["data"] if "name" in trace}
    assert list(named) == ["original", "Retrain", "unlearned"]
    assert named["unlearned"]["x"] == [0.505, 0.505, 0.505]
    high = attack()["models"]["unlearned"]["interval"]["high"]
    assert named["unlearned"]["error_x"]["array"][0] == pytest.approx(high - 0.505)
    assert len({trace["marker"]["symbol"] for trace in named.values()}) == 3, "not by colour alone"
    bands = [shape for shape in drawn["auc-0"]["layout"]["shapes"] if shape["type"] == "rect"]
    assert [(band["x0"], band["x1"]) for band in bands] == [(0.45, 0.55)] * 3


def test_the_page_draws_the_same_clients(two):
    chart = audit_charts(two, strokes(two))["clients-0"]
    lost, gained, before, *after = chart["data"]
    assert (lost["line"]["color"], gained["line"]["color"]) == (VERMILLION, BLUE)
    ordered = changes(read(audit(staying=18)))
    assert len(lost["x"]) == 3 * sum(row.gain < 0 for row in ordered)
    assert before["y"] == [row.before for row in ordered]
    assert before["marker"]["color"] == GREY
    seen = [[y for y in trace["y"] if y is not None] for trace in after]
    assert seen[0] + seen[1] == [row.after for row in ordered if row.gain]


def test_200_clients_are_counted_and_20_named(tmp_path: Path):
    for count in (20, 200):
        folder = put(write(tmp_path / f"{count}", "feduhb", series(4)), audit(staying=count))
        views = read_runs([folder])
        axis = audit_charts(views, strokes(views))["clients-0"]["layout"]["xaxis"]
        assert len(axis.get("ticktext", ())) == (20 if count == 20 else 0)
        assert ("200 clients" in str(axis.get("title"))) == (count == 200)
        figure = clients(views)
        assert figure is not None
        legible(figure)


def test_odd_names_are_drawn_as_they_are(tmp_path: Path):
    rows = stayed(4)
    rows[0]["client"] = "$x^{<b>"
    told = audit(clients={"on": "$y_{", "rows": rows}, membership=[attack("$z_{", "<i>")])
    views = read_runs([put(write(tmp_path / f"$x^{{{i}$", "feduhb", series(4)), told) for i in range(2)])
    assert all(png(figure) for figure in draw(views).values())
    assert "<b>" not in str(audit_charts(views, strokes(views)))
    assert "<i>" not in str(audit_charts(views, strokes(views)))
