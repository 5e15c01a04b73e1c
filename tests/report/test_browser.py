"""The page in a real browser: it draws, loads nothing, complains of nothing, and fits a telephone."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from feduhb.report.charts import charts
from feduhb.report.html import page as report
from feduhb.report.runs import read_runs
from report.audits import attack, audit, put
from report.folders import rivals, series, write

WIDE, NARROW = 1200, 420  # CSS pixels
CURVES = ["accuracy", "loss", "movement", "backdoor"]
MAPS = ["stop-map-0", "lambda-rounds", "lambda-accuracy"]
AUDITS = ["auc-0", "clients-0", "auc-1", "clients-1"]  # the latter two in a card that is closed
CHARTS = [*CURVES, *MAPS, *AUDITS]
HIDDEN = 2
SHAPES = {
    "bar": ".barlayer .point path",
    "heatmap": ".heatmaplayer image",
    "scatter": ".scatterlayer .trace",
}


@dataclass(slots=True)
class Opened:
    """A page, and all that happened while it was open."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser")
    folders = rivals(root)
    put(folders[1], audit(staying=18))
    caught = [attack(found="caught", unlearned=0.7)]
    put(folders[3], audit("not forgotten", membership=caught, staying=200))
    views = read_runs(folders)
    assert list(charts(views)) == CHARTS
    (root / "report.html").write_text(report(views), encoding="utf-8")
    return root / "report.html"


@contextmanager
def opened(browser: Browser, document: Path, width: int, scheme: str) -> Generator[Opened]:
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    seen = Opened(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on(
        "console",
        lambda said: seen.complaints.append(said.text) if said.type in {"error", "warning"} else None,
    )
    try:
        page.goto(document.as_uri())
        yield seen
    finally:
        page.close()


@pytest.fixture(params=["light", "dark"])
def wide(request: pytest.FixtureRequest, browser: Browser, document: Path) -> Iterator[Opened]:
    with opened(browser, document, WIDE, request.param) as seen:
        yield seen


@pytest.fixture(scope="module", params=["light", "dark"])
def still(request: pytest.FixtureRequest, browser: Browser, document: Path) -> Iterator[Opened]:
    """The wide page for tests that only look at it."""
    with opened(browser, document, WIDE, request.param) as seen:
        yield seen


@pytest.fixture(scope="module", params=["light", "dark"])
def narrow(request: pytest.FixtureRequest, browser: Browser, document: Path) -> Iterator[Opened]:
    with opened(browser, document, NARROW, request.param) as seen:
        yield seen


def test_nothing_is_loaded_and_nothing_complained_of(still: Opened, document: Path):
    still.page.wait_for_load_state("networkidle")
    assert still.requests == [document.as_uri()]
    assert still.complaints == []


def test_every_chart_is_drawn(wide: Opened):
    described = json.loads(wide.page.locator("#charts").text_content() or "{}")
    assert list(described) == CHARTS
    assert wide.page.locator(".js-plotly-plot").count() == len(CHARTS) - HIDDEN
    for summary in wide.page.locator(".card summary").all()[1:]:
        summary.click()
    wide.page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot').length == {len(CHARTS)}")
    for name, chart in described.items():
        place = wide.page.locator(f"#chart-{name}")
        box, room = place.locator("svg.main-svg").nth(0).bounding_box(), place.bounding_box()
        assert box is not None, name
        assert room is not None, name
        assert box["width"] == pytest.approx(room["width"], abs=1), name
        assert box["width"] > 300, name
        assert box["height"] > 200, name
        (kind,) = {trace["type"] for trace in chart["data"]}
        expected = len(chart["data"][0]["x"]) if kind == "bar" else len(chart["data"])
        assert place.locator(SHAPES[kind]).count() == expected, name
    assert wide.complaints == []


def test_the_verdicts_can_be_read(still: Opened):
    badges = still.page.locator(".card > header .badge")
    assert badges.all_text_contents() == ["✓ forgotten", "✗ not forgotten"]
    for place, ground in enumerate(("rgb(23, 115, 74)", "rgb(179, 38, 30)")):
        look = badges.nth(place).evaluate(
            "b => [getComputedStyle(b).color, getComputedStyle(b).backgroundColor]"
        )
        assert look == ["rgb(255, 255, 255)", ground], "white on dark, whatever the scheme"
    assert still.page.locator(".checks .yes").first.is_visible()


def test_the_band_and_the_coin_are_drawn(still: Opened):
    assert still.page.locator("#chart-auc-0 .shapelayer path").count() == 3 + 1
    assert still.page.locator("#chart-auc-0 .xerror").count() == 3 * 6, (
        "three attacks, three models, two intervals"
    )


def test_the_legend_names_every_run(still: Opened):
    named = still.page.locator("#chart-accuracy .legendtext").all_text_contents()
    assert named == ["original", "FedUHB", "Retrain", "FedEraser", "FedRecover"]


def test_the_colour_scheme_is_followed(still: Opened):
    ground = still.page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = still.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert ground == ("rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)")


def test_a_run_opens_on_a_click(wide: Opened):
    run = wide.page.locator("section > details", has=wide.page.locator("summary", has_text="FedRecover"))
    config = run.locator("pre")
    assert not config.is_visible()
    run.locator("summary").click()
    assert config.is_visible()
    assert 'method = "fedrecover"' in config.inner_text()
    run.locator("summary").click()
    assert not config.is_visible()


def test_a_telephone_scrolls_down_only(narrow: Opened):
    for summary in narrow.page.locator("details:not([open]) > summary").all()[::-1]:
        summary.click()
    assert narrow.page.locator("details[open]").count() == 5 + 2
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= NARROW
    narrow.page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot').length == {len(CHARTS)}")
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= NARROW
    assert narrow.complaints == []


def test_the_table_scrolls_inside_itself_on_a_telephone(narrow: Opened):
    wider = "document.querySelector('.wide').scrollWidth > document.querySelector('.wide').clientWidth"
    assert narrow.page.evaluate(wider)


def test_hostile_names_run_nothing(browser: Browser, tmp_path: Path):
    hostile = "<img src=x onerror=alert(1)>"
    told = audit(verdict={"word": "useless", "reasons": [hostile]}, membership=[attack(hostile, hostile)])
    told["clients"]["rows"][0]["client"] = hostile
    paths = [
        put(
            write(tmp_path / f"<img src=x onerror=alert({i})>", "feduhb", series(4), forget="<b>c00</b>"),
            told,
        )
        for i in range(2)
    ]
    target = tmp_path / "report.html"
    target.write_text(report(read_runs(paths)), encoding="utf-8")
    with opened(browser, target, WIDE, "light") as seen:
        seen.page.locator(".card summary").nth(1).click()
        seen.page.locator("#chart-auc-1 svg.main-svg").nth(0).wait_for()
        assert seen.page.locator("img").count() == 0
        assert seen.page.locator("b").count() == 0
        assert seen.requests == [target.as_uri()]
        assert seen.complaints == []


def test_a_sweep_over_beta_is_drawn(browser: Browser, tmp_path: Path):
    told = [{"settings": {"momentum": beta}} for beta in (0.0, 0.5, 0.9)]
    paths = [write(tmp_path / f"{i}", "feduhb", series(4 + i), changes=each) for i, each in enumerate(told)]
    target = tmp_path / "report.html"
    target.write_text(
        report(read_runs([*paths, write(tmp_path / "r", "retrain", series(5))])), encoding="utf-8"
    )
    with opened(browser, target, WIDE, "dark") as seen:
        lines = {"beta-accuracy": 4, "beta-loss": 3, "beta-reach": 1}
        for name, expected in lines.items():
            assert seen.page.locator(f"#chart-{name} .scatterlayer .trace").count() == expected, name
        assert seen.page.locator(".heatmaplayer image").count() == 2 * 3, "a map for each run"
        assert seen.complaints == []
