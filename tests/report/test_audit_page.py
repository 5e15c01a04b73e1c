from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import plotly.graph_objects as go
import pytest

from feduhb.audit.result import Word
from feduhb.report.audit_page import SIGNS, badge
from feduhb.report.charts import charts
from feduhb.report.html import page
from feduhb.report.runs import read_runs
from report.audits import attack, audit, bare, put
from report.folders import rivals, series, story, write
from report.reading import without_plotly, words

HOSTILE = "<script>alert('x')</script>"


def audited(tmp_path: Path, told: dict[str, object]) -> str:
    folders = story(tmp_path)
    put(folders[1], told)
    return without_plotly(page(read_runs(folders)))


def test_the_question_stands_high_up(tmp_path: Path):
    said = words(audited(tmp_path, audit()))
    assert said.index("Did it forget?") < said.index("What it took, and what came out")
    assert "Did it forget?" not in words(page(read_runs(story(tmp_path / "none"))))


@pytest.mark.parametrize("word", get_args(Word))
def test_the_verdict_is_a_word_with_a_sign_and_a_colour(tmp_path: Path, word: Word):
    document = audited(tmp_path, audit(word))
    assert f'<span class="badge {word.replace(" ", "-")}">{SIGNS[word]} {word}</span>' in document
    assert "Both checks gave the same weights to the last bit." in document


def test_every_verdict_but_the_undecided_has_its_colour():
    style = (Path(__file__).parents[2] / "src/feduhb/report/page.css").read_text()
    named = set(re.findall(r"\.badge\.([a-z-]+)", style))
    assert named == {word.replace(" ", "-") for word in get_args(Word)} - {"inconclusive"}, (
        "which keeps the grey"
    )


def test_exactness_is_a_list_of_signs_and_words(tmp_path: Path):
    told = audit()
    told["exactness"]["checks"][1]["identical"] = False
    said = words(audited(tmp_path, told))
    assert (
        "✓ done again, nothing changed ✗ noise in place of the data ✓ a federation that never had it" in said
    )


def test_what_a_verdict_rests_on_stands_in_front(tmp_path: Path):
    exact, told = words(audited(tmp_path / "exact", audit())), audit("not caught")
    told["exactness"]["exact"] = False
    attacked = words(audited(tmp_path / "attacked", told))
    assert exact.index("done again") < exact.index("Both checks gave")
    assert attacked.index("Both checks gave") < attacked.index("done again")


def test_signs_have_words_for_those_who_cannot_see_them(tmp_path: Path):
    told = audit()
    told["exactness"]["checks"][1]["identical"] = False
    document = audited(tmp_path, told)
    assert document.count('aria-label="identical">✓<') == 2
    assert document.count('aria-label="different">✗<') == 1


def test_a_reason_that_is_a_check_is_told_once(tmp_path: Path):
    told = audit()
    told["verdict"]["reasons"].append("noise in place of the data")
    said = words(audited(tmp_path, told))
    assert said.count("noise in place of the data") == 1
    assert "Both checks gave the same weights to the last bit." in said


def test_what_the_audit_notes_is_shown(tmp_path: Path):
    said = words(audited(tmp_path, audit(notes=["No held-out data of the leavers is there."])))
    assert "No held-out data of the leavers is there." in said


def test_every_part_is_there_and_explained(tmp_path: Path):
    said = words(audited(tmp_path, audit()))
    for title in ("Membership attacks", "MISR, as in the paper", "Backdoor", "Accuracy", "Those who stayed",
                  "Distance to Retrain", "Relearn time", "Cost", "How this audit was made"):  # fmt: skip
        assert title in said, title
    for line in ("0.5 is a coin", "on test data", "is the floor", "not within 10", "seed 1", "shadows 16"):
        assert line in said, line


def test_missing_parts_are_left_out(tmp_path: Path):
    document = audited(tmp_path, bare())
    said = words(document)
    assert "? inconclusive" in said
    assert "Whether the weights are exact was not checked." in said
    for title in ("Membership attacks", "MISR", "Those who stayed", "Relearn time"):
        assert title not in said, title
    assert 'id="chart-auc-0"' not in document
    assert 'id="chart-clients-0"' not in document


def test_one_audit_needs_no_summary_and_two_have_one(tmp_path: Path):
    assert "membership attacks" not in words(audited(tmp_path / "one", audit()))
    folders = rivals(tmp_path / "two")
    put(folders[1], audit())
    put(folders[3], audit("not forgotten", membership=[attack(found="caught", unlearned=0.7)]))
    document = without_plotly(page(read_runs(folders)))
    said = words(document)
    assert said.index("membership attacks") < said.index("asked to forget")
    assert document.count('<article class="card">') == 2
    assert document.count("<details open>") == 1, "the evidence in front"
    assert document.count('class="badge not-forgotten"') == 2
    for name in ("auc-0", "clients-0", "auc-1", "clients-1"):
        assert document.count(f'id="chart-{name}"') == 1


def test_marks_in_the_summary_stay_text(tmp_path: Path):
    told = audit(membership=[attack("a & b; c", "<d>"), attack("e", "f")])
    folders = [put(write(tmp_path / f"{i}", "feduhb", series(4)), told) for i in range(2)]
    assert "a &amp; b; c, &lt;d&gt;: not caught<br>e, f: not caught" in page(read_runs(folders))


def test_an_audit_of_other_weights_is_noted(tmp_path: Path):
    document = audited(tmp_path, audit(weights_sha256="cd" * 32))
    card = document[document.index("<article") : document.index("</article>")]
    assert "this audit is of other weights" in card
    assert "✓ forgotten (of other weights)</span>" in card
    assert "this audit is of other weights" not in audited(tmp_path / "own", audit())


def test_hostile_strings_stay_text(tmp_path: Path):
    told = audit(
        verdict={"word": "useless", "reasons": [HOSTILE, HOSTILE]},
        exactness={"exact": False, "checks": [{"name": "noise", "says": HOSTILE, "identical": False, "largest_difference": 0.5}]},
        membership=[attack(HOSTILE, HOSTILE) | {"says": HOSTILE}],
        misr={"attackers": {HOSTILE: audit()["misr"]["attackers"]["boosted trees"]}, "says": HOSTILE},
        backdoor=audit()["backdoor"] | {"says": HOSTILE},
        clients={"on": HOSTILE, "rows": [{"client": HOSTILE, "examples": 1, "before": 0.5, "after": 0.6, "retrain": None}]},
        settings={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        notes=[HOSTILE],
        finished=HOSTILE,
        forgot=HOSTILE,
    )  # fmt: skip
    folders = [
        put(write(tmp_path / f"<script>{i}", "feduhb", series(4), forget=HOSTILE), told) for i in range(2)
    ]
    document = without_plotly(page(read_runs(folders)))
    assert document.count("<script") == 2, "the charts and the drawing"
    assert document.count("</script>") == 2
    assert "&lt;script&gt;alert(&#x27;x&#x27;)" in document
    assert "<script" not in json.dumps(charts(read_runs(folders)))


def test_the_charts_are_what_plotly_takes(tmp_path: Path):
    folders = story(tmp_path)
    put(folders[1], audit(staying=60))
    drawn = charts(read_runs(folders))
    assert {"auc-0", "clients-0"} <= set(drawn)
    for chart in drawn.values():
        go.Figure(chart)


@pytest.mark.parametrize("claim", ["gdpr", "proof", "guarantee", "first", "compliant"])
def test_nothing_is_claimed_that_we_do_not_claim(tmp_path: Path, claim: str):
    assert claim not in words(audited(tmp_path, audit())).lower()


def test_forgotten_is_said_only_where_the_audit_says_it(tmp_path: Path):
    told = audit("not caught")
    told["membership"] = []
    said = words(audited(tmp_path, told))
    said = said[said.index("Did it forget?") : said.index("What it took")]
    names = re.sub(r"(the|all) forgotten data|forgotten data", "", said)
    assert "forgotten" not in names
    assert "forgot" not in names.replace("asked to forget", "").replace("Did it forget?", "")


def test_a_badge_is_escaped():
    assert (
        badge("forgotten", "forgotten (of <b>)")
        == '<span class="badge forgotten">✓ forgotten (of &lt;b&gt;)</span>'
    )
