"""An audit does the steps that it announces: one list for the work and for the progress bar."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

import feduhb
from audit.auditing import Replays, draw_federation
from feduhb.audit.attacks import membership, misr
from feduhb.audit.audit import audit, audit_all
from feduhb.audit.controls import Step, carry_out
from feduhb.audit.result import Audit
from feduhb.runs.run import Run

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


def strip(found: Audit) -> dict[str, Any]:
    """What an audit found, without seconds and dates."""
    said = json.loads(found.to_json())
    for cost in said["cost"].values():
        cost.pop("seconds")
    return {key: value for key, value in said.items() if key not in {"seconds", "finished"}}


def test_runs_share_engine_answers_and_attackers_and_are_found_as_alone(monkeypatch):
    """Each model is attacked once by each attacker, and the original's clients relearn every model with one engine."""
    federation = draw_federation(dict.fromkeys(SIZES, 30), held=20)
    trained = feduhb.train(federation, 2, **HOW)
    runs = [unlearned(trained, method) for method in ("retrain", "feduhb", "fednadam")]
    how: dict[str, Any] = {"retrain": runs[0], "exactness": False, "relearn": 2, "show": None}
    alone = [strip(audit_all([run], trained, **how)[0]) for run in runs]
    counted = Counter[str]()

    def count(kind: Any, name: str) -> None:
        plain = getattr(kind, name)

        def call(*given: Any, **more: Any) -> Any:
            counted[name] += 1
            return plain(*given, **more)

        monkeypatch.setattr(kind, name, call)

    count(misr.Attackers, "rate_all")
    count(Run, "make_engine")
    count(membership, "score_losses")
    assert [strip(one) for one in audit_all(runs, trained, **how)] == alone
    # The models: original, Retrain (also audited itself) and two others; the rehearsal's, its original and its own runs.
    assert counted["rate_all"] == 4
    assert counted["make_engine"] == 3  # of the original, of Retrain, and of the rehearsal's original
    assert counted["score_losses"] == 4 + len({"rehearsal", "retrain", "feduhb", "fednadam"})
    assert alone[0]["misr"] is not None


def test_misr_can_be_left_out(trained):
    run = unlearned(trained)
    how: dict[str, Any] = {"exactness": False, "canaries": 0, "relearn": 0, "show": None}
    [whole], [part] = (audit_all([run], trained, misr=asked, **how) for asked in (True, False))
    assert part.misr is None
    [note] = {*part.notes} - {*whole.notes}
    assert note == "MISR was not measured: the audit was asked to leave it out."
    same = [{**strip(one), "misr": None, "notes": None} for one in (whole, part)]
    assert same[0] == same[1]


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
