"""kill -9 around every write of a method that replays a history: a finished run never stands beside the leavers' updates."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from killing import Commands, Counted

pytestmark = pytest.mark.slow

CONFIG = """
seed = 5
[federation]
data = "digits"
clients = 4
model = "softmax"
[train]
rounds = 3
epochs = 1
keep_history = true
"""
LAST = 60  # moments at the end of a run: its last checkpoint, the erasure, the result


@pytest.fixture(scope="module")
def feduhb(commands: Commands) -> Callable[..., Counted]:
    """Run the command line in a process of its own, killed at its kill_at-th moment that touches the disk."""
    return partial(commands.feduhb, kind="disk")


@pytest.fixture(scope="module")
def folder(feduhb, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("replayed")
    (place / "config.toml").write_text(CONFIG)
    assert feduhb("train", place / "config.toml", "--out", place / "kept").returncode == 0
    return place


def names(folder: Path) -> list[str]:
    """The files of a run, but for a lock that a kill left behind: the next write takes it over."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".writing.lock")


def unlearn(folder: Path, name: str) -> tuple[object, ...]:
    """Return the command that forgets a client by FedEraser, in a copy of the trained run."""
    shutil.copytree(folder / "kept", folder / name)
    return (
        "unlearn",
        folder / name,
        "--forget",
        "c01",
        "--method",
        "federaser",
        "--out",
        folder / f"{name}-new",
    )


def test_killed_at_its_end_it_is_finished_only_once_the_history_is_erased(feduhb, folder: Path):
    whole = unlearn(folder, "whole")
    done = feduhb(*whole)
    assert done.returncode == 0, done.stderr
    moments = done.moments
    reference = RunFolder(folder / "whole-new").result()
    between = 0
    for number, moment in enumerate(range(moments - LAST, moments, 9)):
        command = unlearn(folder, f"killed-{number}")
        killed = feduhb(*command, kill_at=moment)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        new, old = (
            RunFolder(folder / f"killed-{number}-new"),
            DiskHistory(folder / f"killed-{number}" / "history"),
        )
        erased = not old.rounds
        assert erased or not new.is_finished()
        between += erased and not new.is_finished()
        resumed = feduhb(*command, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        assert not old.rounds
        same = ("weights_sha256", "rounds", "client_epochs", "history_bytes_read", "settings")
        assert {key: new.result()[key] for key in same} == {key: reference[key] for key in same}
        assert names(new.path) == names(folder / "whole-new")
    assert between, "no kill fell between the erasure and the result"
