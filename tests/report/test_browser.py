"""The page in a real browser: it loads nothing, complains of nothing, answers first and fits a telephone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from feduhb.report.page import render_report
from feduhb.report.runs import read_runs
from report.audits import attack, audit, put
from report.browsing import Opened, opened
from report.folders import rivals, series, write

pytestmark = pytest.mark.slow

DESKTOP, TELEPHONE = (1400, 900), (390, 844)  # CSS pixels
PAPER = 703  # CSS pixels: A4 less 12 mm on either side
CHARTS = [
    "accuracy", "movement", "backdoor", "auc-0", "clients-0", "auc-1", "clients-1", "loss", "work", "stop-map-0",
    "lambda-rounds", "lambda-accuracy",
]  # fmt: skip


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser")
    folders = rivals(root)
    put(folders[1], audit(staying=18))
    caught = [attack(found="caught", unlearned=0.7)]
    put(folders[3], audit("not forgotten", membership=caught, staying=200))
    (root / "report.html").write_text(render_report(read_runs(folders)), encoding="utf-8")
    return root / "report.html"


@pytest.fixture(scope="module")
def desktop(browser: Browser, document: Path) -> Iterator[Opened]:
    with opened(browser, document, DESKTOP[0], "light", DESKTOP[1]) as seen:
        yield seen


@pytest.fixture(scope="module")
def telephone(browser: Browser, document: Path) -> Iterator[Opened]:
    with opened(browser, document, TELEPHONE[0], "dark", TELEPHONE[1]) as seen:
        yield seen


@pytest.mark.parametrize("device", ["desktop", "telephone"])
def test_nothing_is_loaded_and_nothing_complained_of(
    request: pytest.FixtureRequest, document: Path, device: str
):
    seen: Opened = request.getfixturevalue(device)
    seen.page.wait_for_load_state("networkidle")
    assert seen.requests == [document.as_uri()]
    assert seen.complaints == []


def bottom(seen: Opened, selector: str) -> float:
    box = seen.page.locator(selector).last.bounding_box()
    assert box is not None, selector
    return box["y"] + box["height"]


def test_the_first_screen_answers(desktop: Opened, telephone: Opened):
    for selector in (".lead", ".about", ".verdicts", ".numbers", "header .chart"):
        assert bottom(desktop, selector) < DESKTOP[1], selector
    for selector in (".lead", ".verdicts", ".numbers", "#chart-accuracy"):
        assert bottom(telephone, selector) < TELEPHONE[1], selector


def test_the_verdicts_are_words_on_colours(desktop: Opened):
    badges = desktop.page.locator(".verdicts .badge")
    assert badges.all_text_contents() == ["✓ forgotten", "– not audited", "✗ not forgotten", "– not audited"]  # noqa: RUF001
    grounds = badges.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert grounds[0] == "rgb(23, 115, 74)"
    assert grounds[2] == "rgb(179, 38, 30)"
    assert grounds[1] == grounds[3] == "rgb(92, 99, 110)"


def test_the_evidence_is_folded_and_every_chart_is_drawn(desktop: Opened):
    assert desktop.page.locator("details[open]").count() == 0
    drawn = desktop.page.locator("figure.chart").evaluate_all("all => all.map(one => one.id)")
    assert drawn == [f"chart-{name}" for name in CHARTS]
    desktop.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    for name in CHARTS:
        box = desktop.page.locator(f"#chart-{name} svg").bounding_box()
        assert box is not None, name
        assert box["width"] > 300, name
        assert box["height"] > 150, name
    assert 'method = "fedrecover"' in desktop.page.locator("pre").last.inner_text()


def test_a_pointer_and_the_keyboard_show_the_values(desktop: Opened):
    plot, tip = (desktop.page.locator(f"#chart-accuracy {part}") for part in (".plot", "output"))
    assert not tip.is_visible()
    plot.hover(position={"x": 50, "y": 100})
    assert tip.inner_text().startswith("round 1\n")
    assert "FedUHB 38.4%" in tip.inner_text()
    desktop.page.mouse.move(0, 0)
    assert not tip.is_visible()
    plot.focus()
    for _ in range(3):
        desktop.page.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("round 3\n")
    desktop.page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_the_colour_scheme_is_followed(desktop: Opened, telephone: Opened):
    look = "one => getComputedStyle(one).fill"
    light, dark = (
        seen.page.locator("#chart-accuracy text").first.evaluate(look) for seen in (desktop, telephone)
    )
    assert light == "rgb(92, 99, 110)"
    assert dark == "rgb(163, 170, 181)"
    grounds = [
        seen.page.evaluate("getComputedStyle(document.body).backgroundColor") for seen in (desktop, telephone)
    ]
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 22, 26)"]


def test_a_telephone_scrolls_down_only_and_its_charts_can_be_read(telephone: Opened):
    telephone.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert telephone.page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE[0]
    heights = telephone.page.locator("figure svg text").evaluate_all(
        "all => all.map(one => parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getScreenCTM().a)"
    )
    assert min(heights) > 9


def test_a_table_is_cards_on_a_telephone_and_nothing_is_cut_off(telephone: Opened):
    telephone.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    cells = telephone.page.locator("td:not(:empty)").evaluate_all(
        """all => all.map(one => ({
            text: one.textContent, right: one.getBoundingClientRect().right, wider: one.scrollWidth - one.clientWidth,
            size: parseFloat(getComputedStyle(one).fontSize), head: one.dataset.head,
            shown: getComputedStyle(one, '::before').content}))"""
    )
    assert len(cells) > 200
    for cell in cells:
        assert cell["right"] <= TELEPHONE[0], cell
        assert cell["wider"] <= 0, cell
        assert cell["size"] >= 12, cell
    headers = {cell["head"] for cell in cells if cell["shown"] == f'"{cell["head"]}"'}
    assert {"rounds / max", "seconds", "AUC", "members / others"} <= headers


def test_paper_shows_what_is_folded(browser: Browser, document: Path, tmp_path: Path):
    """Whoever prints by script or without one gets every table, and the page is folded again afterwards."""
    with opened(browser, document, DESKTOP[0], "dark") as seen:
        folded = seen.page.locator("details").count()
        assert folded > 5
        for name, after in (("beforeprint", folded), ("afterprint", 0)):
            seen.page.evaluate("name => { dispatchEvent(new Event(name)) }", name)
            assert seen.page.locator("details[open]").count() == after
        seen.page.emulate_media(media="print")
        seen.page.set_viewport_size({"width": PAPER, "height": 1000})
        hidden = "all => all.filter(one => !one.checkVisibility({contentVisibilityAuto: true})).length"
        assert seen.page.locator("details table, details pre, details figure").evaluate_all(hidden) == 0
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= PAPER
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        seen.page.pdf(path=tmp_path / "whole.pdf")
        assert seen.page.locator("details[open]").count() == 0
        assert seen.complaints == []
    with opened(browser, document, DESKTOP[0], "light") as seen:
        seen.page.evaluate("document.querySelectorAll('details').forEach(one => one.remove())")
        seen.page.pdf(path=tmp_path / "short.pdf")
    whole, short = (
        (tmp_path / f"{name}.pdf").read_bytes().count(b"/Type /Page\n") for name in ("whole", "short")
    )
    assert whole > short + 5, "the evidence takes pages of its own"


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
    target.write_text(render_report(read_runs(paths)), encoding="utf-8")
    with opened(browser, target, DESKTOP[0], "light") as seen:
        seen.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        for chart in ("accuracy", "auc-1", "clients-1"):
            seen.page.locator(f"#chart-{chart} .plot").focus()
            seen.page.keyboard.press("ArrowRight")
            assert seen.page.locator(f"#chart-{chart} output").is_visible()
        assert hostile in seen.page.locator("#chart-clients-1 output").inner_text()
        assert seen.page.locator("img").count() == 0
        assert seen.requests == [target.as_uri()]
        assert seen.complaints == []
