"""The wrapper that writes a history down: methods and pipes must not be able to tell that it is there."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import feduhb
from feduhb.core.types import ClientId, Updates, Work
from feduhb.errors import AnswerError, HistoryError
from feduhb.methods import FedUHB
from feduhb.runs.history import DiskHistory, RecordingEngine
from feduhb.runs.loop import run
from runs.remembering import drawn
from toys import Scripted, block_of, quadratics

W = torch.zeros(4)


@dataclass
class Counting:
    """Makes its blocks when they are asked for, and notes how many earlier ones were still alive each time."""

    blocks: int
    alive: set[int] = field(default_factory=set)
    seen: list[int] = field(default_factory=list)

    @property
    def about(self) -> Mapping[str, Any]:
        return {"name": "counting"}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:  # noqa: ARG002
        for i in range(self.blocks):
            self.seen.append(len(self.alive))
            yield self._made(i, work.params)

    def _made(self, i: int, params: Tensor) -> Updates:
        values = params.expand(2, -1) + i
        self.alive.add(i)
        weakref.finalize(values, self.alive.discard, i)
        return Updates((f"c{2 * i}", f"c{2 * i + 1}"), values, torch.ones(2))


def test_blocks_pass_on_unchanged_and_in_order(tmp_path):
    blocks = [drawn("ba"), drawn("dc", seed=1), drawn("e", seed=2)]
    kept = [block.values.clone() for block in blocks]
    history = DiskHistory(tmp_path, half=True)  # what is stored may be rounded, what passes may not
    through = list(RecordingEngine(Scripted({3: blocks}), history).train(Work(W, 1), list("abcde"), 3))
    assert all(one is other for one, other in zip(through, blocks, strict=True))
    assert all(torch.equal(block.values, values) for block, values in zip(through, kept, strict=True))
    assert history.rounds == [3]
    assert history.clients(3) == ("b", "a", "d", "c", "e")


def test_it_works_lazily(tmp_path):
    engine = Scripted({0: [drawn("a"), drawn("b"), drawn("c")]})
    history = DiskHistory(tmp_path / "history")
    stream = RecordingEngine(engine, history).train(Work(W, 1), list("abc"), 0)
    assert not (tmp_path / "history").exists()
    for taken in (1, 2, 3):
        next(stream)
        assert engine.told == taken
        assert len(list((tmp_path / "history" / "00000").glob("block-*"))) == taken
        assert history.rounds == []
    assert next(stream, None) is None
    assert history.rounds == [0]


def test_never_more_than_a_block_is_held(tmp_path):
    """When a block is made, at most the one before is alive: the reader has it in hand until it gets the next."""
    engine = Counting(blocks=8)
    stream = RecordingEngine(engine, DiskHistory(tmp_path)).train(Work(W, 1), [f"c{i}" for i in range(16)], 0)
    for _ in stream:
        pass
    assert len(engine.seen) == 8
    assert max(engine.seen) <= 1


def test_never_more_than_a_block_is_held_by_a_whole_run(tmp_path):
    engine = Counting(blocks=8)
    clients = [f"c{i}" for i in range(16)]
    method = FedUHB(epochs=1)
    list(run(method, RecordingEngine(engine, DiskHistory(tmp_path)), clients, method.init(W), rounds=3))
    assert len(engine.seen) == 24
    assert max(engine.seen) <= 2  # the block before, and the first, which the loop looked ahead at


def test_a_stream_cut_short_leaves_no_round_and_the_next_attempt_replaces_it(tmp_path):
    history = DiskHistory(tmp_path)
    engine = RecordingEngine(Scripted({0: [drawn("ab"), drawn("cd")]}), history)
    stream = engine.train(Work(W, 1), list("abcd"), 0)
    next(stream)
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert history.rounds == []
    list(engine.train(Work(W, 1), list("abcd"), 0))
    assert history.rounds == [0]
    assert history.clients(0) == ("a", "b", "c", "d")


def test_closing_it_closes_the_engines_stream(tmp_path):
    """An engine with work under way must hear at once that nobody listens any more."""
    engine = Scripted({0: [drawn("ab"), drawn("cd")]})
    stream = RecordingEngine(engine, DiskHistory(tmp_path)).train(Work(W, 1), list("abcd"), 0)
    next(stream)
    assert engine.closed == []
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert engine.closed == [0]


def test_a_bad_answer_leaves_no_round(tmp_path):
    bad = block_of({"c": [float("nan")], "d": [1]})
    engine = Scripted({0: [block_of({"a": [1], "b": [2]})], 1: [block_of({"a": [1], "b": [2]}), bad]})
    history, method = DiskHistory(tmp_path), FedUHB(epochs=1)
    start = method.init(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(AnswerError, match="client c"):
        list(run(method, RecordingEngine(engine, history), list("abcd"), start, rounds=2))
    assert history.rounds == [0]


def test_a_run_is_the_same_with_and_without_it(tmp_path):
    method, start = FedUHB(epochs=2, step_size=0.5), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    plain = list(run(method, quadratics(), list("abcde"), method.init(start), rounds=5))
    recorded = RecordingEngine(quadratics(), DiskHistory(tmp_path))
    kept = list(run(method, recorded, list("abcde"), method.init(start), rounds=5))
    for t, ((one, a), (other, b)) in enumerate(zip(plain, kept, strict=True)):
        assert torch.equal(one.params, other.params)
        assert (a.asked, a.answered, a.moved) == (b.asked, b.answered, b.moved)
        assert torch.equal(recorded.history.params(t), start if t == 0 else plain[t - 1][0].params)


def test_pre_summed_answers_are_refused(tmp_path):
    method = FedUHB(epochs=1)
    engine = RecordingEngine(quadratics(presummed=True), DiskHistory(tmp_path))
    with pytest.raises(HistoryError, match="secure aggregation"):
        list(run(method, engine, list("abc"), method.init(torch.zeros(3, dtype=torch.float64)), rounds=1))
    assert engine.history.rounds == []


@pytest.mark.parametrize(("half", "said"), [(False, "full precision"), (True, "float16")])
def test_it_says_that_a_history_is_kept(tmp_path, half, said):
    about = RecordingEngine(quadratics(lr=0.3), DiskHistory(tmp_path, half=half)).about
    assert about["history"] == said
    assert about["lr"] == 0.3


def test_training_is_the_same_with_and_without_it(tmp_path):
    from federations import ragged

    how: dict[str, Any] = {"epochs": 1, "batch_size": 6, "lr": 0.05, "clients_per_round": 3}
    plain = feduhb.train(ragged(), 3, **how)
    for keep in (True, "float16"):
        kept = feduhb.train(ragged(), 3, **how, out=tmp_path / str(keep), keep_history=keep)
        assert torch.equal(plain.params, kept.params)
        assert kept.history is not None
        assert kept.history.rounds == [0, 1, 2]
        assert [set(kept.history.clients(t)) for t in range(3)] == [set(r.asked) for r in plain.rounds]
