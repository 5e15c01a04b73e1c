"""Audits where targets are not labels: the loss says whether a model is of use, and every kind can be reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import feduhb
from audit.auditing import QUIET
from feduhb.audit.audit import audit
from feduhb.audit.measures import compute_constant_loss
from feduhb.audit.result import MODELS, RETRAIN, UNLEARNED, Audit, read_audit
from feduhb.audit.verdict import explain_useless_loss
from feduhb.report.audit_tables import make_grids
from feduhb.report.runs import read_runs

pytestmark = pytest.mark.slow

TRUE = torch.tensor([[1.0], [-2.0], [0.5]])
HOW: dict[str, Any] = {"epochs": 2, "batch_size": 10, "lr": 0.2, "engine": "loop", "show": None}


class OneOutput(nn.Module):
    """A model with one output without a dimension of its own, [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each example."""
        return self.last(x)[:, 0]


def entropy_of_one(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of one logit for labels 0 and 1, which are whole numbers."""
    return functional.binary_cross_entropy_with_logits(outputs.flatten(), y.float())


KINDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], nn.Module], Any]] = {
    "regression": (lambda x: x @ TRUE, lambda: nn.Linear(3, 1), functional.mse_loss),
    "regression, one dimension": (lambda x: (x @ TRUE)[:, 0], OneOutput, functional.mse_loss),
    "binary": (
        lambda x: (x @ TRUE > 0).float(), lambda: nn.Linear(3, 1), functional.binary_cross_entropy_with_logits
    ),
    "binary, whole numbers": (lambda x: (x @ TRUE > 0).long()[:, 0], lambda: nn.Linear(3, 1), entropy_of_one),
    "multi-label": (lambda x: (x > 0).float(), lambda: nn.Linear(3, 3), functional.binary_cross_entropy_with_logits),
}  # fmt: skip


def make_federation(kind: str) -> feduhb.Federation:
    answer, model, loss = KINDS[kind]
    draw = torch.Generator().manual_seed(0)

    def some(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 3, generator=draw)
        return x, answer(x)

    clients = {client: some(20) for client in ("ant", "bee", "cat", "dog")}
    return feduhb.Federation(clients, some(40), model, loss=loss, held_out={c: some(8) for c in clients})


def audited(folder: Path, kind: str, **changes: Any) -> Audit:
    trained = feduhb.train(make_federation(kind), 10, out=folder / "old", **HOW)
    run = feduhb.unlearn(trained, ["bee"], out=folder / "new", rounds=10, show=None, **changes)
    return audit(run, trained, canaries=0, **QUIET)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_audited_and_reported(kind, tmp_path):
    found = audited(tmp_path, kind, method="retrain")
    assert found.verdict.word == "forgotten"
    assert found.accuracy[UNLEARNED].test is None
    assert (found.misr, found.relearn) == (None, None)
    far = found.distance[UNLEARNED]
    # Retrain is the audited run's method, with its seed: the same model.
    apart = (0.0, 0.0, None) if kind in {"binary", "multi-label"} else (None, None, 0.0)
    assert (far.l2, far.kl, far.disagreement, far.rms) == (0.0, *apart)
    has_accuracy = kind in {"binary", "multi-label"}
    assert [*found.scores] == ["accuracy"] * has_accuracy
    assert found.membership
    assert read_audit(tmp_path / "new") == found
    test = found.loss[UNLEARNED].test
    assert test is not None
    assert f"{test:.3g}" in str(found)
    [*rows] = make_grids(read_runs([tmp_path / "new"]))["loss"].rows
    assert [row[1] for row in rows] == ["original", "Retrain", "unlearned"]
    assert all(float(cell) > 0 for row in rows for cell in row[2:])


def test_a_model_that_learned_nothing_is_useless_though_it_is_exact(tmp_path):
    found = audited(tmp_path, "regression", method=feduhb.FedUHB(step_size=1e-6, epochs=2))
    assert found.exactness is not None
    assert found.exactness.exact
    assert found.verdict.word == "useless"
    assert found.verdict.reasons[0].startswith("Test loss ")
    worse, better = found.loss[UNLEARNED].test, found.loss[RETRAIN].test
    assert worse is not None
    assert better is not None
    assert worse > 10 * better


def test_losses_of_labels_are_measured_too():
    federation = feduhb.load("digits", clients=3, per_client=20, model="softmax")
    trained = feduhb.train(federation, 1, **HOW)
    found = audit(
        feduhb.unlearn(trained, ["c00"], rounds=1, show=None), trained, canaries=0, exactness=False, **QUIET
    )
    assert {*found.loss} == {*MODELS}
    assert "Loss         forgotten  retained      test" in str(found)


def test_the_best_constant_answer_to_a_regression_is_the_mean():
    federation = make_federation("regression")
    expected = float(federation.test.targets.var(correction=0))
    assert compute_constant_loss(federation) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("test", "retrain", "is_useless"),
    [
        (0.1, 0.1, False),
        (0.55, 0.1, False),  # half of Retrain's gain over 1.0
        (0.56, 0.1, True),
        (2.391, 0.067, True),
        (1.0, 1.5, True),  # Retrain learned nothing, and neither did this model
        (0.9, 1.5, False),
        (None, 0.1, True),
        (0.9, None, False),
        (-3.0, -4.0, False),  # a log-likelihood has no zero
    ],
)  # fmt: skip
def test_the_rule(test, retrain, is_useless):
    assert (explain_useless_loss(test, retrain, 1.0) is not None) is is_useless
