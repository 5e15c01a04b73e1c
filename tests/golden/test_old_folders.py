"""Run folders that earlier code wrote open, resume, chain, and can be audited and reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb import flower
from feduhb.cli import app
from feduhb.runs.lineage import read_lineage
from golden.make_folders import (
    LEAVER,
    RECOVER,
    SECOND,
    TOLD,
    draw_start,
    recover_over_flower,
    stage,
    train_over_flower,
    train_stacked,
    unlearn_again,
)
from golden.matrix import describe_machine, keep_quiet, list_changed_bits
from golden.reading import describe_history, digest_folder, digest_weights, read_records

FOLDERS = Path(__file__).with_name("folders")
EXPECTED = json.loads((FOLDERS / "expected.json").read_text())
WHOLE = 4  # rounds of a history that nothing was erased of


@pytest.fixture(scope="module", autouse=True)
def quiet():
    with keep_quiet():
        yield


@pytest.fixture
def place(tmp_path):
    """A copy of all the folders."""
    return shutil.copytree(FOLDERS, tmp_path / "folders")


@pytest.fixture(scope="module")
def same_machine(quiet):  # noqa: ARG001
    """Skip where the bits of weights may differ; an unfinished run is only resumed by the torch that began it."""
    if changed := list_changed_bits(EXPECTED["header"], describe_machine()):
        pytest.skip(f"the weights of old folders hold for another machine: {'; '.join(changed)}")


def invoke(*arguments):
    ended = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("name", "forgot"), [("original", None), ("original-feduhb", LEAVER), ("stacked", None)]
)
def test_a_finished_run_opens(place, name, forgot):
    run = feduhb.open_run(place / name)
    assert digest_weights(run.params) == digest_folder(place / name)
    assert [record.round for record in run.rounds] == [0, 1, 2, 3]
    assert [record.moved for record in run.rounds] == [r["moved"] for r in read_records(place / name)]
    assert (run.forgot and str(run.forgot)) == forgot
    assert (LEAVER in run.federation.clients) == (forgot is None)
    assert (run.history is None) == (name == "stacked")


def test_an_unfinished_run_does_not_open(place):
    for name in ("interrupted", "interrupted-fedrecover", "interrupted-stacked"):
        with pytest.raises(feduhb.FeduhbError):
            feduhb.open_run(place / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more"), [("interrupted", {}), ("interrupted-fedrecover", {"method": RECOVER})]
)
def test_an_interrupted_unlearning_is_resumed(place, same_machine, name, more):  # noqa: ARG001
    before = read_records(place / name)
    run = unlearn_again(feduhb.open_run(place / "original"), place / name, resume=True, **more)
    assert digest_weights(run.params) == EXPECTED["weights"][name] == digest_folder(place / name)
    assert read_records(place / name)[: len(before)] == before
    assert (place / name / "result.json").exists()
    assert len(describe_history(place / "original")) == WHOLE


def test_an_interrupted_stacked_run_is_resumed_with_its_own_block(place, same_machine):  # noqa: ARG001
    run = train_stacked(place / "interrupted-stacked", resume=True, block=None)
    assert digest_weights(run.params) == EXPECTED["weights"]["interrupted-stacked"]
    result = json.loads((place / "interrupted-stacked" / "result.json").read_text())
    assert result["engine"]["block"] == 2


def test_a_stacked_run_is_unlearned(place, same_machine):  # noqa: ARG001
    run = unlearn_again(feduhb.open_run(place / "stacked"), place / "new", block=2)
    assert digest_weights(run.params) == EXPECTED["weights"]["stacked-feduhb"]


def test_federaser_replays_an_old_history(place, same_machine):  # noqa: ARG001
    run = feduhb.unlearn(
        feduhb.open_run(place / "original"), [LEAVER], method="federaser", out=place / "new", show=None
    )
    assert digest_weights(run.params) == EXPECTED["weights"]["federaser"]
    assert describe_history(place / "original") == []


def test_a_second_request_reaches_both_old_histories(place):
    for name in ("original", "original-feduhb"):
        assert len(describe_history(place / name)) == WHOLE
    opened = feduhb.open_run(place / "original-feduhb")
    run = feduhb.unlearn(opened, [SECOND], rounds=3, out=place / "second", show=None)
    assert str(run.forgot) == f"{LEAVER},{SECOND}"
    assert describe_history(place / "original") == describe_history(place / "original-feduhb") == []
    earlier = read_lineage(place / "second")["earlier"]
    assert [one["run"] for one in earlier] == ["../original-feduhb", "../original"]
    again = feduhb.open_run(place / "second")
    assert digest_weights(again.params) == digest_weights(run.params)


def test_a_second_request_ends_with_the_same_weights(place, same_machine):  # noqa: ARG001
    opened = feduhb.open_run(place / "original-feduhb")
    run = feduhb.unlearn(opened, [SECOND], rounds=3, show=None)
    assert digest_weights(run.params) == EXPECTED["weights"]["second"]


def test_an_old_run_is_audited_again(place):
    changed = list_changed_bits(EXPECTED["header"], describe_machine())
    folder = place / "original-feduhb"
    old = json.loads((folder / "audit.json").read_text())
    few = ("--canaries", 0, "--relearn", 0)
    answer = invoke("audit", folder, "--original", place / "original", *few)["audits"][0]
    assert old["verdict"]["word"] == "forgotten"
    assert answer["verdict"]["word"] == ("inconclusive" if changed else "forgotten")
    differs = any("procedure does not give these weights here" in why for why in answer["verdict"]["reasons"])
    assert differs == bool(changed)
    assert set(old) <= set(answer)
    assert answer["weights_sha256"] == old["weights_sha256"]
    assert json.loads((folder / "audit.json").read_text()) == answer
    kept = [json.loads(path.read_text()) for path in folder.glob("audit-*.json")]
    assert kept == [old]


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_old_runs_are_reported_with_their_audit(place, tmp_path):
    runs = [place / name for name in ("original", "original-feduhb", "stacked", "flower-trained")]
    answer = invoke("report", *runs, "--out", tmp_path / "report")
    assert [run["rounds"] for run in answer["runs"]] == [4, 4, 4, 4]
    assert [run["audit"] for run in answer["runs"]] == [None, "forgotten", None, None]
    assert {"report.html", "table.md", "audit.md"} <= {path.name for path in (tmp_path / "report").iterdir()}


def test_a_command_serves_a_request_from_an_old_run(place):
    asked = ("--forget", f"{SECOND}:0-3", "--rounds", 2, "--out", place / "new")
    answer = invoke("unlearn", place / "original", *asked)
    assert answer["rounds"] == 2
    assert describe_history(place / "original") == []
    assert read_lineage(place / "original")["later"] == ["../new"]


def test_an_interrupted_flower_training_goes_on(place, same_machine):  # noqa: ARG001
    grid = stage()
    outcome = train_over_flower(place / "flower-interrupted", grid)
    assert digest_weights(outcome.params) == EXPECTED["weights"]["flower-interrupted"]
    asked = {config["round"] for _, kind, config in grid.sent if kind == "train"}
    assert asked == {2, 3}


def test_an_interrupted_flower_replay_goes_on_and_erases_at_its_end(place, same_machine):  # noqa: ARG001
    assert len(describe_history(place / "flower-trained")) == WHOLE
    outcome = recover_over_flower(place / "flower-trained", place / "flower-fedrecover")
    assert digest_weights(outcome.params) == EXPECTED["weights"]["flower-fedrecover"]
    assert describe_history(place / "flower-trained") == []


def test_flower_unlearns_from_an_old_training(place, same_machine):  # noqa: ARG001
    eraser = flower.FedEraser(
        [LEAVER], trained=place / "flower-trained", checkpoint=place / "new", **TOLD
    ).start(stage(), draw_start())
    assert digest_weights(eraser.params) == EXPECTED["weights"]["flower-federaser"]
    again = flower.FedUHB([SECOND], trained=place / "new", checkpoint=place / "second", **TOLD)
    outcome = again.start(stage(), draw_start(), 2)
    assert {client for record in outcome.rounds for client in record.asked} == {"c02", "c03"}
