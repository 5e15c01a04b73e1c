"""The theorem's page, figure and table: what they say of numbers made up here, and how the page opens."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from playwright.sync_api import Browser

from feduhb.errors import RunFolderError
from feduhb.report.drawing import BLUE, GREY, VERMILLION
from feduhb_reproduction.theorem_page import (
    describe_charts,
    draw,
    facts,
    headline,
    markdown,
    meaning,
    page,
    read_theorem,
    summary,
    table,
    write_theorem,
)
from report.browsing import opened
from report.reading import points

pytestmark = pytest.mark.slow

ROUNDS = 40
DECAY = 0.8  # of the distance a round, after its start


def made(beta: float) -> dict[str, Any]:
    """A run whose distance is β 0.8^t from round 2 on, under bounds that tend to 10 / (1 - β)."""
    distance = [0.0, 0.0, *(beta * DECAY**t for t in range(2, ROUNDS + 1))]
    paper = [10 / (1 - beta) * (1 - 0.9**t) for t in range(ROUNDS + 1)]
    tight = [beta * value for value in paper]
    peak = max(distance)
    ratios = [(b / d, t) for t, (d, b) in enumerate(zip(distance, tight, strict=True)) if d]
    near = dict(zip(("ratio", "round"), min(ratios), strict=True)) if ratios else None
    return {
        "beta": beta, "G": 0.5, "peak_round": distance.index(peak), "peak": peak, "final": distance[-1],
        "under_paper": True, "under_tight": True, "paper_limit": 10 / (1 - beta), "tight_limit": beta * 10 / (1 - beta),
        "paper_closest": near, "tight_closest": near, "gap": 1e-6, "test_accuracy": 0.75,
        "distance": distance, "paper": paper, "tight": tight,
    }  # fmt: skip


def results(*betas: float) -> dict[str, Any]:
    return {
        "settings": {
            "data": "digits", "clients": 5, "partition": "iid", "forget": "c00,c01", "betas": list(betas), "regulariser": 0.1,
            "rounds": ROUNDS, "seed": 7,
        },
        "remaining_clients": 3, "remaining_examples": 1200, "parameters": 650,
        "mu": 0.1, "L": 0.9, "alpha": 1.111, "rho": 0.943, "start_from_optimum": 3.25,
        "retrain": {"gap": 2e-5, "test_accuracy": 0.74},
        "runs": [made(beta) for beta in betas],
        "engine": {"name": "pool", "device": "cpu", "precision": "float64", "threads": 2, "block": 4},
        "versions": {"feduhb": "0.1.0", "torch": "2.0", "python": "3.12"}, "seconds": 12.0,
    }  # fmt: skip


@pytest.fixture
def found() -> dict[str, Any]:
    return results(0.0, 0.5, 0.9)


@pytest.fixture
def folder(tmp_path: Path, found: dict[str, Any]) -> Path:
    (tmp_path / "theorem.json").write_text(json.dumps(found))
    return tmp_path


# Words


def test_the_headline_tells_what_was_measured(found: dict[str, Any]):
    said = headline(found)
    assert "stayed under both bounds in each of 40 rounds" in said
    near = min(run["tight_closest"]["ratio"] for run in found["runs"][1:])
    assert f"as near as {near:.3g} times the distance (β = 0.5, round 2)" in said
    assert "fell to 0.000120 or less by then, at least 4,815 times smaller" in said  # 0.9 0.8^40; 0.8^-38


def test_a_broken_bound_is_said_first_and_in_the_table(found: dict[str, Any]):
    found["runs"][2]["under_tight"] = False
    assert headline(found).startswith("A bound was broken at β = 0.9")
    assert "stayed under" not in headline(found)
    assert [row[-1] for row in table(found).rows] == ["yes", "yes", "NO"]


def test_a_distance_that_has_not_fallen_is_not_said_to_go_to_0(found: dict[str, Any]):
    for run in found["runs"][1:]:
        run["final"] = run["peak"] / 3
    said = headline(found)
    assert "is still 0.192: give more rounds to see it go to 0" in said  # 0.9 0.64 / 3
    assert "fell to" not in said


def test_beta_0_alone_is_retrain():
    only = results(0.0)
    assert "the same weights, to the last bit" in headline(only)
    assert "above a distance of 0" in " ".join(meaning(only).values())
    assert table(only).rows == [["0", "0", "–", "0", "0", "9.85", "0", "10.0", "–", "–", "yes"]]  # noqa: RUF001


def test_it_says_what_a_bound_does_not_show(found: dict[str, Any]):
    said = meaning(found)
    text = " ".join(said.values())
    assert "their distance goes to 0" in text
    assert "stabilizes at the limit of its bound, here 100 for β = 0.9. That limit is an upper bound" in text
    run = found["runs"][-1]
    assert f"{run['tight'][-1] / run['final']:,.0f} times the distance in the last round" in text
    assert "It tends to 90.0, while the fresh model itself stood 3.25 from the optimum" in text
    assert "five local epochs" in text
    assert "Staying under a loose bound proves little." in said
    assert "G is known only afterwards." in said
    assert "It says nothing about forgetting." in said
    assert "Neither path ever saw the data" in said["It says nothing about forgetting."]


def test_the_facts_are_the_runs(found: dict[str, Any]):
    told = facts(found)
    assert told["forgotten"] == "c00,c01; 3 clients with 1,200 examples remain"
    assert told["μ"] == "0.1, the regulariser"
    assert told["L"].startswith("0.9 = μ + half the largest eigenvalue")
    assert told["G, for each β"] == "0.5, 0.5, 0.5"
    assert "divided by its own norm" in told["data"]
    assert told["took"] == "12.0 s for 4 runs of 40 rounds"


def test_the_table_has_a_row_for_every_beta(found: dict[str, Any]):
    grid = table(found)
    assert [row[0] for row in grid.rows] == ["0", "0.5", "0.9"]
    assert {len(row) for row in grid.rows} == {len(grid.headers)}
    run = found["runs"][1]
    assert grid.rows[1][1:4] == ["0.320", "2", f"{run['final']:.3g}"]
    assert grid.rows[1][6:8] == ["10.0", "20.0"]


def test_markdown_holds_outcome_table_figure_and_caution(found: dict[str, Any]):
    text = markdown(found)
    assert text.startswith("# The theorem, measured\n\nFor every β tried")
    assert "![Distance and bounds, a panel for each β](theorem.png)" in text
    assert table(found).to_markdown() in text
    assert all(f"- **{claim}** {why}" in text for claim, why in meaning(found).items())
    assert "drops a factor β" in text


def test_a_summary_leaves_the_series_out(found: dict[str, Any]):
    before = deepcopy(found)
    short = summary(found)
    assert found == before
    assert short["runs"][1]["peak"] == found["runs"][1]["peak"]
    assert not any(key in run for run in short["runs"] for key in ("distance", "paper", "tight"))


# Figure


def test_every_panel_shows_the_distance_under_its_bounds_on_the_same_axes(found: dict[str, Any]):
    panels = draw(found).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["β = 0", "β = 0.5", "β = 0.9"]
    assert {axes.get_yscale() for axes in panels} == {"log"}
    assert len({(axes.get_ylim(), axes.get_xlim()) for axes in panels}) == 1
    for axes, run in zip(panels, found["runs"], strict=True):
        measured, tight, paper = axes.get_lines()
        assert [to_hex(line.get_color()).upper() for line in (measured, tight, paper)] == [
            BLUE,
            VERMILLION,
            GREY,
        ]
        assert [line.get_linestyle() for line in (measured, tight, paper)] == ["-", "--", ":"]
        for line, name in ((measured, "distance"), (tight, "tight"), (paper, "paper")):
            shown = [None if np.isnan(y) else y for y in np.asarray(line.get_ydata()).tolist()]
            assert shown == [value or None for value in run[name]]
        low, high = axes.get_ylim()
        drawn = [value for name in ("distance", "tight", "paper") for value in run[name] if value]
        assert low <= min(drawn) <= max(drawn) <= high


def test_exact_zeros_are_said_in_words_for_a_logarithm_cannot_show_them(found: dict[str, Any]):
    zero, half, _ = draw(found).axes
    assert " ".join(text.get_text() for text in zero.texts) == "distance and bound with β: exactly 0"
    assert " ".join(text.get_text() for text in half.texts) == "0.320 at most, 6.65e-05 at the end"


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (4, 1), (5, 2)])
def test_panels_are_set_in_rows_of_four(count: int, rows: int):
    figure = draw(results(*(place / 10 for place in range(1, count + 1))))
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == count
    figure.draw_without_rendering()
    assert len({round(axes.get_position().y0, 3) for axes in shown}) == rows


# Files


def test_it_writes_page_table_and_figures_without_torch(folder: Path):
    code = (
        "import sys; from feduhb_reproduction.theorem_page import write_theorem\n"
        "print(*(p.name for p in write_theorem(sys.argv[1]))); sys.exit('torch' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["theorem.html", "theorem.md", "theorem.png", "theorem.pdf"]
    assert (folder / "theorem.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "theorem.pdf").read_bytes().startswith(b"%PDF")


def test_the_same_numbers_give_the_same_bytes(folder: Path):
    first = {path.name: path.read_bytes() for path in write_theorem(folder)}
    assert {path.name: path.read_bytes() for path in write_theorem(folder)} == first


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"settings": {"rounds": 3}, "runs": [{}]}'])
def test_a_damaged_file_is_refused_in_words(tmp_path: Path, damage: str):
    (tmp_path / "theorem.json").write_text(damage)
    with pytest.raises(RunFolderError, match=r"theorem.json is damaged; delete it and run feduhb theorem"):
        write_theorem(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["theorem.json"]


def test_a_folder_without_one_is_refused_in_words(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"holds no theorem.json; make one with feduhb theorem --out"):
        read_theorem(tmp_path / "nowhere")


# Page


def test_charts_leave_zeros_out(found: dict[str, Any]):
    drawn = describe_charts(found)
    assert [[line.name for line in chart.series] for chart in drawn.values()] == [
        ["paper's bound"],
        ["measured", "bound with β", "paper's bound"],
        ["measured", "bound with β", "paper's bound"],
    ]
    told = points(page(found))
    assert list(told) == list(drawn)
    for name, chart in drawn.items():
        positive = [sum(value > 0 for value in line.y) for line in chart.series]
        assert [len(line["points"]) for line in told[name]["series"]] == positive


def test_strings_from_the_file_cannot_become_markup(found: dict[str, Any]):
    found["settings"]["data"] = "<img src=x onerror=alert(1)>"
    found["settings"]["forget"] = "</script><b>x"
    text = page(found)
    assert "<img" not in text
    assert "<b>x" not in text
    assert "&lt;img src=x" in text


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_the_page_draws_loads_nothing_and_complains_of_nothing(
    browser: Browser, folder: Path, found: dict[str, Any], width: int, scheme: str
):
    document = folder / "theorem.html"
    document.write_text(page(found), encoding="utf-8")
    with opened(browser, document, width, scheme) as seen:
        seen.page.wait_for_load_state("networkidle")
        assert seen.requests == [document.as_uri()]
        assert seen.complaints == []
        assert seen.page.title() == "The theorem, measured"
        assert seen.page.locator("figure svg").count() == len(found["runs"])
        assert seen.page.locator("figcaption").all_text_contents()[0].endswith("exactly 0")
        assert seen.page.locator("tbody tr").count() == len(found["runs"])
        assert "not evidence of what either knows" in seen.page.locator("main").inner_text()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
