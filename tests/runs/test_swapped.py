"""Files of a finished run that are not its own: other weights, fewer rounds, or no config.toml."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import feduhb
from federations import ragged
from feduhb.errors import CheckpointError, FeduhbError, RunFolderError
from feduhb.report import read_runs

HOW = {"epochs": 1, "batch_size": 8, "show": None}


@pytest.fixture
def runs(tmp_path) -> tuple[Path, Path]:
    """The folders of a training and of an unlearning."""
    first = feduhb.train(ragged(), 2, out=tmp_path / "first", **HOW)
    feduhb.unlearn(first, ["elk"], rounds=2, out=tmp_path / "second", show=None)
    return tmp_path / "first", tmp_path / "second"


def test_swapped_weights_are_refused_on_every_opening(runs):
    shutil.copy(runs[0] / "state.safetensors", runs[1])
    for open_it in (lambda: feduhb.open_run(runs[1], ragged()), lambda: read_runs([runs[1]])):
        with pytest.raises(RunFolderError, match=r"the weights in .* are not those that the run ended with"):
            open_it()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff" * 40,
        b'\x05\0\0\0\0\0\0\0{"a":',
        b"\x02\0\0\0\0\0\0\0[]",
        b'\x28\0\0\0\0\0\0\0{"params":{"data_offsets":["a","b"]}}     ',
    ],
)
def test_weights_that_cannot_be_read_are_one_line(runs, damage):
    (runs[1] / "state.safetensors").write_bytes(damage)
    with pytest.raises(CheckpointError, match="is damaged"):
        feduhb.open_run(runs[1], ragged())
    with pytest.raises(RunFolderError):
        read_runs([runs[1]])


def test_missing_rounds_are_refused(runs):
    path = runs[0] / "rounds.jsonl"
    path.write_text(path.read_text().split("\n")[0] + "\n")
    with pytest.raises(RunFolderError, match=r"holds 1 rounds, but result\.json counts 2; restore a backup"):
        feduhb.open_run(runs[0], ragged())


@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "state.safetensors", "result.json", "history", "audit.json"]
)
def test_the_rest_of_another_run_is_not_mixed_with_a_new_one(tmp_path, name):
    rest = tmp_path / "new" / name
    rest.parent.mkdir()
    rest.mkdir() if name == "history" else rest.write_text("of another run")
    for resume in (False, True):
        with pytest.raises(
            FeduhbError, match=rf"new holds {name} of another run, but no config\.toml; restore"
        ):
            feduhb.train(ragged(), 1, out=tmp_path / "new", resume=resume, **HOW)
    assert {path.name for path in rest.parent.iterdir()} == {name, ".lock"}
