"""Rollback on every engine, with the best model kept, after a kill, and over clients elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import feduhb
from federations import tensors
from feduhb.errors import ConfigError
from feduhb.runs import execute
from feduhb.runs.folder import RunFolder

NAMES = [f"c{i:02d}" for i in range(12)]
ROUNDS = 6
HOW: dict[str, Any] = {
    "epochs": 1, "batch_size": 4, "lr": 0.05, "clients_per_round": 2, "engine": "loop", "show": None,
}  # fmt: skip


def draw(names=NAMES, *, norm: bool = False, large: str = "") -> feduhb.Federation:
    layers = [nn.Flatten(), nn.Linear(144, 3), *([nn.BatchNorm1d(3)] if norm else [])]
    data = {name: tensors(name, 9 if name == large else 6) for name in names}
    held = {name: tensors(f"held {name}", 4) for name in names}
    return feduhb.Federation(data, tensors("test", 6), nn.Sequential(*layers).double(), seed=3, held_out=held)


def find_client(run: feduhb.Run, first: int) -> str:
    before = {client for record in run.rounds[:first] for client in record.asked}
    return next(client for client in run.rounds[first].asked if client not in before)


@pytest.mark.parametrize("engine", ["loop", "pool", "stacked"])
@pytest.mark.parametrize("keep", ["last", "best"])
def test_it_equals_a_training_that_never_held_the_leaver(engine, keep, tmp_path):
    how = {**HOW, "engine": engine, "keep": keep}
    leaver = find_client(feduhb.train(draw(), ROUNDS, **how), 2)  # whom a round asks does not depend on sizes
    run = feduhb.train(draw(large=leaver), ROUNDS, keep_models="1MB", out=tmp_path / "a", **how)
    new = feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    never = feduhb.train(draw([name for name in NAMES if name != leaver]), ROUNDS, **how)
    assert new.restart_round == 2
    assert torch.equal(new.params, never.params)
    assert [r.held_out for r in new.rounds] == [r.held_out for r in never.rounds]
    assert (new.keep, new.kept_round) == (keep, never.kept_round)


def test_the_best_model_may_be_one_from_before_the_restart(tmp_path):
    how = {**HOW, "keep": "best", "lr": 30.0}  # so that later models are worse
    run = feduhb.train(draw(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **how)
    found = set()
    for first in range(1, ROUNDS):
        leaver = next(
            iter({*run.rounds[first].asked} - {c for r in run.rounds[:first] for c in r.asked}), None
        )
        if leaver is None:
            continue
        new = feduhb.unlearn(
            run, [leaver], method="rollback", out=tmp_path / f"{first}", erase_history=False, show=None
        )
        never = feduhb.train(draw([name for name in NAMES if name != leaver]), ROUNDS, **how)
        assert torch.equal(new.params, never.params)
        found.add(new.kept_round < new.restart_round)
    assert any(found), "some run keeps a model from before its restart"


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("first", [3, ROUNDS])
def test_no_score_is_of_test_data_that_is_forgotten(first, keep, tmp_path):
    """Each client has test data of its own, which leaves with it. Earlier models cannot be scored again: they are not kept."""
    how = {**HOW, "keep": keep}

    def make(names=NAMES):
        return draw(names).replace(test={name: tensors(f"test {name}", 5) for name in names})

    run = feduhb.train(make(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **how)
    asked = {client for record in run.rounds for client in record.asked}
    leaver = find_client(run, first) if first < ROUNDS else next(name for name in NAMES if name not in asked)
    new = feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    never = feduhb.train(make([name for name in NAMES if name != leaver]), ROUNDS, **how)
    scored = {record.round: record.scores for record in new.rounds if record.scores}
    assert scored == {t: never.rounds[t].scores for t in scored}
    own = range(first - 1, ROUNDS) if first < ROUNDS or keep == "last" else ()
    assert {*own, new.kept_round - 1} <= {*scored}
    assert RunFolder(tmp_path / "b").result()["scores"] == never.rounds[never.kept_round - 1].scores


def test_no_score_is_of_test_data_that_was_standardised_by_forgotten_rows(tmp_path):
    """A request for rows changes the mean and the spread of a client, by which its test data is standardised too."""

    def some(name: str, count: int):
        x, y = tensors(name, count, dtype=torch.float32)
        return x.flatten(1)[:, :4], y

    def make(without=(), rows=()):
        data = {name: some(name, 6) for name in NAMES}
        data |= {
            name: tuple(part[[i for i in range(6) if i not in rows]] for part in data[name])
            for name in without
        }
        test = {name: some(f"test {name}", 5) for name in NAMES}
        return feduhb.Federation(data, test, nn.Linear(4, 3), seed=3, standardize=True)

    run = feduhb.train(make(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **HOW)
    leaver = find_client(run, 3)
    new = feduhb.unlearn(run, {leaver: [0, 2]}, method="rollback", out=tmp_path / "b", show=None)
    never = feduhb.train(make([leaver], [0, 2]), ROUNDS, **HOW)
    assert new.restart_round == 3
    assert torch.equal(new.params, never.params)
    assert [record.scores for record in new.rounds] == [
        {},
        {},
        *(record.scores for record in never.rounds[2:]),
    ]


@pytest.mark.parametrize("step", ["rewrite_rounds", "save_state", "erase"])
@pytest.mark.parametrize("keep", ["last", "best"])
def test_killed_before_its_first_round_it_is_resumed(step, keep, tmp_path, monkeypatch):
    how = {**HOW, "keep": keep}
    run = feduhb.train(draw(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **how)
    leaver = find_client(run, 3)

    def kill(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder if step == "rewrite_rounds" else execute, step, kill)
        with pytest.raises(KeyboardInterrupt):
            feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    again = feduhb.open_run(tmp_path / "a", draw())
    new = feduhb.unlearn(again, [leaver], method="rollback", out=tmp_path / "b", resume=True, show=None)
    never = feduhb.train(draw([name for name in NAMES if name != leaver]), ROUNDS, **how)
    assert torch.equal(new.params, never.params)
    assert new.restart_round == 3
    assert sorted(path.name for path in (tmp_path / "a" / "kept-models").iterdir()) == [
        f"after-{done:06d}.safetensors" for done in (1, 2, 3)
    ]


def test_a_leaver_that_made_the_batches_of_all_clients_wider_is_refused(tmp_path):
    how = {**HOW, "engine": "stacked"}
    leaver = find_client(feduhb.train(draw(norm=True), ROUNDS, **how), 2)
    run = feduhb.train(draw(norm=True, large=leaver), ROUNDS, keep_models="1MB", out=tmp_path / "a", **how)
    with pytest.raises(ConfigError, match=rf"only because of client {leaver}, .*; use retrain"):
        feduhb.unlearn(run, [leaver], method="rollback", out=tmp_path / "b", show=None)
    assert not (tmp_path / "b").exists()


def test_it_says_how_many_rounds_are_left_after_an_unlearning_by_another_method(tmp_path, capsys):
    run = feduhb.train(draw(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **HOW)
    one, other = find_client(run, 4), find_client(run, 2)
    second = feduhb.unlearn(run, [one], method="retrain", rounds=2, out=tmp_path / "b", show=None)
    capsys.readouterr()
    new = feduhb.unlearn(second, [other], method="rollback", out=tmp_path / "c", show=None)
    assert "rollback continues after 2 of 6 rounds" in capsys.readouterr().err
    never = feduhb.train(draw([name for name in NAMES if name not in {one, other}]), ROUNDS, **HOW)
    assert torch.equal(new.params, never.params)


def test_after_a_retraining_it_computes_as_many_clients_together_as_the_training_did(tmp_path):
    how = {**HOW, "engine": "stacked"}
    run = feduhb.train(draw(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **how)
    one, other = find_client(run, 4), find_client(run, 2)
    second = feduhb.unlearn(run, [one], method="retrain", rounds=2, out=tmp_path / "b", show=None)
    assert (run.block, second.block) == (12, 11)  # of its own accord
    new = feduhb.unlearn(second, [other], method="rollback", out=tmp_path / "c", show=None)
    rest = [name for name in NAMES if name not in {one, other}]
    assert (new.block, new.restart_round) == (12, 2)
    assert torch.equal(new.params, feduhb.train(draw(rest), ROUNDS, **{**how, "block": 12}).params)


def test_a_comparison_keeps_no_models(tmp_path):
    run = feduhb.train(draw(), ROUNDS, keep_models="1MB", out=tmp_path / "a", **HOW)
    feduhb.compare(run, [find_client(run, 3)], ["rollback"], out=tmp_path / "compared", show=None)
    assert not (tmp_path / "compared" / "rollback" / "kept-models").exists()
    assert len(list((tmp_path / "a" / "kept-models").iterdir())) == ROUNDS - 1


def test_no_history_without_the_first_rounds_is_kept(tmp_path):
    run = feduhb.train(draw(), ROUNDS, keep_models="1MB", keep_history=True, out=tmp_path / "a", **HOW)
    new = feduhb.unlearn(run, [find_client(run, 3)], method="rollback", out=tmp_path / "b", show=None)
    assert new.restart_round == 3
    assert new.history is None
