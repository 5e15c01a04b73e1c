"""The page in a real browser: it draws, loads nothing, complains of nothing, and fits a telephone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from feduhb.report.charts import charts
from feduhb.report.html import page as report
from feduhb.report.runs import read_runs
from report.folders import rivals, series, write

CHROMIUM = shutil.which("chromium")
QUIETLY = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE, NARROW = 1200, 420  # CSS pixels
DRAWN = 4  # charts: accuracy, loss, movement, backdoor

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; the page is not opened")


@dataclass(slots=True)
class Opened:
    """A page, and all that happened while it was open."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=QUIETLY)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser")
    views = read_runs(rivals(root))
    assert len(charts(views)) == DRAWN
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


@pytest.fixture(params=["light", "dark"])
def narrow(request: pytest.FixtureRequest, browser: Browser, document: Path) -> Iterator[Opened]:
    with opened(browser, document, NARROW, request.param) as seen:
        yield seen


def test_nothing_is_loaded_and_nothing_complained_of(wide: Opened, document: Path):
    wide.page.wait_for_load_state("networkidle")
    assert wide.requests == [document.as_uri()]
    assert wide.complaints == []


def test_every_chart_is_drawn(wide: Opened):
    described = json.loads(wide.page.locator("#charts").text_content() or "{}")
    assert len(described) == DRAWN
    assert wide.page.locator(".js-plotly-plot").count() == DRAWN
    for name, chart in described.items():
        place = wide.page.locator(f"#chart-{name}")
        box = place.locator("svg.main-svg").nth(0).bounding_box()
        assert box is not None, name
        assert box["width"] > 300, name
        assert box["height"] > 200, name
        kinds = {trace["type"] for trace in chart["data"]}
        shapes = place.locator(".barlayer .point path" if "bar" in kinds else ".scatterlayer .trace")
        expected = len(chart["data"][0]["x"]) if "bar" in kinds else len(chart["data"])
        assert shapes.count() == expected, name


def test_the_legend_names_every_run(wide: Opened):
    named = wide.page.locator("#chart-accuracy .legendtext").all_text_contents()
    assert named == ["original", "FedUHB", "Retrain", "FedEraser", "FedRecover"]


def test_the_colour_scheme_is_followed(wide: Opened):
    ground = wide.page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = wide.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert ground == ("rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)")


def test_a_run_opens_on_a_click(wide: Opened):
    run = wide.page.locator("details", has=wide.page.locator("summary", has_text="FedRecover"))
    config = run.locator("pre")
    assert not config.is_visible()
    run.locator("summary").click()
    assert config.is_visible()
    assert 'method = "fedrecover"' in config.inner_text()
    run.locator("summary").click()
    assert not config.is_visible()


def test_a_telephone_scrolls_down_only(narrow: Opened):
    for summary in narrow.page.locator("summary").all():
        summary.click()
    assert narrow.page.locator("details[open]").count() == 5
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= NARROW
    assert narrow.page.locator(".js-plotly-plot").count() == DRAWN
    assert narrow.complaints == []


def test_the_table_scrolls_inside_itself_on_a_telephone(narrow: Opened):
    wider = "document.querySelector('.wide').scrollWidth > document.querySelector('.wide').clientWidth"
    assert narrow.page.evaluate(wider)


def test_hostile_names_run_nothing(browser: Browser, tmp_path: Path):
    paths = [
        write(tmp_path / f"<img src=x onerror=alert({i})>", "</script><b>", series(3), forget="<b>c00</b>")
        for i in range(2)
    ]
    target = tmp_path / "report.html"
    target.write_text(report(read_runs(paths)), encoding="utf-8")
    with opened(browser, target, WIDE, "light") as seen:
        assert seen.page.locator("img").count() == 0
        assert seen.page.locator("b").count() == 0
        assert seen.page.locator(".js-plotly-plot").count() == DRAWN
        assert seen.requests == [target.as_uri()]
        assert seen.complaints == []
