"""The model card: made from the run folder alone, true, and safe to show."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from feduhb.errors import RunFolderError
from feduhb.report.card import make_card
from report.audits import audit, put
from report.folders import series, story, write


@pytest.fixture
def unlearned(tmp_path: Path) -> Path:
    return story(tmp_path)[1]


def read_front(card: str) -> list[str]:
    """Return the lines between the two rules at the beginning."""
    assert card.startswith("---\n")
    return card.split("---\n")[1].splitlines()


def test_an_exact_unlearning(unlearned):
    card = make_card(unlearned)
    assert read_front(card) == [
        "library_name: pytorch", "tags:", "- federated-learning", "- feduhb", "- machine-unlearning",
    ]  # fmt: skip
    assert (
        "\n# FedUHB without c00, c01\n\nExact, as its method declares: retrained from a fresh model without"
        in card
    )
    for row in (
        "| method | FedUHB |",
        "| forgotten | c00, c01 |",
        "| came from the run | not recorded |",
        "| data | digits, clients 4 |",
        "| seed | 1 |",
        "| start | a fresh model, drawn from the seed |",
        f"| SHA-256 of the weights | {'ab' * 32} |",
        "| stop rule | scale 0.6 |",
        "| engine | name pool, device cpu, precision float32, threads 2 |",
        "| versions | feduhb 0.1.0, torch 2.13.0, python 3.11.7 |",
        "| test accuracy | ",
    ):
        assert row.replace("_", "\\_") in card
    assert "ended because | movement " in card
    assert "4 clients took part. They were not sampled: a round asked all of them." in card
    assert "No audit of this model is recorded: whether it forgot was not checked." in card
    assert "Retire the model that this one replaces" in card


def test_a_training_has_forgotten_nothing(tmp_path):
    card = make_card(story(tmp_path)[0])
    assert "machine-unlearning" not in card
    assert "# A federated model\n\nNothing was forgotten" in card
    assert "The run has forgotten nothing, so there is nothing to audit." in card
    assert "came from" not in card
    assert "Retire the model" not in card
    assert "| rounds | 8 of 8 scheduled |\n| ended because | all 8 scheduled rounds were run |" in card


def test_an_approximate_method_is_not_called_exact(tmp_path):
    card = make_card(write(tmp_path / "eraser", "federaser", series(4)))
    assert "Approximate, not exact: the method uses what the forgotten data helped to make" in card
    assert "declares" not in card


def test_the_audit_with_reasons_and_date(unlearned):
    found = audit()
    put(unlearned, {**found, "verdict": {"word": "forgotten", "reasons": ["One *reason*.", "Another."]}})
    said = (
        f"Verdict of {found['finished'][:10]}: **forgotten**\n\n- One \\*reason\\*.\n- Another.\n\n## Limits"
    )
    assert said in make_card(unlearned)


def test_an_audit_of_other_weights_is_not_its_audit(unlearned):
    put(unlearned, {**audit(), "weights_sha256": "cd" * 32})
    card = make_card(unlearned)
    assert "other weights than the run's were audited" in card
    assert "Verdict of" not in card


def test_clients_with_the_same_numbers_share_a_row_and_many_are_counted(tmp_path):
    many = tuple(f"c{i:03d}" for i in range(30))
    rounds = [
        replace(
            record, asked=many[:25] if record.round else many[:1], answered=many[:25] if record.round else ()
        )
        for record in series(3)
    ]
    card = make_card(write(tmp_path / "run", "retrain", rounds, changes={"clients": [*many]}))
    assert "30 clients took part. A round asked 1 to 25 of them." in card
    assert "| c000 | 3 | 2 |" in card
    assert "c020 and 4 more | 2 | 2 |" in card
    assert "| c025, c026, c027, c028, c029 | 0 | 0 |" in card


def test_rounds_that_asked_nobody_are_counted(tmp_path):
    rounds = [replace(record, asked=(), answered=()) if record.round else record for record in series(3)]
    assert "a round asked all of them. 2 rounds asked nobody." in make_card(
        write(tmp_path / "r", "fedrecover", rounds)
    )


def test_a_given_start_is_declared(unlearned):
    said = "The start was given, not drawn (SHA-256 ef): the operator declares that these weights are public."
    result = json.loads((unlearned / "result.json").read_text())
    (unlearned / "result.json").write_text(
        json.dumps({**result, "start": said, "came_from": ["12" * 32, "34" * 32]})
    )
    config = (unlearned / "config.toml").read_text()
    start = '\n[start]\ngiven = true\nsha256 = "ef"\ncarried = ["body.weight"]\ncarried_sha256 = "99"\n'
    (unlearned / "config.toml").write_text(config.replace('data = "digits"\n', "") + start)
    card = make_card(unlearned)
    assert "retrained from the given start without" in card
    assert f"| start | {said} |" in card
    assert "| carried as given, never trained | body.weight (SHA-256 99) |" in card
    assert f"| came from the run | config.toml with the SHA-256 {'12' * 32}, which came from 1 more |" in card
    assert "| data | own data, which the run folder does not name |" in card


def test_names_cannot_write_markdown_html_or_front_matter(tmp_path):
    bad = ("<script>alert(1)</script>", "a|b", "[x](http://evil.example)", "---", "new\nline", "turn\u202eed")
    rounds = [replace(record, asked=bad, answered=bad) for record in series(2)]
    folder = write(
        tmp_path / "run", "retrain", rounds, changes={"clients": [*bad], "stopped": "why\n\n# Certified\n<b>"}
    )
    card = make_card(folder)
    assert "<script" not in card.replace("\\<script", "")
    assert "\n# Certified" not in card
    assert "\u202e" not in card
    assert "](http:" not in card
    assert len(read_front(card)) == 5
    (row,) = [line for line in card.splitlines() if "alert" in line]
    assert row.replace("\\|", "").count("|") == 4, "a name cannot begin another cell"


def test_neither_torch_nor_the_data_is_needed(unlearned):
    code = "import sys\nfrom feduhb.report.card import make_card\nmake_card(sys.argv[1])\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, unlearned], check=True)


def test_an_unfinished_run_has_no_card(unlearned):
    (unlearned / "result.json").unlink()
    with pytest.raises(RunFolderError, match="has not finished"):
        make_card(unlearned)
