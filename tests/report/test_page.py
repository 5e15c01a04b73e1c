"""The page as a document: what stands where, and that nothing in it can become markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

from feduhb.audit.result import Word
from feduhb.report import draw_figures
from feduhb.report.grids import Grid
from feduhb.report.page import SIGNS, Number, Section, render_page, render_report
from feduhb.report.runs import read_runs
from feduhb.report.words import format_number, headline
from feduhb.stopping import DynamicStop
from report.audits import attack, audit, bare, make_checks, put
from report.folders import COSTS, judged, rivals, series, story, unlabelled, write
from report.reading import first_screen, points, words

HOSTILE = "<script>alert('x')</script>"
TEMPLATES = Path(__file__).parents[2] / "src/feduhb/report/templates"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An original run and four methods, two of them audited."""
    folders = rivals(tmp_path_factory.mktemp("page"))
    told = audit(notes=["No held-out data of the leavers is there."])
    told["exactness"]["checks"][1]["identical"] = False
    told["verdict"]["reasons"].append("noise in place of the data")
    put(folders[1], told)
    put(
        folders[3],
        audit("not forgotten", membership=[attack(found="caught", unlearned=0.7)], weights_sha256="cd" * 32),
    )
    return render_report(read_runs(folders))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same story without audits and approximate methods."""
    return render_report(read_runs(story(tmp_path_factory.mktemp("plain"))))


def test_the_first_screen_has_headline_verdicts_and_numbers(five, document: str, plain: str):
    said, uhb = first_screen(document), five[1]
    assert said.startswith(f"Unlearning report {headline(five)}")
    assert "FedUHB ✓ forgotten exact Retrain – not audited exact" in said  # noqa: RUF001
    assert "FedEraser ✗ not forgotten (of other weights) approximate" in said
    assert f"FedUHB: rounds {uhb.fired} Retrain: 8" in said
    assert f"FedUHB: seconds {format_number(uhb.seconds)} Retrain: 16.0;" in said
    assert "FedUHB: test accuracy" in said
    assert "FedUHB: backdoor success 2.0% original: 92.0%, Retrain: 1.0%" in said
    assert "other weights than the run's were audited" in said
    assert "FedEraser and FedRecover are approximate" in said
    assert "notes" not in re.findall(r'<ul class="(\w+)"', plain)


@pytest.mark.parametrize(("backdoor", "audited", "said"), [
    (None, True, "AUC of the loss attack 0.505 Retrain: 0.497, original: 0.820"),
    (None, False, "FedUHB: MB down + up 9.00"),
])  # fmt: skip
def test_the_fourth_number_is_the_best_there_is(tmp_path: Path, backdoor: None, audited: bool, said: str):
    run = write(tmp_path / "u", "feduhb", series(3, backdoor=backdoor))
    if audited:
        put(run, audit())
    assert said in first_screen(render_report(read_runs([run])))


def test_training_alone_has_numbers_and_no_verdicts(tmp_path: Path):
    made = render_report(read_runs([write(tmp_path / "t", None, series(3, backdoor=None))]))
    said = words(made)
    assert "original: rounds 3 of 3 scheduled" in said
    assert 'class="verdicts"' not in made
    assert list(points(made)) == ["accuracy", "loss"]
    for title in ("Did it forget?", "The stop rule's map", "What λ does", "What β does", "More charts"):
        assert title not in said


def test_a_regression_shows_its_loss_first(tmp_path: Path):
    rounds = judged(unlabelled(series(12, rate=0.6)), DynamicStop(0.6))
    paths = [
        write(tmp_path / "train", None, unlabelled(series(8, backdoor=None))),
        put(write(tmp_path / "feduhb", "feduhb", rounds, scale=0.6), bare("forgotten") | {"distance": {}}),
        write(tmp_path / "retrain", "retrain", unlabelled(series(8, backdoor=None))),
    ]
    views = read_runs(paths)
    document = render_report(views)
    assert list(points(document))[:2] == ["loss", "movement"]
    assert "accuracy" not in points(document)
    first = first_screen(document)
    assert f"FedUHB: test loss {format_number(rounds[-1].scores['test_loss'])} Retrain: 0.00898" in first
    assert "accuracy" not in first
    assert "%" not in first
    map_ = document[document.index("chart-stop-map-0") :]
    assert "accuracy" not in words(map_[: map_.index("</figure>")])
    drawn = draw_figures(views)
    assert [axes.get_title(loc="left") for axes in drawn["overview"].axes] == [
        "Test loss",
        "Movement of the weights, ‖Δw‖",
    ]
    assert len(drawn["curves"].axes) == 1


def test_a_long_run_gives_a_pointer_few_points_and_the_last(tmp_path: Path):
    rounds = [
        replace(COSTS, round=t, moved=2 + t % 3, scores={"test_accuracy": t / 2000}) for t in range(1000)
    ]
    told = points(render_report(read_runs([write(tmp_path / "u", "feduhb", rounds)])))
    for chart in ("accuracy", "movement"):
        (line,) = told[chart]["series"]
        assert 200 < len(line["points"]) <= 301
        assert len({point[0] for point in line["points"]}) == len(line["points"]), "none hides another"
        assert [line["points"][at][3] for at in (0, -1)] == ["round 1", "round 1000"]
    assert all(
        point[2] == f"{(int(point[3][6:]) - 1) / 2000:.1%}"
        for point in told["accuracy"]["series"][0]["points"]
    )


def test_the_page_is_small_and_loads_nothing(document: str):
    assert len(document) < 600_000
    for mark in ("http:", "https:", 'src="', "@import", "//cdn", "<iframe", "<object"):
        assert mark not in document, mark
    assert set(re.findall(r'href="([^"#]*)', document)) == {"data:,", ""}
    assert set(re.findall(r"url\((.)", document)) == {"#"}, "clip paths of its own"
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', document)
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    assert "unsafe-eval" not in policy


def test_every_id_is_there_once_and_every_reference_has_one(document: str):
    ids = re.findall(r' id="([^"]+)"', document)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'href="#([^"]+)"', document)) | set(re.findall(r"url\(#([^)]+)\)", document))
    assert used <= set(ids)
    assert used


def test_the_document_is_well_formed(document: str):
    opened: list[str] = []

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
            if tag not in {"meta", "link"}:
                opened.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Check().feed(document)
    assert opened == []


def test_the_evidence_is_folded(document: str):
    assert "<details open" not in document
    folded = re.findall(r"<summary>(.*?)(?: <span|</summary>)", document)
    assert folded == [
        "FedUHB, asked to forget c00, c01", "FedEraser, asked to forget c00, c01", "More charts",
        "The stop rule&#39;s map", "What λ does", "What “exact” means here, and what it does not",
        "The runs: how each was made, and its config.toml", "original", "FedUHB", "Retrain", "FedEraser", "FedRecover",
    ]  # fmt: skip


def test_each_run_shows_how_it_was_made(document: str):
    said = words(document)
    assert document.count("ab" * 32) == 6, "five runs, and the audit of one"
    assert 'data = "digits"' in said
    for fact in (
        "engine name pool, device cpu, precision float32, threads 2", "versions feduhb 0.1.0, torch 2.13.0, python 3.11.7",
        "history replayed 12.5 MB", "history kept 12.5 MB", "method name feduhb, epochs 2", "parameters of the model 4,810",
    ):  # fmt: skip
        assert fact in said, fact


def test_an_audit_shows_its_parts(document: str):
    said = words(document)
    for part in ("Membership attacks", "MISR, as in the paper", "Backdoor", "Accuracy", "Remaining clients",
                 "Distance to Retrain", "Relearn time", "Cost", "How this audit was made"):  # fmt: skip
        assert part in said, part
    for number in ("0.505 [0.474, 0.536]", "not within 10", "seed 1", "shadows 16", "−0.4, +0.9"):  # noqa: RUF001
        assert number in said, number
    assert "No held-out data of the leavers is there." in said
    assert (
        "✓ done again, nothing changed ✗ noise in place of the data ✓ a federation that never had it" in said
    )
    assert document.count('aria-label="different">✗<') == 1
    card = said[said.index("FedUHB, asked to forget") : said.index("FedEraser, asked to forget")]
    assert card.count("noise in place of the data") == 1, "a reason that is a check stands once"


def test_the_signs_of_checks_are_read_aloud_as_what_they_mean(tmp_path: Path):
    exactness = make_checks("noise", "draw", "nudge", failed=("nudge",))
    folder = put(write(tmp_path / "u", "feduhb", series(4)), audit(exactness=exactness))
    page = render_report(read_runs([folder]))
    signs = re.findall(r'aria-label="(\w+)">([✓✗])</span> (what \w+ found)', page)
    assert signs == [
        ("identical", "✓", "what noise found"),
        ("passed", "✓", "what draw found"),
        ("failed", "✗", "what nudge found"),
    ]
    assert "to the last bit" not in words(page[page.index("<h4>Exactness") :][:40])


def test_the_limits_are_stated(document: str):
    said = words(document)
    for limit in ("If a control fails, the attack is inconclusive", "copies of the old one", "not evidence that the data is gone",
                  "It is not the model that FedAvg gives", "keep this page with the same care"):  # fmt: skip
        assert limit in said, limit
    for claim in ("gdpr", "proof", "guarantee", "compliant"):
        assert claim not in said.lower()


@pytest.mark.parametrize("word", [*get_args(Word), "not audited"])
def test_every_verdict_has_a_sign_and_its_colour(word: str):
    assert word in SIGNS
    coloured = set(re.findall(r"\.badge\.([a-z-]+)", (TEMPLATES / "page.css").read_text()))
    assert (word.replace(" ", "-") in coloured) == (word not in {"inconclusive", "not audited"}), (
        "these keep the grey"
    )


def test_forgotten_stands_only_where_the_audit_says_it(tmp_path: Path):
    found = audit("not caught", membership=[])
    folder = put(write(tmp_path / "u", "feduhb", series(3)), found)
    said = words(render_report(read_runs([folder])))
    assert "not caught" in said
    first = first_screen(render_report(read_runs([folder])))
    assert "forgotten" not in re.sub(r"(the|all) forgotten data|forgotten data", "", first)
    assert "✓ forgotten" not in said


def test_missing_parts_of_an_audit_are_left_out(tmp_path: Path):
    document = render_report(read_runs([put(write(tmp_path / "u", "feduhb", series(3)), bare())]))
    said = words(document)
    assert "? inconclusive" in said
    assert "Whether the weights are exact was not checked." in said
    assert not {"auc-0", "clients-0"} & set(points(document))
    assert "Membership attacks" not in said


def test_a_pointer_is_told_the_numbers_of_the_runs(document: str, five):
    told = points(document)["accuracy"]
    assert told["head"]
    assert [line["name"] for line in told["series"]] == [view.label for view in five]
    for line, view in zip(told["series"], five, strict=True):
        assert [point[2] for point in line["points"]] == [f"{value:.1%}" for value in view.accuracy]
        assert [point[3] for point in line["points"]] == [f"round {n + 1}" for n in range(len(view.rounds))]
        assert [point[0] for point in line["points"]] == sorted(point[0] for point in line["points"])
        assert line["points"][0][1] > line["points"][-1][1], "a higher value stands higher up"


def test_hostile_strings_stay_text(tmp_path: Path):
    told = audit(
        verdict={"word": "useless", "reasons": [HOSTILE, HOSTILE]},
        exactness={"exact": False, "checks": [{"name": "noise", "says": HOSTILE, "identical": False, "largest_difference": 0.5}]},
        membership=[attack(HOSTILE, HOSTILE) | {"says": HOSTILE}],
        misr={"attackers": {HOSTILE: audit()["misr"]["attackers"]["boosted trees"]}, "says": HOSTILE},
        backdoor=audit()["backdoor"] | {"says": HOSTILE},
        clients={"on": HOSTILE, "rows": [{"client": f"{HOSTILE}\x00", "examples": 1, "before": 0.5, "after": 0.6, "retrain": None}]},
        settings={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        notes=[HOSTILE],
        finished=HOSTILE,
        forgot=HOSTILE,
    )  # fmt: skip
    folders = [
        put(
            write(
                tmp_path / f"<script>{i}",
                "</script><b>",
                series(4),
                forget=HOSTILE,
                changes={"stopped": HOSTILE},
            ),
            told,
        )
        for i in range(2)
    ]
    document = render_report(read_runs(folders))
    data = len(points(document))
    assert document.count("<script") == document.count("</script>") == data + 1, (
        "each chart's values, and the page's own"
    )
    assert data > 5
    assert "&lt;script&gt;alert(&#39;x&#39;)" in document
    assert "<script>alert" not in document


def test_other_reports_get_the_same_look():
    grid = Grid("t", ["run", "model"], [["a", "x<y"], ["a", "z"]], frozenset({0}))
    sections = [
        Section("One", ["a phrase"], grid=grid),
        Section("Two", ["b", "c"], points={"claim": "reason"}, facts={"seed": 1}, folded=True),
    ]
    document = render_page("A title", "A headline & more", sections, [Number("rounds", "3", "of 4")])
    said = words(document)
    assert said.startswith("A title A title A headline & more rounds 3 of 4 One a phrase")
    assert said.endswith("Two b c claim reason seed 1")
    cells = '<td class="text name" rowspan="2" data-head="run">a</td><td data-head="model">x&lt;y</td>'
    assert cells in document
    assert document.count("<details>") == 1
