"""Which engine "auto" picks, what it records, and the block that a resumed run continues with."""

from __future__ import annotations

import json
import tomllib
from functools import partial

import pytest
import torch
from torch.nn import functional

import feduhb
from federations import SIZES, ragged
from feduhb.api import train_from
from feduhb.engines import EngineMaker, Loop, PickedEngine, Pool, Stacked, describe_engine, make_engine
from feduhb.engines.stacked import choice
from feduhb.engines.stacked.blocks import Blocks
from feduhb.engines.stacked.recorded import Recorder
from feduhb.engines.stacked.runner import NotRecordableError, explain_recording
from feduhb.engines.stacked.setup import Setup
from feduhb.errors import ConfigError, RunFolderError
from feduhb.runs.config import parse_config, read_config
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
        monkeypatch.setattr("feduhb.engines.stacked.choice.count_free_bytes", lambda _: size)

    return now


@pytest.fixture
def set_faster(monkeypatch):
    """Return a function that sets which way is faster in a trial, which this machine then makes as one with a GPU does."""

    def now(way: str) -> None:
        def time_recorded(setup, _start):
            return choice.make_recorder(setup), 0.1 if way == "recorded" else 0.3

        monkeypatch.setattr(Setup, "can_record", True)
        monkeypatch.setattr(choice, "_time_recorded", time_recorded)
        monkeypatch.setattr(choice, "_time_mapped", lambda setup, _: (choice.map_clients(setup), 0.2))

    return now


def train(folder, *, engine: str | EngineMaker = "stacked", rounds=4, sizes=SIZES, **changes):
    federation = ragged(sizes, dtype=torch.float32)
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


@pytest.mark.parametrize("sizes", [SIZES, {"dog": 24}], ids=["five clients", "one client"])
def test_a_resumed_run_trains_in_the_way_of_its_first_trial(set_faster, tmp_path, sizes):
    """With one client, a mapped block is of one client, too."""
    how = {"sizes": sizes, "optimizer": "adam"}
    whole = {}
    for first, later, block, made_by in (
        ("recorded", "mapped", "recorded", "recorded steps"),
        ("mapped", "recorded", len(sizes), f"blocks of {len(sizes)}"),
    ):
        set_faster(first)
        whole[first] = train(tmp_path / f"{first} whole", **how).params
        train_until_crash(tmp_path / first, after=2, **how)
        set_faster(later)
        assert torch.equal(train(tmp_path / first, resume=True, **how).params, whole[first])
        config = RunFolder(tmp_path / first).config()
        assert (config["block"], config["made_by"]) == (block, f"stacked, cpu, float32, {made_by}, {TORCH}")
    assert not torch.equal(whole["recorded"], whole["mapped"])


def fail_to_record(*_):
    with explain_recording():
        raise RuntimeError("Batching rule\nnot implemented")


NO_GRAPH = "its steps cannot be recorded (Batching rule not implemented)"


@pytest.mark.parametrize(
    ("recorded", "mapped", "block", "why"),
    [
        (
            True,
            False,
            "recorded",
            "recorded client by client: a step is more than plain SGD; a step took 20 ms",
        ),
        (False, True, 5, f"mapped by torch.func: a step is more than plain SGD; {NO_GRAPH}"),
    ],
)
def test_a_way_that_a_gpu_cannot_record_is_not_taken(recorded, mapped, block, why, monkeypatch):
    """Steps of mapped clients are recorded there, too, and torch maps fewer layers on a GPU."""
    monkeypatch.setattr(Setup, "can_record", True)
    monkeypatch.setattr(Recorder, "time_step", (lambda *_: 0.1) if recorded else fail_to_record)
    monkeypatch.setattr(Blocks, "time_step", (lambda *_: 0.1) if mapped else fail_to_record)
    engine = Stacked(ragged(), feduhb.Local(optimizer="adam"), device="cpu")
    assert (engine.block, engine.why) == (block, why)


def halve(outputs, targets):
    return functional.cross_entropy(outputs, targets) / 2


@pytest.mark.parametrize(
    "local", [feduhb.Local(optimizer="adam"), feduhb.Local(loss=halve)], ids=["mapped", "chain"]
)
def test_auto_takes_the_loop_where_a_gpu_can_record_no_way(local, monkeypatch):
    """A chain of layers is tried if the loss is the user's own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("feduhb.engines.Stacked", partial(Stacked, device="cpu"))
    monkeypatch.setattr("feduhb.engines.Loop", lambda *_, **__: Loop(ragged()))
    monkeypatch.setattr(Setup, "can_record", True)
    for kind in (Recorder, Blocks):
        monkeypatch.setattr(kind, "time_step", fail_to_record)
    picked = make_engine("auto", ragged(), local)
    assert (picked.about["name"], picked.about["why"]) == (
        "loop",
        f"{NO_GRAPH}; use engine 'pool' or 'loop'",
    )


@pytest.mark.parametrize("fault", [IndexError("Target 9 is out of bounds."), torch.OutOfMemoryError("full")])
def test_a_trial_that_fails_for_another_reason_leaves_the_error_to_the_training(fault, monkeypatch):
    def fail(*_):
        raise fault

    monkeypatch.setattr(Setup, "can_record", True)
    monkeypatch.setattr(Blocks, "time_step", fail)
    engine = Stacked(ragged(), feduhb.Local(loss=halve), device="cpu")
    assert engine.why == "layer by layer: every layer has a stacked form"
    assert Stacked(ragged(), device="cpu").block == engine.block == 5  # torch's own loss is not tried


def test_a_block_that_a_gpu_cannot_record_is_refused_with_what_to_use(monkeypatch):
    engine = Stacked(ragged(), device="cpu", block=2)
    monkeypatch.setattr(engine._way.blocks.runner, "run", fail_to_record)
    work = feduhb.Work(torch.zeros(sum(p.numel() for p in ragged().fresh_model().parameters())).double(), 1)
    with pytest.raises(
        ConfigError, match=r"its steps cannot be recorded \(Batching rule not .*use engine 'loop'"
    ):
        list(engine.train(work, ("bee", "cat"), 0))


def test_memory_that_runs_out_while_recording_is_not_a_reason_against_it():
    with pytest.raises(torch.OutOfMemoryError), explain_recording():
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_any_other_error_while_recording_is_a_reason_against_it():
    """A model or a loss may take the values of a tensor into numpy, which raises another error on a GPU."""
    words = "can't convert cuda:0 device type tensor to numpy"
    with pytest.raises(NotRecordableError, match=words), explain_recording():
        raise TypeError(words)


def test_an_unlearning_takes_recorded_steps_if_the_training_did(set_faster, tmp_path):
    set_faster("recorded")
    run = train(tmp_path, rounds=1, optimizer="adam")
    set_faster("mapped")
    assert feduhb.unlearn(run, "dog", rounds=1, stop=feduhb.never).block == "recorded"
    assert feduhb.unlearn(run, "dog", rounds=1, stop=feduhb.never, block=2).block == 2


def test_training_again_from_the_config_of_a_run_takes_its_block(tmp_path):
    federation = '[federation]\ndata = "digits"\nclients = 3\nper_client = 20\nmodel = "softmax"\n'
    text = f'block = "recorded"\n{federation}[train]\nrounds = 1\nepochs = 1\nengine = "stacked"\n'
    first = train_from(parse_config(tomllib.loads(text), "c.toml"), tmp_path / "first")
    second = train_from(read_config(tmp_path / "first" / "config.toml"), tmp_path / "second")
    assert first.block == second.block == "recorded"
    assert torch.equal(first.params, second.params)


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
