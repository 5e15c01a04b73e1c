"""`feduhb status`: what is left of whom, whatever state the folders are in, and what to do next."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feduhb.cli import app
from feduhb.runs import read_status
from feduhb.runs.lineage import read_erased
from runs import retiring

GOLDEN = Path(__file__).parents[1] / "golden" / "folders"
CONFIG = """
seed = 4
[federation]
data = "digits"
clients = 4
per_client = 24
model = "softmax"
[train]
rounds = 1
epochs = 1
lr = 0.2
keep_history = true
"""


def invoke(*arguments: object, code: int = 0) -> str:
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    assert ended.exit_code == code, ended.output
    assert ended.exception is None or isinstance(ended.exception, SystemExit)
    return ended.output


def unlearn(run: str, forget: str, out: str) -> None:
    invoke("unlearn", run, "--forget", forget, "--rounds", 1, "--out", out)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A training with a history, a copy of it, and a run that has forgotten c01."""
    place = tmp_path_factory.mktemp("status")
    (place / "config.toml").write_text(CONFIG)
    invoke("train", place / "config.toml", "--out", place / "runs" / "first")
    shutil.copytree(place / "runs" / "first", place / "runs" / "old" / "copy")
    unlearn(str(place / "runs" / "first"), "c01", str(place / "runs" / "second"))
    return place / "runs"


@pytest.fixture
def runs(made, tmp_path, monkeypatch) -> Path:
    """These runs, in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, "runs")
    return Path("runs")


def lines(*arguments: object, code: int = 0) -> list[str]:
    return [line.strip(" │├└─") for line in invoke("status", *arguments, code=code).splitlines()]


def by_name(*arguments: object) -> dict[str, dict[str, Any]]:
    found = json.loads(invoke("status", *arguments, "--json"))
    return {Path(run["path"]).name: run for run in found["runs"]}


def test_who_came_from_whom_and_what_each_still_holds(runs):
    said = invoke("status", runs).splitlines()
    assert said[0] == "first  superseded by second"
    assert said[1].startswith("├── holds c01: model 2.78 kB, records ")
    assert said[2].startswith("├── erased on 20")
    assert " for second: rounds 0 to 0 of its history, " in said[2]
    assert said[3] == "└── second  finished, feduhb without c01"
    assert said[4] == "old/copy  finished"
    assert said[5].startswith("└── holds c01: model 2.78 kB, history of 1 round, ")
    assert "Of c01 something is left in first, old/copy." in said
    assert all(len(line) <= 80 for line in said)


def test_what_to_do_next_is_in_order_and_can_be_typed(runs):
    said = lines(runs)
    assert said[said.index("Next") + 1 :] == [
        "1. audit second: before first is retired",
        "feduhb audit runs/second --original runs/first",
        "2. retire first: second replaces it",
        "feduhb retire runs/first",
        "3. retire old/copy: second replaces it",
        "feduhb retire runs/old/copy --replaced-by runs/second",
    ]


@pytest.mark.slow
def test_after_every_step_nothing_is_left(runs):
    """Until then --check exits with 1. The audit is real."""
    for _ in range(8):
        steps = json.loads(invoke("status", runs, "--json"))["steps"]
        if not steps:
            break
        invoke("status", runs, "--check", code=1)
        fast = ["--canaries", "0", "--relearn", "0"] if steps[0]["what"] == "audit" else []
        invoke(*steps[0]["command"].split()[1:], *fast)
    said = lines(runs, "--check")
    assert "Nothing of c01 is left in these runs." in said
    assert "Next" not in said
    assert any(line.startswith("first  retired on 20") for line in said)
    (audited,) = (line for line in said if line.startswith("audited on 20"))
    assert audited.endswith(" about c01: forgotten")
    # What comes back into a retired folder is found.
    shutil.copy(runs / "second" / "state.safetensors", runs / "first")
    said = lines(runs, "--check", code=1)
    assert "holds c01: checkpoint 2.78 kB (although it was retired)" in said
    assert "1. delete first: it was retired, but files of it are there again" in said
    (runs / "first" / "state.safetensors").unlink()
    (runs / "first" / "exported.pt").touch()
    assert "not written by feduhb: exported.pt" in lines(runs)
    # Weights that were exchanged are not those of the audit.
    audit = json.loads((runs / "second" / "audit.json").read_text())
    (runs / "second" / "audit.json").write_text(json.dumps({**audit, "weights_sha256": "0" * 64}))
    assert any(line.endswith(": forgotten, but of other weights") for line in lines(runs))


def test_of_one_client_that_nobody_has_forgotten_yet(runs):
    said = lines(runs, "--of", "c02")
    assert "Of c02 something is left in first, old/copy, second." in said
    assert said[-2:] == [
        "1. unlearn second: no run has forgotten c02",
        "feduhb unlearn runs/second --forget c02",
    ]


def test_the_run_that_replaced_a_retired_one_takes_the_next_request(runs):
    invoke("retire", runs / "first", "--unaudited", "a test")
    assert "feduhb unlearn runs/second --forget c02" in lines(runs, "--of", "c02")


def test_a_comparison_of_a_later_request_serves_nobody(runs):
    """The model in use holds the client that was compared, and is not to be deleted because of that."""
    how = ["--methods", "retrain", "--rounds", 1, "--out", runs / "tried"]
    invoke("compare", runs / "first", "--forget", "c02", *how)
    steps = read_status("runs").steps
    assert "runs/second" not in {str(step.path) for step in steps if step.what == "delete"}
    [serve] = [step for step in steps if step.what == "unlearn"]
    assert serve.command == "feduhb unlearn runs/second --forget c02"
    assert serve.says == "only a comparison has forgotten c02; if it asked to be forgotten, serve the request"


def test_of_rows_and_of_a_class(runs):
    unlearn("runs/second", "c02:0-3,class:3", "runs/third")
    found = {one.request: one for one in read_status(runs).leavers}
    assert [*found] == ["c01", "c02:0-3", "class:3"]
    there = [path.name for path in found["c02:0-3"].held_by]
    assert there == ["first", "copy", "second"]
    assert [path.name for path in found["class:3"].held_by] == there
    assert "Of c02:0-1 something is left in first, old/copy, second." in lines(runs, "--of", "c02:0-1")
    assert "Of c02 something is left in first, old/copy, second, third." in lines(runs, "--of", "c02")


def test_a_mistyped_client_is_no_all_clear(runs):
    said = invoke("status", runs, "--of", "c10", "--check", code=2)
    assert "none of these runs knows 'c10'; they know c00, c01, c02, c03; check the name" in said


def test_one_run_is_shown_with_its_lineage(runs):
    assert "Of c01 something is left in first." in lines(runs / "second")


def test_a_run_elsewhere_that_the_lineage_names_is_shown(runs):
    unlearn(f"{runs}/second", "c02", "elsewhere/third")
    said = lines("elsewhere")
    assert any(line.startswith("runs/second  superseded by ") for line in said)
    assert "Of c02 something is left in runs/first, runs/second." in said


def test_a_second_training_on_the_same_data_is_known_by_its_data(runs):
    (runs / "config.toml").write_text(CONFIG.replace("lr = 0.2", "lr = 0.1"))
    invoke("train", runs / "config.toml", "--out", runs / "again")
    (runs / "config.toml").write_text(CONFIG.replace("seed = 4", "seed = 5"))
    invoke("train", runs / "config.toml", "--out", runs / "other")
    found = by_name(runs)
    assert [one["reason"] for one in found["again"]["holds"]] == ["data"]
    assert [one["reason"] for one in found["other"]["holds"]] == ["name"]
    assert "Of c01 something may be left in other." in lines(runs)


def test_audit_work_holds_what_the_run_has_forgotten(runs):
    (runs / "second" / "audit-work").mkdir()
    (runs / "second" / "audit-work" / "model").write_bytes(bytes(10))
    said = lines(runs)
    assert "holds c01: audit work 10 bytes" in said
    at = said.index("4. delete second/audit-work: this command lists what it deletes, and asks first")
    assert said[at + 1].endswith(" --siblings")


def test_an_interrupted_erasure_is_the_first_thing_to_finish(runs):
    (runs / "second" / "result.json").unlink()
    (one,) = read_erased(runs / "first")
    (runs / "first" / "erased.json").write_text(json.dumps([asdict(replace(one, finished=None))]))
    said = lines(runs)
    assert "erasing rounds 0 to 0 of its history for second was interrupted" in said
    at = said.index("Next")
    assert said[at + 1].startswith("1. resume second: its erasure was interrupted; ")
    command = "feduhb unlearn runs/first --forget c01 --out runs/second --resume"
    assert command in said
    assert not any("audit second" in line for line in said)
    invoke(*command.split()[1:], "--rounds", 1)
    assert "resume" not in invoke("status", runs)


def break_config(run: Path) -> None:
    (run / "config.toml").write_text("seed = [")


def forge_config(run: Path) -> None:
    (run / "config.toml").write_text("unlearn = 3\nclients = 7\nflower = []\n")


def break_lineage(run: Path) -> None:
    (run / "lineage.json").write_text("{}")


def break_rounds(run: Path) -> None:
    (run / "rounds.jsonl").write_text('{"round": "x"}\n')


def break_result(run: Path) -> None:
    (run / "result.json").write_text("[1")


def break_tombstone(run: Path) -> None:
    (run / "retired.json").write_text('{"finished": 3}')


def forge_tombstone(run: Path) -> None:
    found = {
        "config_sha256": "", "weights_sha256": None, "method": "", "scheduled_rounds": None, "forgot": "c:x", "leavers": ":", "audits": [],
        "replaced_by": {"run": "\0", "config_sha256": "", "weights_sha256": ""}, "unaudited": None, "holding": ["\0"],
        "deleted": [], "left": [], "begun": "", "finished": "", "versions": {},
    }  # fmt: skip
    (run / "retired.json").write_text(json.dumps(found))


def break_audit(run: Path) -> None:
    (run / "audit.json").write_text('{"verdict": {"word": 3}}')


def break_erased(run: Path) -> None:
    (run / "erased.json").write_text('[{"history": 3}]')


def swap_weights(run: Path) -> None:
    other = "second" if run.name == "first" else "first"
    shutil.copy(run.parent / other / "state.safetensors", run)


def cut_weights(run: Path) -> None:
    (run / "state.safetensors").write_bytes(b"\xff" * 20)


def lose_config(run: Path) -> None:
    (run / "config.toml").unlink()


def nest(run: Path) -> None:
    (run / "lineage.json").write_text("[" * 100_000)


def make_a_pipe(run: Path) -> None:
    (run / "result.json").unlink()
    os.mkfifo(run / "result.json")


def break_names(run: Path) -> None:
    (run / "names.json").write_text('{"c01": {"a": 1}}')


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_config, "config.toml cannot be read: "),
        (forge_config, "config.toml is damaged"),
        (break_lineage, "lineage.json is damaged"),
        (break_rounds, "rounds.jsonl line 1 is damaged"),
        (break_result, "result.json is damaged"),
        (break_tombstone, "retired.json is damaged"),
        (forge_tombstone, ""),
        (break_audit, "audit.json is damaged"),
        (break_erased, "erased.json is damaged"),
        (swap_weights, "the weights in state.safetensors are not those that the run ended with"),
        (cut_weights, "state.safetensors cannot be read: "),
        (lose_config, "there is no config.toml, but history is there"),
        (nest, "lineage.json is damaged"),
        (make_a_pipe, "result.json cannot be read: not a regular file"),
        (break_names, ""),
    ],
)
@pytest.mark.parametrize("name", ["first", "second"])
def test_a_damaged_run_is_a_line_and_not_the_end(runs, name, damage, words):
    damage(runs / name)
    said = invoke("status", runs)
    assert words in " ".join(line.strip(" │├└─") for line in said.splitlines())
    assert "old/copy" in said
    assert "Traceback" not in said
    found = json.loads(invoke("status", runs, "--json"))
    assert {Path(run["path"]).name for run in found["runs"]} == {"first", "copy", "second"}
    invoke("status", runs, "--of", "c01", "--check", code=1)
    invoke("status", runs, "--check", code=1)  # even if nobody else names a leaver any more


def test_a_run_that_cannot_be_read_may_hold_anybody(runs):
    break_config(runs / "old" / "copy")
    break_rounds(runs / "old" / "copy")
    said = lines(runs)
    assert "Of c01 something may be left in old/copy." in said
    assert "3. look at old/copy: it cannot be read, so it may hold c01" in said
    (one,) = read_status(runs).runs[1].holds
    assert one.reason == "unreadable"
    assert {remnant.part for remnant in one.remnants} == {"model", "history", "records"}


def test_a_folder_of_somebody_else_is_named(runs, monkeypatch):
    """The file system refuses to list it; as root, it would not."""
    list_really = Path.iterdir

    def list_ours(path: Path) -> Iterator[Path]:
        if path.name == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return list_really(path)

    (runs / "closed").mkdir()
    monkeypatch.setattr(Path, "iterdir", list_ours)
    assert "Could not be read: closed." in lines(runs, "--check", code=1)


def test_a_config_that_a_person_wrote_hides_no_run_below_it(runs):
    Path("config.toml").write_text(CONFIG)
    (runs / "old" / "config.toml").write_text(CONFIG)
    assert "Of c01 something is left in runs/first, runs/old/copy." in lines(".")


def test_a_copy_inside_a_run_folder_is_found(runs):
    shutil.copytree(runs / "first", runs / "second" / "backup")
    assert "Of c01 something is left in first, old/copy, second/backup." in lines(runs)


@pytest.mark.parametrize("name", ["", "not-there", "config.toml"])
def test_a_folder_without_runs_is_an_error_of_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(CONFIG)
    said = invoke("status", name or ".", code=2)
    assert said.startswith("feduhb: there is no run in ")
    assert said.count("\n") == 1


def test_names_cannot_steer_the_terminal(runs):
    (runs / "first").rename(runs / "\x1b[31m[red]")
    said = invoke("status", runs)
    assert "\x1b" not in said
    assert "?[31m[red]" in said


def test_folders_of_earlier_versions(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "golden")
    found = by_name(tmp_path / "golden")
    assert found["original-feduhb"]["audits"][0]["verdict"] == "forgotten"
    assert Path(found["original-feduhb"]["came_from"]).name == "original"
    reasons = {name: [one["reason"] for one in run["holds"]] for name, run in found.items()}
    assert reasons == {
        "original": ["lineage"], "original-feduhb": [], "interrupted": [], "interrupted-fedrecover": ["lineage"], "stacked": ["data"],
        "interrupted-stacked": ["data"], "flower-trained": ["lineage"], "flower-fedrecover": ["lineage"], "flower-interrupted": ["name"],
    }  # fmt: skip


def test_nothing_is_written(runs):
    before = {path: path.stat().st_mtime_ns for path in sorted(runs.rglob("*"))}
    invoke("status", runs)
    assert {path: path.stat().st_mtime_ns for path in sorted(runs.rglob("*"))} == before


def test_of_several_runs_an_audited_one_replaces_the_old(tmp_path):
    trained = retiring.train(tmp_path / "a")
    for name, audited in (("b1", False), ("b2", True), ("b3", True)):
        retiring.unlearn(trained, retiring.LEAVER, tmp_path / name, audited=audited, erase_history=False)
    steps = [step for step in read_status(tmp_path).steps if step.path == tmp_path / "a"]
    assert [step.what for step in steps] == ["retire"]
    assert f"--replaced-by {tmp_path / 'b2'}" in steps[0].command
