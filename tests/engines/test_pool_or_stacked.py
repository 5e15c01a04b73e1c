"""Which engine "auto" picks, what it records, and the block that a resumed run continues with."""

from __future__ import annotations

import json
import tomllib
from functools import partial

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.engines import EngineMaker, Loop, PickedEngine, Pool, Stacked, describe_engine, make_engine
from feduhb.errors import RunFolderError
from feduhb.runs.config import parse_config
from feduhb.runs.folder import Round, RunFolder


def read_block(folder):
    """Return the block in the config of a run."""
    return parse_config(RunFolder(folder).config(), str(folder)).block


TORCH = f"torch {torch.__version__}"
LITTLE, MUCH = 1, 1 << 40  # bytes free: for one client at once, and for all five


@pytest.fixture
def set_free_bytes(monkeypatch):
    """Return a function that sets how many bytes are free."""

    def now(size: int) -> None:
        monkeypatch.setattr("feduhb.engines.stacked.count_free_bytes", lambda _: size)

    return now


def train(folder, *, engine: str | EngineMaker = "stacked", rounds=4, **changes):
    federation = ragged(dtype=torch.float32)
    return feduhb.train(
        federation, rounds, epochs=1, batch_size=4, lr=0.1, engine=engine, out=folder, **changes
    )


class CrashError(Exception):
    """A crash of the machine."""


def crash_after(rounds: int, record: Round) -> None:
    if record.round + 1 == rounds:
        raise CrashError


def train_until_crash(folder, after: int, **changes) -> None:
    """Train until a crash after some rounds."""
    with pytest.raises(CrashError):
        train(folder, show=partial(crash_after, after), **changes)


@pytest.mark.parametrize(("first", "later", "block"), [(LITTLE, MUCH, 1), (MUCH, LITTLE, 5)])
def test_a_resumed_run_keeps_its_block_whatever_memory_is_free(set_free_bytes, tmp_path, first, later, block):
    set_free_bytes(first)
    whole = train(tmp_path / "whole")
    train_until_crash(tmp_path / "cut", after=2)
    set_free_bytes(later)
    resumed = train(tmp_path / "cut", resume=True)
    assert torch.equal(whole.params, resumed.params)
    found = RunFolder(tmp_path / "cut").result()["engine"]
    assert (found["name"], found["block"]) == ("stacked", block)
    assert (
        RunFolder(tmp_path / "cut").result()["weights_sha256"]
        == RunFolder(tmp_path / "whole").result()["weights_sha256"]
    )


def test_a_new_run_takes_the_block_that_fits_now(set_free_bytes, tmp_path):
    set_free_bytes(LITTLE)
    train(tmp_path / "small", rounds=1)
    set_free_bytes(MUCH)
    train(tmp_path / "large", rounds=1)
    assert [read_block(tmp_path / name) for name in ("small", "large")] == [1, 5]


def test_an_unlearning_that_is_resumed_keeps_its_own_block(set_free_bytes, tmp_path):
    set_free_bytes(MUCH)
    run = train(tmp_path / "run", rounds=2)
    unlearn = partial(feduhb.unlearn, run, "dog", rounds=3, stop=feduhb.never, out=tmp_path / "new")
    set_free_bytes(LITTLE)
    with pytest.raises(CrashError):
        unlearn(show=partial(crash_after, 1))
    set_free_bytes(MUCH)
    unlearn(resume=True)
    assert RunFolder(tmp_path / "new").result()["engine"]["block"] == 1
    assert RunFolder(tmp_path / "run").result()["engine"]["block"] == 5


def test_the_block_is_written_down_when_a_run_begins(set_free_bytes, tmp_path):
    set_free_bytes(MUCH)
    train_until_crash(tmp_path, after=1)
    config = tomllib.loads((tmp_path / "config.toml").read_text())
    assert config["block"] == 5
    assert config["made_by"] == f"stacked, cpu, float32, blocks of 5, {TORCH}"


def test_an_engine_of_the_users_own_with_another_block_is_refused(tmp_path):
    train_until_crash(tmp_path, after=2, engine=partial(Stacked, block=2))
    with pytest.raises(RunFolderError, match="was started with block = 2, not 3"):
        train(tmp_path, engine=partial(Stacked, block=3), resume=True)


@pytest.mark.parametrize("maker", [Loop, Pool])
def test_blocks_that_do_not_change_bits_are_not_recorded(maker, tmp_path):
    engine = maker(ragged(), block=3)
    assert "blocks" not in describe_engine(engine)
    train_until_crash(tmp_path, after=1, engine=maker)
    assert read_block(tmp_path) is None


@pytest.mark.parametrize("name", ["stacked", "auto", "pool", "loop"])
def test_a_block_that_is_given_goes_to_the_stacked_engine_alone(name, monkeypatch):
    own = make_engine(name, ragged(), feduhb.Local()).about["block"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = make_engine(name, ragged(), feduhb.Local(), block=3).about["block"]
    assert found == (3 if name == "stacked" else own)


def test_auto_with_a_gpu_hands_the_block_on(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("feduhb.engines.Stacked", partial(Stacked, device="cpu"))
    about = make_engine("auto", ragged(), feduhb.Local(), block=3).about
    assert (about["name"], about["block"]) == ("stacked", 3)
    assert about["why"] == "there is a GPU here; layer by layer: every layer has a stacked form"


def test_what_auto_picked_answers_as_it_would_itself(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    federation, local = ragged(), feduhb.Local(batch_size=4, lr=0.1)
    picked = make_engine("auto", federation, local)
    assert isinstance(picked, PickedEngine)
    pool = Pool(federation, local)
    work = feduhb.Work(torch.cat([p.detach().reshape(-1) for p in federation.fresh_model().parameters()]), 2)
    pairs = zip(picked.train(work, ("bee", "dog"), 1), pool.train(work, ("bee", "dog"), 1), strict=True)
    for mine, its in pairs:
        assert mine.clients == its.clients
        assert torch.equal(mine.values, its.values)
    assert picked.about == {**pool.about, "why": "there is no GPU here, and it uses every core"}


PICKED_LINE = "engine: pool (there is no GPU here, and it uses every core)"


def test_auto_records_and_prints_what_it_picked(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = train(tmp_path / "run", engine="auto", rounds=3, show="lines")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["engine:", "train", "train", "train"]
    assert lines[0] == PICKED_LINE
    written = json.loads((tmp_path / "run" / "result.json").read_text())["engine"]
    assert (written["name"], written["why"]) == ("pool", "there is no GPU here, and it uses every core")
    feduhb.unlearn(run, "dog", rounds=2, out=tmp_path / "new", show="lines")
    assert capsys.readouterr().err.splitlines()[0] == PICKED_LINE


@pytest.mark.parametrize(
    "changes", [{"engine": "pool", "show": "lines"}, {"engine": "auto"}, {"engine": "auto", "show": None}]
)
def test_a_named_engine_is_not_announced_and_nothing_is_printed_without_show(changes, tmp_path, capsys):
    train(tmp_path, rounds=2, **changes)
    assert "engine:" not in capsys.readouterr().err
