from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects as go
import pytest

from feduhb.report.charts import charts
from feduhb.report.html import page
from feduhb.report.runs import read_runs
from feduhb.report.words import headline
from report.folders import series, story, write
from report.reading import without_plotly, words

CHARTS = ["accuracy", "loss", "movement", "backdoor", "stop-map-0", "lambda-rounds", "lambda-accuracy"]
HOSTILE = "<img src=x onerror=alert(1)>"


def test_nothing_is_loaded_from_elsewhere(views):
    document = without_plotly(page(views))
    for mark in ("http:", "https:", 'src="', "@import", "url(", "//cdn", "<iframe", "<object"):
        assert mark not in document, mark
    assert re.findall(r'href="([^"]*)"', document) == ["data:,"]
    assert "default-src 'none'" in document


def test_plotly_is_inlined_once(views):
    document = page(views)
    assert document.count('<script id="plotly">') == 1
    assert document.count("plotly.js v") == 1
    assert len(document) < 8_000_000


def test_the_page_opens_with_the_headline(views):
    assert words(page(views)).startswith(f"Unlearning report Unlearning report {headline(views)}")


def test_every_section_is_there(views):
    said = words(page(views))
    for title in (
        "What it took",
        "Round by round",
        "Movement and the stop rule",
        "Backdoor",
        "The runs",
        "What λ does",
    ):
        assert title in said
    assert "trained again, from fresh weights" in said
    assert "It is not the model that FedAvg gives" in said
    assert "Copies of the old model" in said
    assert "One attack shows no more than that attack" in said


def test_each_run_tells_how_it_was_made(views):
    document = page(views)
    for view in views:
        assert view.result["weights_sha256"] in document
        assert view.result["finished"] in document
        assert str(view.path) in document
    assert document.count("<details>") == 3
    assert "data = &quot;digits&quot;" in document
    assert "name pool, device cpu, precision float32, threads 2" in document
    assert "feduhb 0.1.0, torch 2.13.0, python 3.11.7" in document


def test_approximate_runs_are_named_where_exact_is_explained(five, views):
    said = words(page(five))
    explained = said[said.index("What “exact” means") :]
    assert "FedEraser and FedRecover are approximate: what the forgotten data shaped went in" in explained
    assert "nothing bounds what such a model still knows" in explained
    assert "are approximate" not in words(page(views))


def test_the_table_says_how_to_read_its_columns(five, views):
    said = words(page(five))
    assert "Client rounds saved: the share" in said
    assert "History: what training kept" in said
    assert "history replayed 12.5 MB" in said
    assert "history kept 12.5 MB" in said
    assert "istory" not in words(page(views))
    assert "Seconds are wall clock" in words(page(views))


@pytest.mark.parametrize("claim", ["gdpr", "proof", "guarantee", "first", "compliant"])
def test_nothing_is_claimed_that_we_do_not_claim(five, claim: str):
    assert claim not in words(page(five)).lower()


def test_runs_that_differ_are_told_in_the_page(tmp_path: Path):
    paths = [write(tmp_path / f"{s}", "feduhb", series(3), seed=s) for s in (1, 2)]
    assert "These runs have different seeds: 1; 2." in words(page(read_runs(paths)))


def test_sections_without_a_chart_are_left_out(tmp_path: Path):
    said = words(page(read_runs([write(tmp_path / "t", None, series(3, backdoor=None))])))
    assert "Backdoor" not in said
    assert "Movement and the stop rule" not in said


def test_hostile_strings_stay_text(tmp_path: Path):
    paths = [
        write(
            tmp_path / f"{HOSTILE.replace('/', '')}{i}",
            "</script><b>",
            series(3),
            forget=HOSTILE,
            changes={"stopped": HOSTILE},
        )
        for i in range(2)
    ]
    document = without_plotly(page(read_runs(paths)))
    assert "<img" not in document
    assert "<b>" not in document
    assert document.count("</script>") == 2
    assert "&lt;img src=x onerror=alert(1)&gt;" in document


def test_hostile_strings_stay_text_in_the_charts_too(tmp_path: Path):
    paths = [write(tmp_path / f"{HOSTILE}{i}", "feduhb", series(3)) for i in range(2)]
    assert "<img" not in json.dumps(charts(read_runs(paths)))


def test_the_document_is_well_formed(views):
    open_tags: list[str] = []

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
            if tag not in {"meta", "link"}:
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Check().feed(without_plotly(page(views)))
    assert open_tags == []


def test_the_charts_are_what_plotly_takes(views, tmp_path: Path):
    silent = read_runs(story(tmp_path / "silent", scale=0.0))
    for some in (views, silent):
        for chart in charts(some).values():
            go.Figure(chart)


def test_every_chart_has_its_place_in_the_page(views):
    document = page(views)
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', document)
    assert found is not None
    assert list(json.loads(found[1])) == CHARTS
    for name in json.loads(found[1]):
        assert document.count(f'id="chart-{name}"') == 1


def test_the_movement_chart_marks_the_stop_and_its_reason(views):
    traces = charts(views)["movement"]["data"]
    assert [trace["name"] for trace in traces] == ["FedUHB", "FedUHB: threshold", "stop"]
    assert traces[2]["x"] == [views[1].fired]
    assert "fell below" in traces[2]["hovertemplate"]
