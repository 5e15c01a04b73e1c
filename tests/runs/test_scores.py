"""Scores of runs: recorded with their direction, refused before anything is trained, and never needed to open a run."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import feduhb
from data.wording import refused
from feduhb.errors import ConfigError
from feduhb.runs.config import parse_config, read_config, to_toml
from feduhb.runs.folder import RunFolder

HOW: dict[str, Any] = {"epochs": 1, "engine": "loop", "show": None}


def count_right(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == y).sum()


def load(**more: Any) -> feduhb.Federation:
    return feduhb.load("digits", clients=2, per_client=12, model="softmax", **more)


def test_given_scores_are_recorded_in_their_order_with_their_direction(tmp_path):
    scores = [
        "auroc",
        feduhb.Score("wrong-or-not", lambda o, y: len(y) - count_right(o, y), "low"),
        "accuracy",
    ]
    run = feduhb.train(load(scores=scores), 2, out=tmp_path / "run", **HOW)
    names = ["test_loss", "test_auroc", "test_wrong-or-not", "test_accuracy"]
    assert [[*record.scores] for record in RunFolder(tmp_path / "run").rounds()] == [names, names]
    last = run.rounds[-1].scores
    assert last["test_wrong-or-not"] == pytest.approx(360 * (1 - last["test_accuracy"]))
    assert repr(run).startswith("Run(retrain, 2 rounds, test AUROC 0.")
    assert "  AUROC 0." in str(run.rounds[-1])
    config = read_config(tmp_path / "run" / "config.toml")
    assert config.scores == {"auroc": "high", "wrong-or-not": "low", "accuracy": "high"}
    assert config.federation is not None
    assert config.federation.scores == ("auroc", "accuracy")


def test_a_run_with_an_own_score_opens_and_forgets_without_its_code(tmp_path):
    feduhb.train(load(scores={"right": count_right}), 1, out=tmp_path / "run", **HOW)
    opened = feduhb.open_run(tmp_path / "run")
    assert [*opened.rounds[-1].scores] == ["test_loss", "test_right"]
    after = feduhb.unlearn(opened, ["c00"], rounds=1, show=None)
    assert [*after.rounds[-1].scores] == ["test_loss", "test_accuracy"]


def test_named_scores_come_back_with_the_data(tmp_path):
    feduhb.train(load(scores="f1"), 1, out=tmp_path / "run", **HOW)
    after = feduhb.unlearn(feduhb.open_run(tmp_path / "run"), ["c00"], rounds=1, show=None)
    assert [*after.rounds[-1].scores] == ["test_loss", "test_f1"]


def test_scores_of_a_config_file():
    config = parse_config({"federation": {"data": "digits", "scores": ["auroc", "f1"]}}, "c.toml")
    assert config.federation is not None
    assert config.federation.scores == ("auroc", "f1")
    assert parse_config(tomllib.loads(to_toml(config)), "c.toml") == config
    with refused(ConfigError, "c.toml: there is no score 'AUC'; choose one of accuracy, auroc"):
        parse_config({"federation": {"scores": ["AUC"]}}, "c.toml")


def test_runs_without_given_scores_record_none(tmp_path):
    feduhb.train(load(), 1, out=tmp_path / "run", **HOW)
    assert "scores" not in (tmp_path / "run" / "config.toml").read_text()


def test_scores_change_no_weight_and_can_be_replaced():
    plain, scored = load(), load(scores=["auroc", "f1"])
    runs = [feduhb.train(one, 1, **HOW) for one in (plain, scored, scored.replace(scores=None))]
    assert all(torch.equal(runs[0].params, run.params) for run in runs)
    assert [len(run.rounds[0].scores) for run in runs] == [2, 3, 2]


def test_a_resumed_run_has_the_same_scores(tmp_path):
    feduhb.train(load(scores="f1"), 1, out=tmp_path / "run", **HOW)
    with pytest.raises(feduhb.FeduhbError, match="was started with"):
        feduhb.train(load(), 1, out=tmp_path / "run", resume=True, **HOW)


@pytest.mark.parametrize("scores", ["rmse", {"mine": lambda *_: None}, {"mine": lambda *_: 1 // 0}])
def test_a_score_that_fails_is_refused_before_anything_is_written_or_erased(scores, tmp_path):
    with refused(ConfigError, "the score "):
        feduhb.train(load(scores=scores), 1, out=tmp_path / "run", **HOW)
    assert not (tmp_path / "run").exists()
    kept = feduhb.train(load(), 1, out=tmp_path / "kept", keep_history=True, **HOW)
    changed = {"federation": kept.federation.replace(scores=scores)}
    with refused(ConfigError, "the score "):
        feduhb.unlearn(replace(kept, **changed), ["c00"], rounds=1, show=None)
    assert kept.history is not None


def test_a_score_that_is_not_defined_is_left_out_of_records():
    x, y = torch.rand(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
    one_class = (x, torch.ones(6, dtype=torch.int64))
    federation = feduhb.Federation(
        {"a": (x, y)}, one_class, lambda: nn.Linear(3, 2), scores=["auroc", "accuracy"]
    )
    assert [*feduhb.train(federation, 1, **HOW).rounds[0].scores] == ["test_loss", "test_accuracy"]


def test_logits_have_an_accuracy_by_default():
    x = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])
    y = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    federation = feduhb.Federation({"a": (x, y)}, (x, y), lambda: nn.Linear(1, 1), loss="bce_with_logits")
    last = feduhb.train(federation, 60, lr=0.5, **HOW).rounds[-1].scores
    assert last["test_accuracy"] == 1.0
    assert last["test_loss"] < math.log(2)
