"""Audits with scores: measured on three kinds of data, shown in tables, and used in place of an accuracy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import feduhb
from audit.auditing import QUIET
from feduhb.audit.audit import audit
from feduhb.audit.measures import compute_number_distance, measure_distances, measure_score
from feduhb.audit.result import MODELS, ORIGINAL, RETRAIN, UNLEARNED, Audit, Distance
from feduhb.core.scores import SCORES, Score
from feduhb.report.audit_charts import chart_clients
from feduhb.report.audit_tables import describe_changes, list_changes, make_grids
from feduhb.report.runs import read_runs

pytestmark = pytest.mark.slow

WEIGHTS = torch.tensor([[1.0], [-2.0], [0.5]])
HOW: dict[str, Any] = {"epochs": 2, "batch_size": 10, "lr": 0.1, "engine": "loop", "show": None}


def worst(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).abs().max()


def make_regression(**more: Any) -> feduhb.Federation:
    draw = torch.Generator().manual_seed(0)

    def some(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 3, generator=draw)
        return x, x @ WEIGHTS + 0.1 * torch.randn(count, 1, generator=draw)

    clients = {client: some(20) for client in ("ant", "bee", "cat", "dog")}
    held = {client: some(8) for client in clients}
    return feduhb.Federation(clients, some(40), lambda: nn.Linear(3, 1), loss="mse", held_out=held, **more)


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, Path]:
    folder = tmp_path_factory.mktemp("regression")
    federation = make_regression(scores=["rmse", Score("worst_case", worst, "low")])
    trained = feduhb.train(federation, 8, out=folder / "old", **HOW)
    run = feduhb.unlearn(trained, ["bee"], method="retrain", rounds=8, out=folder / "new", show=None)
    return audit(run, trained, canaries=0, relearn=3, show=None), folder


def test_scores_are_measured_on_all_data(regression):
    found, folder = regression
    assert {name: scored.best for name, scored in found.scores.items()} == {
        "rmse": "low",
        "worst_case": "low",
    }
    for model in MODELS:
        loss, rmse = found.loss[model], found.scores["rmse"].models[model]
        for part in ("forgotten", "retained", "test"):
            assert getattr(rmse, part) == pytest.approx(getattr(loss, part) ** 0.5, rel=1e-5)
    result = json.loads((folder / "new" / "result.json").read_text())
    assert found.scores["worst_case"].models[UNLEARNED].test == pytest.approx(
        result["scores"]["test_worst_case"]
    )


def test_clients_and_relearning_go_by_the_main_score_in_its_direction(regression):
    found, _ = regression
    assert (found.main_score, found.is_low_best) == ("rmse", True)
    assert found.relearn is not None
    assert found.relearn.goal == pytest.approx(found.scores["rmse"].models[ORIGINAL].forgotten)
    worse = [row.client for row in found.clients.rows if (row.after or 0) > (row.before or 0)]
    assert {row.client for row in list_changes(found) if row.gain < 0} == {*worse}
    assert " score better on their held-out data, " in describe_changes(found)
    assert f"Relearning the forgotten data to {found.relearn.goal:#.3g}" in str(found)
    assert f"{len(worse)} worse (from " in str(found)


def test_tables_and_charts_without_an_accuracy(regression):
    found, folder = regression
    grids = make_grids(read_runs([folder / "new"]))
    assert [row[1:3] for row in grids["scores"].rows][:3] == [
        ["RMSE (less is better)", name] for name in ("original", "Retrain", "unlearned")
    ]
    rmse = found.scores["rmse"].models[UNLEARNED].test
    assert grids["verdicts"].headers[-1] == "test score"
    assert grids["verdicts"].rows[0][-1] == f"RMSE {rmse:#.3g}"
    assert grids["clients"].rows[0][1] == "held-out data, RMSE"
    assert "median change" in grids["clients"].headers
    assert grids["relearn"].headers[1] == "score to reach"
    assert grids["apart"].rows[1][1:] == ["unlearned", "0.00", "1.00", "0.00"]
    assert "accuracy" not in grids
    assert "distance" not in grids
    chart = chart_clients(found, "Retrain")
    assert chart is not None
    assert chart.title == "Remaining clients, RMSE: Retrain"
    assert [key.name for key in chart.keys][1:] == ["after: worse", "after: better"]
    assert "%" not in chart.series[0].texts[0]


def test_the_terminal_shows_scores_and_the_distance_of_numbers(regression):
    text = str(regression[0])
    assert "\nRMSE         forgotten  retained      test   less is better\n" in text
    assert "\nworst case   forgotten  retained      test   less is better\n" in text
    assert "\nTo Retrain         L2  cosine  answers\n" in text
    assert "Accuracy" not in text


def test_labels_keep_their_accuracy_and_have_scores_beside_it(tmp_path):
    federation = feduhb.load("breast-cancer", clients=3, model="logistic", scores=["auroc", "accuracy"])
    trained = feduhb.train(federation, 3, out=tmp_path / "old", **HOW)
    run = feduhb.unlearn(trained, ["c00"], rounds=3, out=tmp_path / "new", show=None)
    found = audit(run, trained, canaries=0, exactness=False, **QUIET)
    assert [*found.scores] == ["auroc"]
    assert found.main_score == "accuracy"
    assert found.accuracy[UNLEARNED].test == run.rounds[-1].scores["test_accuracy"]
    assert found.scores["auroc"].models[UNLEARNED].test == pytest.approx(run.rounds[-1].scores["test_auroc"])
    text = str(found)
    assert text.index("\nAccuracy ") < text.index("\nAUROC ") < text.index("\nLoss ")
    again = Audit.from_json(found.to_json())
    assert again == found
    grids = make_grids(read_runs([tmp_path / "new"]))
    assert grids["verdicts"].headers[-1] == "test accuracy"
    assert {row[1] for row in grids["scores"].rows} == {"AUROC"}


def test_an_audit_of_an_earlier_version_has_no_scores(regression):
    values = json.loads(regression[0].to_json())
    del values["scores"]
    for far in values["distance"].values():
        far |= {"kl": 0.1, "disagreement": 0.2}
        del far["rms"]
    old = Audit.from_json(json.dumps(values))
    assert old.scores == {}
    assert (old.main_score, old.is_low_best) == ("accuracy", False)
    assert "Accuracy     forgotten" in str(old)


def test_distances_of_numbers_and_of_logits():
    found = compute_number_distance(
        torch.tensor([3.0, 4.0]), torch.zeros(2), torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])
    )
    assert found == Distance(5.0, 0.0, None, None, 1.0)
    x = torch.tensor([[1.0], [-1.0]])
    y = torch.tensor([[1.0], [0.0]])
    federation = feduhb.Federation({"a": (x, y)}, (x, y), lambda: nn.Linear(1, 1), loss="bce_with_logits")
    run = feduhb.train(federation, 1, **HOW)

    def weigh(weight: float) -> feduhb.Run:
        return replace(run, state=run.state._replace(params=torch.tensor([weight, 0.0])))

    far = measure_distances(
        {UNLEARNED: weigh(-1.0), ORIGINAL: weigh(1.0), RETRAIN: weigh(1.0)}, federation, {}
    )
    p = torch.sigmoid(torch.tensor(1.0)).double()
    expected = float(p * (p / (1 - p)).log() + (1 - p) * ((1 - p) / p).log())
    assert far[UNLEARNED].kl == pytest.approx(expected, rel=1e-6)
    assert (far[UNLEARNED].disagreement, far[UNLEARNED].rms) == (1.0, None)
    assert (far[ORIGINAL].kl, far[ORIGINAL].disagreement) == (0.0, 0.0)


def test_a_score_that_fails_on_some_data_is_not_defined_there():
    def needs_two(outputs: Tensor, y: Tensor) -> float:
        if len(y) < 20:
            raise ValueError("too few")
        return float(outputs.mean())

    federation, score = make_regression(), Score("mine", needs_two)
    model = federation.fresh_model()
    assert measure_score(model, [federation.test], federation, score) is not None
    assert measure_score(model, [federation.held_out["ant"]], federation, score) is None
    assert measure_score(model, [], federation, score) is None
    assert measure_score(model, [federation.test], federation, SCORES["auroc"]) is None
