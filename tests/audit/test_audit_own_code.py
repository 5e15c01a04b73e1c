"""Code of the user's own may read anything: it is also run where there is nothing to learn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

import feduhb
from audit.auditing import LEAVERS, QUIET, ROUNDS, TRAINED, Keeps, digits
from feduhb.core.types import Updates
from feduhb.experiment.audit import audit, audit_all
from feduhb.experiment.exactness import ours
from feduhb.methods.retrain import Plain

DRAWER: dict[str, torch.Tensor] = {}  # where a method's code finds what no field of it holds


class Remembers(Keeps):
    """Says that it is exact, and takes the old weights out of a drawer."""

    __slots__ = ()
    name: ClassVar[str] = "remembers"

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:  # noqa: ARG002
        return Plain(DRAWER["weights"].clone())


class Approximately(Remembers):
    """The same, and does not call itself exact."""

    __slots__ = ()
    name: ClassVar[str] = "approximately"
    exact: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Halved(feduhb.Retrain):
    """An honest method of one's own: smaller steps."""

    name: ClassVar[str] = "halved"

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        return Plain(state.params - 0.5 * self.aggregate(answers))


@pytest.fixture(scope="module")
def world():
    trained = feduhb.train(digits(), ROUNDS, **TRAINED)
    DRAWER["weights"] = trained.params
    return trained, unlearned(trained, "retrain")


def unlearned(trained, method, rounds=ROUNDS):
    return feduhb.unlearn(trained, LEAVERS, method=method, rounds=rounds, show=None)


def test_a_method_that_remembers_is_told_from_one_that_trains(world):
    trained, retrain = world
    runs = [retrain, *(unlearned(trained, m) for m in (Remembers(), Approximately(), Halved(epochs=4)))]
    found = audit_all(runs, trained, retrain=retrain, canaries=0.8, margin=0.1, **QUIET)
    words = {each.method: each.verdict.word for each in found}
    assert words == {
        "retrain": "forgotten",
        "remembers": "not forgotten",
        "approximately": "inconclusive",
        "halved": "forgotten",
    }
    checks = [[check.name for check in each.exactness.checks] for each in found if each.exactness]
    assert checks == [["noise", "never"], *[["noise", "never", "bare"]] * 2, ["noise", "never"]]
    assert "It brings along what it knows" in found[1].verdict.reasons[-1]


def test_an_aggregation_and_an_engine_that_remember(world):
    trained, retrain = world

    def towards(answers: Iterable[Updates]) -> torch.Tensor:
        list(answers)
        return -DRAWER["weights"]

    class Kind(feduhb.Loop):
        """Trains the leavers too, whoever is asked."""

        def __init__(self, federation: feduhb.Federation, local: Any) -> None:
            crowd = {
                c: trained.federation.clients[d] for c, d in zip(federation.clients, LEAVERS, strict=False)
            }
            super().__init__(federation.replace(clients={**federation.clients, **crowd}), local)

    kind = feduhb.unlearn(trained, LEAVERS, method="retrain", rounds=ROUNDS, engine=Kind, show=None)
    pulled = unlearned(trained, feduhb.Retrain(aggregate=towards), rounds=1)
    for run in (kind, pulled):
        found = audit(run, trained, retrain=retrain, canaries=0, **QUIET)
        assert found.verdict.word == "not forgotten"


def test_an_approximate_run_whose_weights_were_exchanged_is_no_success(tmp_path):
    """FedEraser's name on the original's weights: what a rehearsal of FedEraser gives says nothing of them."""
    trained = feduhb.train(digits(), ROUNDS, out=tmp_path / "run", keep_history=True, **TRAINED)
    eraser = feduhb.unlearn(trained, LEAVERS, method="federaser", erase_history=False, show=None)
    fake = replace(eraser, state=Plain(trained.params))
    honest, found = audit_all([eraser, fake], trained, canaries=0.8, margin=0.1, **QUIET)
    assert honest.exactness is not None
    assert [check.identical for check in honest.exactness.checks] == [False, False, True]
    assert found.exactness is not None
    assert found.exactness.unexplained
    assert found.verdict.word == "inconclusive"


def test_what_is_ours(world):
    trained, retrain = world
    assert ours(retrain)
    assert ours(replace(retrain, engine="auto", method=feduhb.FedUHB(aggregate=feduhb.median)))
    assert ours(replace(retrain, engine=feduhb.Loop))
    assert not ours(replace(retrain, engine=lambda federation, local: feduhb.Loop(federation, local)))
    assert not ours(replace(retrain, method=Halved()))
    assert not ours(
        replace(retrain, method=feduhb.Retrain(aggregate=lambda answers: next(iter(answers)).values[0]))
    )
    assert trained.forgot is None
