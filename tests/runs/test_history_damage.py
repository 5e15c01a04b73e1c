"""Missing, cut short or another run's: refused by name, with the file and the way out, before or in the round that needs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.errors import HistoryError, RunFolderError, StorageError
from feduhb.runs.history import DiskHistory
from feduhb.runs.lineage import Erasure, read_erased
from runs.remembering import drawn, files, written

ROUNDS = 5
ERASER = feduhb.FedEraser(interval=1, epochs=1)
RECOVER = feduhb.FedRecover(warmup=2, buffer=1, correction=0, final=1, epochs=1)
replaying = pytest.mark.parametrize("method", [ERASER, RECOVER], ids=["federaser", "fedrecover"])
WAY_OUT = "train again with --keep-history, or use feduhb, which needs none"
W = torch.zeros(4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    feduhb.train(ragged(), ROUNDS, epochs=1, batch_size=8, lr=0.05, out=folder, keep_history=True)
    return folder


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may damage."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def unlearned(folder: Path, method: feduhb.FedEraser | feduhb.FedRecover) -> feduhb.Run:
    return feduhb.unlearn(feduhb.open_run(folder, ragged()), ["bee"], method=method)


def refused(folder: Path, method: feduhb.FedEraser | feduhb.FedRecover, *words: str) -> None:
    """Refused in these words with the way out, and nothing was erased on the way."""
    before = files(folder)
    with pytest.raises(HistoryError) as caught:
        unlearned(folder, method)
    for word in (*words, "--keep-history", "use feduhb, which needs none"):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files(folder) == before


@replaying
def test_undamaged_it_is_read(copied, method):
    assert unlearned(copied, method).rounds


@replaying
def test_none_was_kept(tmp_path, method):
    run = feduhb.train(ragged(), 2, epochs=1, out=tmp_path / "run")
    with pytest.raises(
        HistoryError, match=rf"{method.name} replays.*kept none.*--keep-history, or use feduhb"
    ):
        feduhb.unlearn(run, ["bee"], method=method)
    in_memory = feduhb.train(ragged(), 2, epochs=1)
    with pytest.raises(HistoryError, match="kept none"):
        feduhb.unlearn(in_memory, ["bee"], method=method)


@replaying
def test_the_folder_is_gone(copied, method):
    shutil.rmtree(copied / "history")
    refused(copied, method, method.name, "kept none")


@replaying
@pytest.mark.parametrize("left", [0, 4, 100])
def test_a_block_is_cut_short(copied, method, left):
    """Round 1 is replayed by FedEraser and paired by FedRecover."""
    block = copied / "history" / "00001" / "block-00000.safetensors"
    block.write_bytes(block.read_bytes()[:left])
    refused(copied, method, str(block), "cut short")


@replaying
def test_a_block_is_missing(copied, method):
    block = copied / "history" / "00003" / "block-00000.safetensors"
    block.unlink()
    refused(copied, method, str(block), "missing")


@pytest.mark.parametrize("round", [1, 3], ids=["exact", "estimated"])
def test_a_model_is_cut_short(copied, round):
    model = copied / "history" / f"{round:05d}" / "params.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    refused(copied, RECOVER, str(model), "cut short")


@replaying
@pytest.mark.parametrize("content", [b"", b'{"parameters": 3, ', b"\xff\xfe"])
def test_a_marker_is_damaged(copied, method, content):
    marker = copied / "history" / "00002" / "round.json"
    marker.write_bytes(content)
    refused(copied, method, str(marker), "damaged")


@replaying
@pytest.mark.parametrize("round", [0, 2], ids=["first", "in the middle"])
def test_a_marker_is_missing(copied, method, round):
    """A hole would shift every later round by one: models and updates would no longer belong together."""
    (copied / "history" / f"{round:05d}" / "round.json").unlink()
    refused(copied, method, str(copied / "history"), f"no round {round}")


@replaying
def test_of_another_run(copied, method, tmp_path):
    """The same settings and model, other data: only the run's name tells them apart."""
    other = ragged({"ant": 1, "bee": 5, "cat": 13, "dog": 24, "elk": 9})
    feduhb.train(other, ROUNDS, epochs=1, batch_size=8, lr=0.05, out=tmp_path / "other", keep_history=True)
    shutil.rmtree(copied / "history")
    shutil.copytree(tmp_path / "other" / "history", copied / "history")
    refused(copied, method, str(copied / "history"), "belongs to another run")


@replaying
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]"])
def test_of_nobody_knows_which_run(copied, method, content):
    owner = copied / "history" / "run.json"
    owner.unlink() if content is None else owner.write_bytes(content)
    refused(copied, method, "belongs to another run")


def test_of_another_model(tmp_path):
    history = written(tmp_path, {0: [drawn("ab")]}, W)
    history.check("own", 4)
    with pytest.raises(HistoryError, match=rf"model with 4 parameters, not 5; {WAY_OUT}"):
        history.check("own", 5)


def test_one_round_of_another_model(tmp_path):
    history = written(tmp_path, {0: [drawn("ab")]}, W)
    history.begin(1, torch.zeros(3))
    history.finish(1, torch.zeros(3), [history.append(1, 0, drawn("ab", 3))])
    with pytest.raises(HistoryError, match="model with 3 parameters, not 4"):
        history.check("own", 4)


def test_empty(tmp_path):
    with pytest.raises(HistoryError, match=rf"no history in {tmp_path}.*{WAY_OUT}"):
        DiskHistory(tmp_path).check("own", 4)


def test_asked_for_a_round_it_does_not_have(tmp_path):
    history = written(tmp_path, {0: [drawn("ab")]}, W)
    for read in (history.clients, history.params, lambda t: next(history.read(t, ["a"]))):
        with pytest.raises(HistoryError, match=rf"no round 7; {WAY_OUT}"):
            read(7)


def test_a_run_does_not_take_another_runs_history_for_its_own(copied, tmp_path):
    """A run that begins where another's rounds still lie would end up with rounds of both."""
    out = tmp_path / "new"
    shutil.copytree(copied / "history", out / "history")
    with pytest.raises(RunFolderError, match=r"new holds history of another run, but no config\.toml"):
        feduhb.train(ragged(), 2, epochs=1, out=out, keep_history=True)
    assert files(out / "history") == files(copied / "history")


@pytest.mark.parametrize("rounds", [(1, 2), (0, 2), (0, 1, 3, 4)])
def test_rounds_that_are_nowhere(tmp_path, rounds):
    """A run that was resumed after its history had been moved away, or a folder somebody deleted."""
    history = written(tmp_path, {t: [drawn("ab")] for t in rounds}, W)
    missing = next(t for t in range(9) if t not in rounds)
    with pytest.raises(HistoryError, match=rf"no round {missing}; {WAY_OUT}"):
        history.check("own", 4)


def test_bound_to_nothing_a_method_says_so():
    with pytest.raises(HistoryError, match=r"has no history.*keep_history"):
        RECOVER.history.params(0)
    with pytest.raises(HistoryError, match="has no history"):
        ERASER.history.read(0, ["a"])


def test_a_history_that_an_erasure_cut_short_is_refused(tmp_path):
    """Replaying only its first rounds would pass for a recovery."""
    history = DiskHistory(tmp_path)
    history.claim("me")
    for t in range(3):
        history.begin(t, torch.zeros(2))
        history.finish(t, torch.zeros(2), [])
    history.check("me", 2, 3)
    with pytest.raises(
        HistoryError, match="ends after 3 of 5 rounds, because the rest was erased; train again"
    ):
        history.check("me", 2, 5)


@pytest.mark.parametrize(
    "marker",
    [
        "{}",
        "[]",
        "null",
        '{"parameters": 2, "dtype": "float32"}',
        '{"parameters": 2, "dtype": "odd", "blocks": []}',
    ],
)
def test_a_marker_that_says_nothing_is_damage_and_does_not_stop_an_erasure(tmp_path, marker):
    history = DiskHistory(tmp_path)
    history.claim("me")
    for t in range(2):
        history.begin(t, torch.zeros(2))
        history.finish(t, torch.zeros(2), [])
    (tmp_path / "00001" / "round.json").write_text(marker)
    (tmp_path / ".ipynb_checkpoints").mkdir()
    with pytest.raises(HistoryError, match=r"round\.json is damaged; train again"):
        history.clients(1)
    assert history.forget(["anybody"]) > 0
    assert history.rounds == [0]


def test_a_tensor_of_another_shape_is_refused(tmp_path):
    history = DiskHistory(tmp_path)
    history.begin(0, torch.zeros(2))
    history.finish(0, torch.zeros(3), [])
    with pytest.raises(HistoryError, match=r"params\.safetensors is missing, cut short or damaged"):
        history.params(0)


def test_updates_too_large_for_float16_are_refused(tmp_path):
    history = DiskHistory(tmp_path, half=True)
    history.begin(0, torch.zeros(1))
    with pytest.raises(HistoryError, match="is too large for float16; keep full precision"):
        history.append(0, 0, feduhb.Updates(("a",), torch.tensor([[1e6]]), torch.ones(1)))


@replaying
@pytest.mark.parametrize("name", ["block-00000.safetensors", "params.safetensors", "round.json"])
def test_a_flipped_bit_is_noticed(copied, method, name):
    if method is ERASER and name == "params.safetensors":
        return  # it reads no model after the first
    path = copied / "history" / "00001" / name
    data = bytearray(path.read_bytes())
    place = data.index(b'"weights": [') + 12 if name == "round.json" else len(data) - 3
    data[place] ^= 1
    path.write_bytes(data)
    refused(copied, method, str(path), "damaged")


@replaying
def test_a_history_of_an_earlier_version_has_no_checksums(copied, method):
    expected = unlearned(shutil.copytree(copied, copied.with_name("same")), method)
    for path in copied.glob("history/*/round.json"):
        about = json.loads(path.read_text())
        del about["sha256"], about["params_digest"]
        for block in about["blocks"]:
            del block["digests"]
        path.write_text(json.dumps(about))
    assert torch.equal(unlearned(copied, method).params, expected.params)


def test_a_folder_that_is_not_a_round_blocks_nothing(copied):
    for name in ("2024", "00007-copy", "٠٠٠٠٩"):
        (copied / "history" / name).mkdir()
    run = feduhb.unlearn(feduhb.open_run(copied, ragged()), ["bee"], rounds=1, show=None)
    assert run.erased[0].last_round == ROUNDS - 1
    assert DiskHistory(copied / "history").rounds == []


@pytest.mark.parametrize("place", ["history", "history/00003", "history/00003/round.json"])
@pytest.mark.parametrize("method", ["feduhb", ERASER], ids=["feduhb", "federaser"])
def test_what_a_link_points_to_is_not_deleted_and_nothing_is_erased_in_vain(copied, tmp_path, method, place):
    foreign = tmp_path / "foreign"
    shutil.move(copied / place, foreign)
    (copied / place).symlink_to(foreign)
    before = files(tmp_path)
    with pytest.raises(HistoryError, match=rf"{place} is a link, and an erasure would not reach"):
        feduhb.unlearn(feduhb.open_run(copied, ragged()), ["bee"], method=method, rounds=1, show=None)
    assert files(tmp_path) == before


def test_what_was_erased_is_recorded(copied, tmp_path):
    opened = feduhb.open_run(copied, ragged())
    size = DiskHistory(copied / "history").measure(range(ROUNDS))
    run = feduhb.unlearn(opened, ["bee"], rounds=1, out=tmp_path / "new", show=None)
    (erased,) = run.erased
    assert (erased.first_round, erased.last_round, erased.bytes) == (0, ROUNDS - 1, size)
    assert (erased.run, bool(erased.finished)) == ("../new", True)
    assert read_erased(copied) == [erased]
    assert str(erased).startswith(
        f"erased {size:,} bytes of history in {copied / 'history'}: rounds 0 to 4; "
    )


def test_an_erasure_that_was_killed_is_recorded_once_and_as_a_whole(copied, monkeypatch):
    history = DiskHistory(copied / "history")
    size, erasure = history.measure(range(ROUNDS)), Erasure(((history, ("bee",)),))

    def refuse(path: Path) -> None:
        if path.name == "00002":
            raise StorageError("cannot write it: Permission denied")
        shutil.rmtree(path)

    with monkeypatch.context() as patch:
        patch.setattr("feduhb.runs.history.remove", refuse)
        with pytest.raises(StorageError):
            erasure.delete()
    assert [one.finished for one in read_erased(copied)] == [None]
    (erased,) = erasure.delete()
    assert (erased.first_round, erased.last_round, erased.bytes) == (0, ROUNDS - 1, size)
    assert read_erased(copied) == [erased]
    assert erased.finished
