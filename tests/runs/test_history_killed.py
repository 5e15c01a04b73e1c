"""kill -9 while a history is written: readable up to its last complete round, and after --resume as if never killed."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
import torch

from feduhb.runs.history import DiskHistory
from runs.remembering import files

pytestmark = pytest.mark.slow

ROUNDS = 4
CONFIG = f"""
seed = 5
[federation]
data = "digits"
clients = 6
[train]
rounds = {ROUNDS}
epochs = 1
lr = 0.05
clients_per_round = 4
"""


@pytest.fixture(scope="module")
def feduhb(commands):
    """Run the command line in a process of its own, killed at its kill_at-th moment."""
    return commands.feduhb


@pytest.fixture(scope="module")
def whole(feduhb, tmp_path_factory) -> tuple[Path, int]:
    """A training that was never killed, and how many moments it had."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "config.toml").write_text(CONFIG)
    done = feduhb("train", folder / "config.toml", "--keep-history", "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder, done.moments


@pytest.mark.parametrize("share", [0.5, 0.6])
def test_killed_and_resumed(feduhb, whole, share):
    folder, moments = whole
    out = folder / f"killed-{share}"
    moment = int(moments * share) + random.Random(share).randrange(moments // 20)
    train = ("train", folder / "config.toml", "--keep-history", "--out", out)
    killed = feduhb(*train, kill_at=moment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    found, reference = DiskHistory(out / "history"), DiskHistory(folder / "run" / "history")
    complete = len(found.rounds)
    assert found.rounds == list(range(complete))
    assert complete < ROUNDS
    assert complete > 0
    for t in found.rounds:
        assert torch.equal(found.params(t), reference.params(t))
        assert found.clients(t) == reference.clients(t)
        for one, other in zip(
            found.read(t, found.clients(t)), reference.read(t, found.clients(t)), strict=True
        ):
            assert torch.equal(one.values, other.values)

    resumed = feduhb(*train, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert found.rounds == list(range(ROUNDS))
    assert files(out / "history") == files(folder / "run" / "history")
