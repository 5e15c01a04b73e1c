"""On the command line: bad settings erase nothing, and a second erasure that was killed reaches the first training when resumed."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feduhb.cli import app
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from runs.remembering import files

CONFIG = """
seed = 4
[federation]
data = "digits"
clients = 6
[train]
rounds = 6
epochs = 1
clients_per_round = 2
keep_history = true
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "config.toml").write_text(CONFIG)
    done("train", folder / "config.toml", "--out", folder / "a")
    late, _ = leavers(folder / "a")
    done("unlearn", folder / "a", "--forget", late, "--rounds", 4, "--stop", "never", "--out", folder / "b")
    return folder


@pytest.fixture
def runs(first: Path, tmp_path: Path) -> Path:
    for name in "ab":
        shutil.copytree(first / name, tmp_path / name)
    return tmp_path


def done(*arguments: object) -> None:
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    assert ended.exit_code == 0, ended.output


def leavers(folder: Path) -> tuple[str, str]:
    """Return the client that was asked first in the latest round, and one that was asked first just before."""
    rounds = RunFolder(folder).rounds()
    first = {client: r.round for r in reversed(rounds) for client in r.asked}
    late = max(first, key=lambda client: first[client])
    early = max((c for c in first if first[c] < first[late]), key=lambda client: first[client])
    assert first[early] > 0
    return late, early


def held(folder: Path) -> set[str]:
    history = DiskHistory(folder / "history")
    return {client for t in history.rounds for client in history.clients(t)}


@pytest.mark.parametrize(
    ("method", "setting", "words"),
    [
        ("feduhb", "epochs=1.5", "epochs is 1.5; give a whole number, 0 or more"),
        ("feduhb", "aggregate=3", "aggregate is 3; give a rule"),
        ("retrain", "epochs=nan", "epochs is nan; give a whole number, 0 or more"),
        ("federaser", "interval=1.5", "interval is 1.5; give a whole number, 1 or more"),
        ("fedrecover", "buffer=1.5", "buffer is 1.5; give a whole number, 1 or more"),
        ("fedrecover", "correction=2.5", "correction is 2.5; give a whole number, 0 or more"),
    ],
)
def test_bad_settings_are_one_line_and_erase_nothing(first, tmp_path, method, setting, words):
    before = files(first)
    arguments = ["unlearn", first / "b", "--forget", "c00", "--method", method, "--set", setting]
    ended = CliRunner().invoke(app, [*map(str, arguments), "--out", str(tmp_path / "c")])
    assert ended.exit_code == 2
    assert ended.stderr.startswith(f"feduhb: {words}")
    assert ended.stderr.count("\n") == 1
    assert files(first) == before
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("method", ["feduhb", "federaser"])
def test_killed_in_the_middle_and_resumed_it_reaches_the_first_training(commands, runs, method):
    _, early = leavers(runs / "a")
    assert early in held(runs / "a")
    command = [
        "unlearn",
        runs / "b",
        "--forget",
        early,
        "--method",
        method,
        "--rounds",
        3,
        "--out",
        runs / "c",
    ]
    killed = commands.feduhb(*command, kill_at=40, kind="disk")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not RunFolder(runs / "c").is_finished()
    done(*command, "--resume")
    assert early not in held(runs / "a") | held(runs / "b") | held(runs / "c")
    assert held(runs / "a"), "what was there before the leaver stays"
    done(*command, "--resume")
