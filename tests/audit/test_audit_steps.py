"""An audit does the steps that it announces: one list for the work and for the progress bar."""

from __future__ import annotations

import re
from typing import Any

import pytest

import feduhb
from audit.auditing import Replays, draw_federation
from feduhb.audit.audit import audit, audit_all
from feduhb.audit.controls import Step, carry_out

SIZES = {"ant": 6, "bee": 7, "cat": 8, "dog": 9}
ERASER = feduhb.FedEraser(interval=1, epochs=1)
HOW = {"epochs": 1, "batch_size": 4, "lr": 0.05, "engine": "loop", "show": None}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps") / "run"
    return feduhb.train(draw_federation(SIZES), 2, out=folder, keep_history=True, **HOW)


def unlearned(trained, method: Any = "feduhb"):
    return feduhb.unlearn(trained, ["bee"], method=method, rounds=2, erase_history=False, show=None)


def announced(capsys) -> tuple[list[int], list[int], list[str]]:
    """Return the number, the total and the name of every step that was shown."""
    lines = re.findall(r"^audit (\d+)/(\d+)  (.*)$", capsys.readouterr().err, re.MULTILINE)
    return [int(n) for n, _, _ in lines], [int(total) for _, total, _ in lines], [name for *_, name in lines]


def test_the_steps_of_a_whole_audit_in_order(trained, capsys):
    audit(unlearned(trained), shadows=4, relearn=2, show="lines")
    numbers, totals, names = announced(capsys)
    assert names == [
        "original: training",
        "retrain",
        "noise: training",
        "noise-feduhb: unlearning",
        "never-feduhb",
        "beginning of feduhb",
        "rehearsal: training",
        *(f"shadow-feduhb {shadow} of 4" for shadow in range(1, 5)),
        *(f"shadow-retrain {shadow} of 4" for shadow in range(1, 5)),
        "attacks on feduhb",
        "relearning: unlearned",
        "relearning: retrain",
    ]
    assert numbers == list(range(1, len(names) + 1))
    assert set(totals) == {len(names)}  # known from the first step on


def test_controls_that_were_given_are_not_counted(trained, capsys):
    run, retrain = unlearned(trained), unlearned(trained, "retrain")
    audit(run, trained, retrain=retrain, canaries=0, relearn=0, show="lines")
    _, totals, names = announced(capsys)
    checks = ["noise: training", "noise-feduhb: unlearning", "never-feduhb", "beginning of feduhb"]
    assert names == [*checks, "attacks on feduhb"]
    assert totals == [5] * 5


def test_runs_share_their_steps(trained, capsys):
    runs = [unlearned(trained, method) for method in ("feduhb", "retrain", ERASER)]
    audit_all(runs, trained, relearn=0, shadows=4, show="lines")
    numbers, totals, names = announced(capsys)
    assert names.count("retrain") == names.count("noise: training") == names.count("rehearsal: training") == 1
    assert names.count("shadow-retrain 1 of 4") == names.count("shadow-feduhb 1 of 4") == 1
    assert {"again-federaser: unlearning", "rehearsal-federaser: unlearning", "never: training"} <= set(names)
    assert numbers == list(range(1, len(names) + 1))
    assert set(totals) == {len(names)}


def test_a_step_that_was_not_foreseen_makes_the_total_grow(trained, capsys):
    """A method that calls itself exact and is not is unlearned once more, and so is its rehearsal."""
    audit(unlearned(trained, Replays()), trained, relearn=0, show="lines")
    numbers, totals, names = announced(capsys)
    assert {"again-replays: unlearning", "rehearsal-replays: unlearning"} <= set(names)
    assert numbers == list(range(1, len(names) + 1))
    assert totals[0] < totals[-1] == numbers[-1]


def test_steps_are_carried_out_where_they_are_needed_when_their_turn_comes():
    done: list[str] = []
    steps = [
        Step("one", lambda _: done.append("one")),
        Step("after one", lambda _: done.append("after one"), is_needed=lambda: "one" in done),
        Step("without one", lambda _: done.append("without one"), is_needed=lambda: "one" not in done),
    ]
    carry_out(steps)
    assert done == ["one", "after one"]
    assert not steps
