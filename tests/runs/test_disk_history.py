"""A history on disk: what is written is what is read, for any clients in any order, and no more than was complete."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from federations import ragged
from feduhb.core.types import Updates
from feduhb.errors import ConfigError, HistoryError
from feduhb.methods import list_needs
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from runs.remembering import drawn, files, written
from toys import block_of, quick, summed

CLIENTS = ("a", "b", "c", "d", "e")
W = torch.tensor([1.0, -2.0, 0.5, 3.0])


@quick
@given(
    order=st.permutations(CLIENTS),
    size=st.integers(1, 5),
    wanted=st.lists(st.sampled_from((*CLIENTS, "stranger")), unique=True),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_subset_in_any_order_comes_back_by_id_bit_for_bit(tmp_path_factory, order, size, wanted, dtype):
    whole = drawn(order, dtype=dtype)
    parts = [
        Updates(whole.clients[i : i + size], whole.values[i : i + size], whole.weights[i : i + size])
        for i in range(0, 5, size)
    ]
    folder = tmp_path_factory.mktemp("history")
    history = written(folder, {0: parts}, W.to(dtype))
    found = list(history.read(0, wanted))
    shutil.rmtree(folder)
    got = {
        c: (v, n)
        for block in found
        for c, v, n in zip(block.clients, block.values, block.weights, strict=True)
    }
    assert set(got) == set(wanted) & set(CLIENTS)
    for client, (values, weight) in got.items():
        row = order.index(client)
        assert values.dtype is dtype
        assert torch.equal(values, whole.values[row])
        assert weight == whole.weights[row]


def test_a_round_says_who_answered_and_where_it_started(tmp_path):
    history = written(tmp_path, {0: [drawn("ba"), drawn("dc", seed=1)], 1: [drawn("c")]}, W)
    assert history.rounds == [0, 1]
    assert history.clients(0) == ("b", "a", "d", "c")
    assert history.clients(1) == ("c",)
    assert torch.equal(history.params(0), W)
    assert [block.clients for block in history.read(0, CLIENTS)] == [("b", "a"), ("d", "c")]


def test_reading_streams_a_block_at_a_time(tmp_path):
    """The second block's file is not touched before it is wanted."""
    history = written(tmp_path, {0: [drawn("ab"), drawn("cd", seed=1)]}, W)
    stream = history.read(0, CLIENTS)
    next(stream)
    (tmp_path / "00000" / "block-00001.safetensors").unlink()
    with pytest.raises(HistoryError, match=r"block-00001\.safetensors"):
        next(stream)


def test_blocks_of_nobody_wanted_are_not_read(tmp_path):
    history = written(tmp_path, {0: [drawn("ab"), drawn("cd", seed=1)]}, W)
    (tmp_path / "00000" / "block-00001.safetensors").unlink()
    assert [block.clients for block in history.read(0, ["a"])] == [("a",)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_half_is_within_float16_rounding_and_read_back_in_the_models_precision(tmp_path, dtype):
    block = drawn(CLIENTS, 1000, dtype=dtype)
    history = written(tmp_path, {0: [block]}, torch.zeros(1000, dtype=dtype), half=True)
    (found,) = history.read(0, CLIENTS)
    assert found.values.dtype is dtype
    assert torch.equal(found.values, block.values.half().to(dtype))
    torch.testing.assert_close(found.values, block.values, rtol=2.0**-11, atol=2.0**-24)
    assert history.params(0).dtype is dtype


def test_half_takes_about_half_the_room(tmp_path):
    """Updates are halved; the model, a tenth of what ten clients send, is not."""
    block, w = drawn([f"c{i}" for i in range(10)], 5000), torch.zeros(5000)
    whole = written(tmp_path / "whole", {0: [block]}, w).bytes
    half = written(tmp_path / "half", {0: [block]}, w, half=True).bytes
    assert 0.5 < half / whole < 0.6


@pytest.mark.parametrize("half", [False, True])
def test_bytes_are_those_of_the_files(tmp_path, half):
    history = written(tmp_path, {0: [drawn("ab")], 1: [drawn("ab", seed=1)]}, W, half=half)
    assert history.bytes == sum(len(content) for content in files(tmp_path).values()) > 0


def test_large_updates_are_hashed_on_threads_with_the_same_digests(tmp_path, monkeypatch):
    block = drawn("abcde", 50)
    one = written(tmp_path / "one", {0: [block]}, block.values[0])
    monkeypatch.setattr("feduhb.runs.history.LARGE", 1)
    other = written(tmp_path / "other", {0: [block]}, block.values[0])
    assert files(one.folder) == files(other.folder)
    assert torch.equal(next(one.read(0, "abcde")).values, block.values)
    file = one.folder / "00000" / "block-00000.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1  # in the update of e
    file.write_bytes(bytes(whole))
    assert torch.equal(next(one.read(0, "abcd")).values, block.values[:4])
    with pytest.raises(HistoryError, match=r"is damaged: its values are not those that were stored"):
        next(one.read(0, "abcde"))


def test_nothing_kept_is_an_empty_history(tmp_path):
    history = DiskHistory(tmp_path / "nowhere")
    assert history.rounds == []
    assert history.bytes == 0
    assert history.forget(["a"]) == 0
    assert not (tmp_path / "nowhere").exists()


def test_rounds_past_99999_stay_in_order(tmp_path):
    assert written(tmp_path, {100000: [drawn("a")], 99999: [drawn("a")]}, W).rounds == [99999, 100000]


def test_an_incomplete_round_is_none_and_is_overwritten(tmp_path):
    history = written(tmp_path, {0: [drawn("ab")]}, W)
    history.begin(1, W)
    history.append(1, 0, drawn("ab", seed=1))
    history.append(1, 1, drawn("cd", seed=2))
    assert history.rounds == [0]
    with pytest.raises(HistoryError, match="no round 1"):
        history.clients(1)
    again = drawn("dc", seed=3)
    history.begin(1, W + 1)
    history.finish(1, W + 1, [history.append(1, 0, again)])
    assert history.rounds == [0, 1]
    assert history.clients(1) == ("d", "c")
    assert torch.equal(history.params(1), W + 1)
    assert torch.equal(next(history.read(1, ["c"])).values[0], again.values[1])
    names = {path.name for path in (tmp_path / "00001").iterdir()}
    assert names == {"params.safetensors", "block-00000.safetensors", "round.json"}


def test_a_complete_round_begun_again_is_incomplete(tmp_path):
    """What a resumed run repeats must not be taken for the old one half way through."""
    history = written(tmp_path, {0: [drawn("ab")], 1: [drawn("ab")]}, W)
    history.begin(1, W)
    assert history.rounds == [0]


def test_summed_answers_are_refused(tmp_path):
    history = DiskHistory(tmp_path)
    history.begin(0, torch.zeros(2, dtype=torch.float64))
    with pytest.raises(HistoryError, match=r"needs every client's update.*without keep_history"):
        history.append(0, 0, summed([block_of({"a": [1, 2], "b": [3, 4]})]))
    assert history.rounds == []


def test_a_history_without_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="name a folder: out="):
        feduhb.train(ragged(), 1, epochs=1, keep_history=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        (feduhb.FedEraser(interval=1, epochs=1), ["each update", "stored updates"]),
        (feduhb.FedRecover(epochs=1), ["each update", "stored updates"]),
        (feduhb.Crab(epochs=1), ["each update", "stored updates", "recorded losses"]),
    ],
    ids=["federaser", "fedrecover", "crab"],
)
def test_a_replay_records_what_it_needs(tmp_path: Path, method, needs):
    trained = feduhb.train(
        ragged(), 2, epochs=1, batch_size=8, out=tmp_path / "old", keep_history=True, show=None
    )
    feduhb.unlearn(trained, ["dog"], method=method, out=tmp_path / "new", show=None)
    assert RunFolder(tmp_path / "new").result().get("requires") == needs == list_needs(method)
