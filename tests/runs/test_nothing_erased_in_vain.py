"""Nothing is erased, and nobody's place is taken, before the last refusal; what is deleted stays deleted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import feduhb
from federations import ragged
from feduhb.cli import app
from feduhb.core.types import Method
from feduhb.errors import ConfigError, RunFolderError, StorageError
from feduhb.methods.retrain import Plain
from feduhb.runs import lineage
from feduhb.runs.files import write_atomically
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from runs.remembering import files

HOW: dict[str, Any] = {"epochs": 1, "batch_size": 8, "show": None}


@pytest.fixture
def trained(tmp_path: Path) -> feduhb.Run:
    return feduhb.train(ragged(), 2, out=tmp_path / "old", keep_history=True, **HOW)


def test_a_foreign_history_where_the_new_one_goes_is_refused_first(trained, tmp_path):
    shutil.copytree(tmp_path / "old" / "history", tmp_path / "new" / "history")
    before = files(tmp_path / "old")
    with pytest.raises(RunFolderError, match="new holds history of another run"):
        feduhb.unlearn(trained, ["dog"], rounds=1, out=tmp_path / "new", show=None)
    assert files(tmp_path / "old") == before


@dataclass
class Loose:
    """A state that cannot be saved."""

    params: Tensor


@dataclass(frozen=True)
class Unsaved(Method[Any]):
    """A method whose state is no NamedTuple."""

    epochs: int = 1
    name: ClassVar[str] = "unsaved"
    exact: ClassVar[bool] = True

    def init(self, params: Tensor) -> Loose:
        return Loose(params)

    def ask(self, state: Loose) -> feduhb.Work:
        return feduhb.Work(state.params, self.epochs)

    def tell(self, state: Loose, answers: Any) -> Loose:
        return Loose(state.params - feduhb.weighted_mean(answers))


def test_a_state_that_cannot_be_saved_is_refused_first(trained, tmp_path):
    before = files(tmp_path / "old")
    with pytest.raises(ConfigError, match="the state of unsaved is a Loose; make it a NamedTuple"):
        feduhb.unlearn(trained, ["dog"], method=Unsaved(), rounds=1, out=tmp_path / "new", show=None)
    assert files(tmp_path / "old") == before
    assert not RunFolder(tmp_path / "new").exists()


def test_a_run_that_somebody_keeps_writing_is_neither_erased_nor_superseded(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(lineage, "PATIENCE", 0.0)
    before = files(tmp_path / "old")
    with (
        RunFolder(tmp_path / "old").claim(),
        pytest.raises(RunFolderError, match=r"another process is writing .*old; wait for it, or stop it"),
    ):
        feduhb.unlearn(trained, ["dog"], rounds=1, out=tmp_path / "new", show=None)
    assert files(tmp_path / "old") == before


def test_once_nothing_is_left_to_erase_nobody_is_waited_for(trained, tmp_path, monkeypatch):
    """An audit of the old run that began meanwhile, say."""
    monkeypatch.setattr(lineage, "PATIENCE", 0.0)
    first = feduhb.unlearn(trained, ["dog"], rounds=1, out=tmp_path / "first", keep_history=False, show=None)
    with RunFolder(tmp_path / "old").claim():
        second = feduhb.unlearn(first, ["cat"], rounds=1, out=tmp_path / "second", show=None)
    assert RunFolder(tmp_path / "second").is_finished()
    assert str(second.forgot) == "cat,dog"


def test_a_run_that_was_deleted_meanwhile_does_not_come_back(trained, tmp_path):
    def delete(_: feduhb.Round) -> None:
        shutil.rmtree(tmp_path / "old", ignore_errors=True)

    method = feduhb.FedEraser(interval=2, epochs=1)  # needs nobody's history after its first round
    feduhb.unlearn(trained, ["dog"], method=method, out=tmp_path / "new", show=delete)
    assert not (tmp_path / "old").exists()
    with pytest.raises(StorageError, match="No such file or directory"):
        write_atomically(tmp_path / "old" / "file", b"")
    assert not (tmp_path / "old").exists()


@dataclass(frozen=True)
class FromHistory(feduhb.FedEraser):
    """A replay of the user's own."""

    name: ClassVar[str] = "from-history"


def test_a_finished_replay_of_the_users_own_is_opened_again(trained, tmp_path):
    ask = {"method": FromHistory(interval=1, epochs=1), "out": tmp_path / "new", "show": None}
    first = feduhb.unlearn(trained, ["dog"], **ask)
    again = feduhb.unlearn(trained, ["dog"], resume=True, **ask)
    assert torch.equal(again.params, first.params)


def test_a_replay_that_is_finished_later_tells_of_runs_that_it_did_not_find(trained, tmp_path, capsys):
    first = feduhb.unlearn(trained, ["dog"], rounds=2, out=tmp_path / "first", show=None)
    shutil.move(tmp_path / "old", tmp_path / "elsewhere")
    ask = {"method": feduhb.FedEraser(interval=1, epochs=1), "out": tmp_path / "second", "show": None}
    feduhb.unlearn(first, ["cat"], **ask)
    assert "no longer exists" in capsys.readouterr().err
    feduhb.unlearn(first, ["cat"], resume=True, **ask)
    assert "no longer exists" in capsys.readouterr().err
    assert not DiskHistory(tmp_path / "first" / "history").rounds


@dataclass(frozen=True)
class Few:
    """A stop rule that a config cannot hold."""

    def __call__(self, moved: Any, /) -> Any:
        return feduhb.stopping.StopReason("two are enough", moved[-1], 0.0) if len(moved) == 2 else None

    def threshold(self, moved: Any, /) -> float | None:  # noqa: ARG002
        return None


@dataclass(frozen=True)
class Brief(feduhb.Retrain):
    """Retrain with a stop rule of its own."""

    name: ClassVar[str] = "brief"

    def default_stop(self) -> Any:
        return Few()


def test_a_methods_own_stop_rule_is_known_again(trained, tmp_path):
    run = feduhb.unlearn(trained, ["dog"], method=Brief(epochs=1), rounds=5, out=tmp_path / "new", show=None)
    assert len(run.rounds) == 2
    opened = feduhb.open_run(tmp_path / "new", ragged(), method=Brief(epochs=1))
    assert opened.stop == Few()
    assert isinstance(run.state, Plain)


def test_a_config_whose_clients_are_a_number_is_one_line(tmp_path):
    (tmp_path / "config.toml").write_text("clients = 20\n")
    ended = CliRunner().invoke(app, ["train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")])
    assert ended.exit_code == 2
    assert "clients = 20 is invalid" in ended.stderr
