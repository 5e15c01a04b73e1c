"""Observers watch the stream of rounds and pass it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from feduhb.errors import StorageError
from feduhb.methods import FedUHB
from feduhb.methods.feduhb import HeavyBall
from feduhb.runs.checkpoint import load_state, saved
from feduhb.runs.folder import Round, RunFolder
from feduhb.runs.loop import evaluated, run, shown
from toys import quadratics

METHOD = FedUHB(0.5, 0.8, epochs=1)
LIKE = METHOD.init(torch.zeros(3, dtype=torch.float64))


def rounds(count: int = 4) -> Iterator[tuple[HeavyBall, Round]]:
    return run(METHOD, quadratics(), ("a", "b", "c"), LIKE, rounds=count)


def folder_in(path: Path) -> RunFolder:
    folder = RunFolder(path / "run")
    folder.create("seed = 0\n")
    return folder


def norm(done: int, params: Tensor) -> dict[str, float]:  # noqa: ARG001
    return {"norm": float(params.norm())}


def test_evaluated_scores_every_model_and_keeps_the_rest():
    for (state, record), (plain, bare) in zip(evaluated(rounds(), norm), rounds(), strict=True):
        assert torch.equal(state.params, plain.params)
        assert record.scores == norm(record.round + 1, state.params)
        assert record.evaluate_seconds >= 0
        assert (record.round, record.moved, record.asked) == (bare.round, bare.moved, bare.asked)


def test_shown_tells_of_every_round_in_order():
    seen: list[int] = []
    passed = [record.round for _, record in shown(rounds(), lambda record: seen.append(record.round))]
    assert seen == passed == [0, 1, 2, 3]


def test_saved_writes_records_and_the_newest_state(tmp_path: Path):
    folder = folder_in(tmp_path)
    for state, record in saved(rounds(), folder):
        assert folder.rounds()[-1] == record
        loaded, done = load_state(folder.state_path, LIKE)
        assert done == record.round + 1 == len(folder.rounds())
        assert torch.equal(loaded.params, state.params)
        assert torch.equal(loaded.previous, state.previous)


def test_they_compose_in_the_order_of_the_docstring(tmp_path: Path):
    folder, seen = folder_in(tmp_path), []
    kept = [record for _, record in shown(saved(evaluated(rounds(), norm), folder), seen.append)]
    assert folder.rounds() == kept == seen
    assert all("norm" in record.scores for record in kept)


def test_nothing_runs_before_it_is_asked_for(tmp_path: Path):
    folder, seen = folder_in(tmp_path), []
    stream = shown(saved(evaluated(rounds(), norm), folder), seen.append)
    assert seen == folder.rounds() == []
    next(iter(stream))
    assert len(seen) == len(folder.rounds()) == 1


def test_a_crash_between_record_and_checkpoint_leaves_one_record_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Never the other way round: a checkpoint whose rounds are not recorded could not be resumed."""
    folder = folder_in(tmp_path)
    stream = saved(rounds(), folder)
    next(stream)

    def refuse(*_: object) -> None:
        raise StorageError("no")

    monkeypatch.setattr("feduhb.runs.checkpoint.save_state", refuse)
    with pytest.raises(StorageError):
        next(stream)
    assert len(folder.rounds()) == 2
    assert load_state(folder.state_path, LIKE)[1] == 1


def test_a_run_killed_anywhere_resumes_to_the_same_bits(tmp_path: Path):
    """Resume as a user would: the checkpoint says how many records count, the rest is dropped."""
    *_, (whole, last) = rounds(6)
    folder = folder_in(tmp_path)
    for _ in zip(range(3), saved(rounds(6), folder), strict=False):
        pass
    folder.append(folder.rounds()[-1])  # a record past its checkpoint
    state, done = load_state(folder.state_path, LIKE)
    folder.rewrite_rounds(folder.rounds()[:done])
    moved = [record.moved for record in folder.rounds()]
    rest = run(METHOD, quadratics(), ("a", "b", "c"), state, rounds=6, first=done, moved=moved)
    *_, (resumed, record) = saved(rest, folder)
    assert torch.equal(resumed.params, whole.params)
    assert record.moved == last.moved
    assert [r.round for r in folder.rounds()] == list(range(6))


def test_checkpoints_can_be_rarer_than_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Rounds at 0, 1, 2, 3 seconds, checkpoints two seconds apart at least: after the first, the third and the last."""
    now = iter([0.0, 0.0, 1.0, 2.0, 2.0, 3.0])
    monkeypatch.setattr("feduhb.runs.checkpoint.time.monotonic", lambda: next(now))
    folder = folder_in(tmp_path)
    done = [load_state(folder.state_path, LIKE)[1] for _ in saved(rounds(), folder, every=2.0)]
    assert done == [1, 1, 3, 3]
    assert load_state(folder.state_path, LIKE)[1] == 4 == len(folder.rounds())


def test_a_crash_between_rare_checkpoints_costs_the_rounds_since(tmp_path: Path):
    folder = folder_in(tmp_path)
    stream = saved(rounds(), folder, every=1e9)
    for _ in range(3):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert load_state(folder.state_path, LIKE)[1] == 1
    assert len(folder.rounds()) == 3  # a resumed run drops two of them
