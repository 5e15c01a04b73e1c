"""The checks of the user's own code where something is missing: labels, hidden units, fractions, a fresh method, models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import feduhb
from audit.auditing import LEAVERS, QUIET, TRAINED, load_digits
from audit.cheats import InFile, Replaying, hide
from feduhb.audit.audit import audit, audit_all
from feduhb.audit.controls import MODELS, Controls
from feduhb.audit.own_code import OwnCode
from feduhb.audit.result import Audit, Check
from feduhb.audit.verdict import UNSEARCHED
from feduhb.data.request import Request
from feduhb.errors import RunFolderError
from feduhb.runs.run import Run

pytestmark = pytest.mark.slow

HOW: dict[str, Any] = {"epochs": 1, "batch_size": 8, "engine": "loop", "show": None}
QUICK: dict[str, Any] = {"canaries": 0, **QUIET}


class Mine(feduhb.FedUHB):
    """An honest method of the user's own."""

    __slots__ = ()
    name: ClassVar[str] = "mine"


class Nearly(InFile):
    """Returns the old weights in its first round, with a trace of the new ones."""

    __slots__ = ()
    name: ClassVar[str] = "nearly"

    def use(self, params: Tensor) -> Tensor:
        return super().use(params) + 1e-3 * params


class UndeclaredNearly(Nearly):
    """The same, but it does not claim to be exact."""

    __slots__ = ()
    name: ClassVar[str] = "undeclared-nearly"
    exact: ClassVar[bool] = False


def make_line() -> feduhb.Federation:
    """Return a federation for a linear regression, which has no labels and no hidden units."""
    draw = torch.Generator().manual_seed(0)
    slope = torch.randn(6, 2, generator=draw)

    def some(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=draw)
        return x, x @ slope + 0.1 * torch.randn(count, 2, generator=draw)

    clients = {f"c{number}": some(30) for number in range(4)}
    held = {client: some(10) for client in clients}
    loss = nn.functional.mse_loss
    return feduhb.Federation(clients, some(30), nn.Linear(6, 2), loss=loss, held_out=held, seed=3)


def unlearn(trained: Run, method: Any, client: str, rounds: int = 4) -> Run:
    return feduhb.unlearn(trained, [client], method=method, rounds=rounds, stop=feduhb.never, show=None)


def get_checks(found: Audit) -> dict[str, Check]:
    assert found.exactness is not None
    return {check.name: check for check in found.exactness.checks}


def test_a_regression(tmp_path: Path):
    """Distances and losses show an old model. A part of it, only a search could show, and there are no units to search."""
    trained = feduhb.train(make_line(), 8, lr=0.1, **HOW)
    file = hide(trained.params * (1 + 1e-6), tmp_path)
    kinds = Nearly(epochs=1, file=file), UndeclaredNearly(epochs=1, file=file), Mine(epochs=1, momentum=0.5)
    later = trained.reseed(9)
    near, undeclared, honest = audit_all([unlearn(later, kind, "c1") for kind in kinds], trained, **QUICK)
    assert near.verdict.word == "not forgotten"
    assert "come nearer to each other by a factor of" in get_checks(near)["draw"].says
    assert not get_checks(undeclared)["bare"].identical
    assert "test loss" in get_checks(undeclared)["bare"].says
    assert honest.verdict.word == "inconclusive"
    assert honest.verdict.reasons[0] == UNSEARCHED
    checks = get_checks(honest)
    assert [checks[name].outcome for name in ("draw", "bare", "nudge", "traces")] == [
        *["passed"] * 3,
        "not made",
    ]
    assert "(not searched for traces)" in checks["draw"].says


class Zero(nn.Linear):
    """A linear model whose weights begin at zero."""

    def reset_parameters(self) -> None:
        for own in self.parameters():
            nn.init.zeros_(own)


def test_a_fresh_model_that_is_always_the_same():
    trained = feduhb.train(make_line().replace(model=lambda: Zero(6, 2)), 2, lr=0.1, **HOW)
    found = audit(unlearn(trained, Mine(epochs=1), "c1", rounds=2), trained, **QUICK)
    draw = get_checks(found)["draw"]
    assert draw.outcome == "not made"
    assert draw.says.endswith("not checked, because every draw of the fresh model is the same.")


class Embeds(nn.Module):
    """The mean of words, and hidden units."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(12, 8), nn.Linear(8, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.embed(x).mean(dim=1)).relu())


def make_texts() -> feduhb.Federation:
    draw = torch.Generator().manual_seed(0)

    def some(count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 3, (count,), generator=draw)
        return 4 * y[:, None] + torch.randint(0, 4, (count, 5), generator=draw), y

    clients = {f"c{number}": some(30) for number in range(4)}
    return feduhb.Federation(clients, some(60), Embeds, held_out={c: some(10) for c in clients}, seed=3)


def test_texts():
    """Whole numbers cannot change slightly, and words are not alike; hidden units are."""
    trained = feduhb.train(make_texts(), 4, lr=0.5, **HOW)
    found = audit(unlearn(trained, Mine(epochs=1, momentum=0.5), "c1"), trained, **QUICK)
    checks = get_checks(found)
    assert found.verdict.word == "forgotten"
    assert checks["nudge"].outcome == "not made"
    assert "no trace of the original's weights in 4 of 5 parameters" in checks["draw"].says


def test_a_method_that_asks_for_a_history(tmp_path: Path):
    federation = load_digits(per_client=40, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    how = {**TRAINED, "epochs": 2, "lr": 0.3}
    trained = feduhb.train(federation, 3, keep_history=True, out=tmp_path / "run", **how)
    method = Replaying(epochs=2, file=hide(trained.params * (1 + 1e-6), tmp_path))
    run = feduhb.unlearn(
        trained, LEAVERS, method=method, rounds=3, stop=feduhb.never, erase_history=False, show=None
    )
    found = audit(run, trained, **QUICK)
    assert found.verdict.word == "not forgotten"
    assert "the same weights after round 1" in get_checks(found)["draw"].says


def test_models_that_are_missing_are_not_passed_over(tmp_path: Path):
    trained = feduhb.train(make_line(), 2, lr=0.1, **HOW)
    run = unlearn(trained, Mine(epochs=1), "c1", rounds=2)
    controls = Controls(
        federation=run.original, request=Request(("c1",)), settings=run.settings, engine="loop", history=False, folder=tmp_path,
        made={"original": trained},
    )  # fmt: skip
    controls.run_in("never", run, keep_models=True)
    (controls.place("never", run) / MODELS / "after-000002.safetensors").unlink()
    steps = OwnCode(run, controls, []).steps()
    with pytest.raises(RunFolderError, match="has the models of 1 rounds, not of 2; delete"):
        steps[0].work(lambda _: None)
