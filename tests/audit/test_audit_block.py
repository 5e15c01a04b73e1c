"""The runs of an audit train as many clients at once as the run that they are compared with, whatever memory is free."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import feduhb
from audit.auditing import QUIET, draw_federation
from feduhb.audit.audit import WORK
from feduhb.audit.exactness import describe_machine
from feduhb.core.types import BlockSize
from feduhb.engines import describe_engine
from feduhb.runs.config import parse_config
from feduhb.runs.folder import RunFolder

SIZES = {"ant": 9, "bee": 14, "cat": 13, "dog": 24, "elk": 8}
LITTLE, MUCH = 1, 1 << 40  # bytes free: for one client at once, and for all
HOW: dict[str, Any] = {"epochs": 1, "batch_size": 6, "lr": 0.05, "engine": "stacked", "show": None}


@pytest.fixture
def free(monkeypatch):
    """Return a function that sets how many bytes are free."""

    def now(size: int) -> None:
        monkeypatch.setattr("feduhb.engines.stacked.choice.count_free_bytes", lambda _: size)

    return now


def unlearned(trained: feduhb.Run, out: Path | None = None, **changes: Any) -> feduhb.Run:
    return feduhb.unlearn(trained, ["dog"], rounds=3, stop=feduhb.never, out=out, show=None, **changes)


def blocks(folder: Path) -> dict[str, BlockSize | None]:
    """Return the block of each run that an audit left, by world."""
    runs = (path.parent for path in (folder / WORK).rglob("config.toml"))
    return {
        re.sub("-[0-9a-f]{8}$", "", run.name): parse_config(RunFolder(run).config(), run.name).block
        for run in runs
    }


@pytest.mark.parametrize(("asked", "block"), [(None, 1), ("recorded", "recorded")])
def test_counterfactuals_train_as_many_clients_at_once_as_the_audited_run(free, tmp_path, asked, block):
    free(LITTLE)
    trained = feduhb.train(draw_federation(SIZES), 3, out=tmp_path / "run", block=asked, **HOW)
    unlearned(trained, tmp_path / "new", block=asked)
    free(MUCH)
    run, trained = (feduhb.open_run(tmp_path / name, draw_federation(SIZES)) for name in ("new", "run"))
    assert run.block == block
    audit = feduhb.audit(run, trained, keep=True, canaries=0, **QUIET)
    assert audit.exactness is not None
    assert audit.exactness.exact
    expected = {"noise": trained.block, "retrain": block, "noise-feduhb": block, "never-feduhb": block}
    assert blocks(tmp_path / "new") == expected


def test_runs_without_a_folder_know_their_block_too(free, tmp_path):
    free(LITTLE)
    run = unlearned(feduhb.train(draw_federation(SIZES), 3, **HOW))
    assert run.block == 1
    free(MUCH)
    feduhb.audit(run, keep=True, out=tmp_path, canaries=0, **QUIET)
    made = blocks(tmp_path)
    assert made.pop("original") == made.pop("noise") == 5  # nobody knows how the original was trained
    assert made == {"retrain": 1, "noise-feduhb": 1, "never-feduhb": 1}


def test_what_bits_depend_on_is_described_with_the_runs_block(free, tmp_path):
    free(LITTLE)
    run = unlearned(feduhb.train(draw_federation(SIZES), 1, **HOW), tmp_path)
    free(MUCH)
    assert "blocks of 1," in describe_engine(run.make_engine())
    assert not describe_machine(run)


def test_a_given_block_is_used(free):
    free(MUCH)
    trained = feduhb.train(draw_federation(SIZES), 1, block=2, **HOW)
    assert trained.block == 2
    assert unlearned(trained, block=3).block == 3
    assert unlearned(trained).block == 4


@pytest.mark.parametrize("engine", ["loop", "pool"])
def test_engines_whose_bits_depend_on_no_block_have_none(engine):
    run = feduhb.train(draw_federation(SIZES), 1, block=2, **{**HOW, "engine": engine})
    assert run.block is None
    assert torch.equal(
        run.params, feduhb.train(draw_federation(SIZES), 1, **{**HOW, "engine": engine}).params
    )
