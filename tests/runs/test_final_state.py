"""An ended run keeps its model alone; until then its checkpoints keep everything that a resumed run needs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import feduhb
from federations import ragged
from feduhb.errors import RunFolderError
from feduhb.methods.retrain import Plain
from feduhb.runs import execute
from feduhb.runs.folder import RunFolder
from feduhb.stopping import StopReason

METHOD = feduhb.FedUHB(epochs=1)
OLD = Path(__file__).parents[1] / "golden" / "folders" / "original-feduhb"  # written by an earlier version


class Killed(BaseException):
    """An exception that no handler catches."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    return feduhb.train(ragged(), 2, epochs=1, lr=0.05, out=folder / "a", show=None)


def unlearn(trained, folder, stop: Any = feduhb.never, rounds=4, **more):
    return feduhb.unlearn(
        trained, ["bee"], method=METHOD, stop=stop, rounds=rounds, out=folder, show=None, **more
    )


def read_fields(folder):
    return set(load_file(folder / "state.safetensors"))


def kill(*_, **__):
    raise Killed


def test_an_ended_heavy_ball_keeps_the_model_alone(trained, tmp_path):
    seen = []

    def look(record):
        seen.append((record.round, read_fields(tmp_path)))

    run = feduhb.unlearn(
        trained, ["bee"], method=METHOD, stop=feduhb.never, rounds=3, out=tmp_path, show=look
    )
    assert seen == [(t, {"params", "previous"}) for t in range(3)]
    assert read_fields(tmp_path) == {"params"}
    opened = feduhb.open_run(tmp_path, ragged())
    assert isinstance(run.state, Plain)
    assert isinstance(opened.state, Plain)
    assert torch.equal(run.params, opened.params)


@pytest.mark.parametrize("step", ["save_state", "summarize"])
def test_killed_before_its_result_it_ends_with_the_same_model(trained, tmp_path, monkeypatch, step):
    whole = unlearn(trained, None)
    with monkeypatch.context() as patched:
        patched.setattr(execute, step, kill)
        with pytest.raises(Killed):
            unlearn(trained, tmp_path)
    assert not RunFolder(tmp_path).is_finished()
    assert read_fields(tmp_path) == ({"params"} if step == "summarize" else {"params", "previous"})
    again = unlearn(trained, tmp_path, resume=True)
    assert torch.equal(again.params, whole.params)
    assert [record.moved for record in again.rounds] == [record.moved for record in whole.rounds]
    assert RunFolder(tmp_path).is_finished()
    assert read_fields(tmp_path) == {"params"}


def test_an_ended_run_cannot_be_continued(trained, tmp_path):
    unlearn(trained, tmp_path, rounds=2)
    with pytest.raises(RunFolderError, match=r"started with .*rounds = 2, not 4"):
        unlearn(trained, tmp_path, rounds=4, resume=True)


class After:
    """A stop rule of the user's own code, which no config can tell from another one."""

    def __init__(self, rounds):
        self.rounds = rounds

    def __call__(self, moved, /):
        return StopReason("enough", 0.0, 0.0) if len(moved) >= self.rounds else None

    def threshold(self, moved, /):  # noqa: ARG002
        return None


def test_an_ended_run_with_another_rule_of_the_users_code_says_why_it_cannot_continue(trained, tmp_path):
    unlearn(trained, tmp_path, After(2))
    with pytest.raises(RunFolderError, match="has ended, and an ended run keeps its model alone"):
        unlearn(trained, tmp_path, After(3), resume=True)
    assert len(unlearn(trained, tmp_path, After(2), resume=True).rounds) == 2


def test_a_folder_of_an_earlier_version_opens_with_its_previous_model_beside_it(tmp_path):
    folder = shutil.copytree(OLD, tmp_path / "old")
    kept = load_file(folder / "state.safetensors")
    assert set(kept) == {"params", "previous"}
    run = feduhb.open_run(folder)
    assert torch.equal(run.params, kept["params"])
    assert isinstance(run.state, Plain)
