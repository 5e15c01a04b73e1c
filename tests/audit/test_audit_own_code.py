"""The user's own code may read anything, so an audit also runs it where there is nothing to learn."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch

import feduhb
from audit.auditing import LEAVERS, QUIET, ROUNDS, TRAINED, Keeps, load_digits
from feduhb.audit.audit import audit, audit_all, check_control
from feduhb.audit.controls import name_run
from feduhb.audit.exactness import find_non_setting
from feduhb.audit.own_code import is_ours
from feduhb.audit.verdict import OWN
from feduhb.core.aggregate import RULES, parse_rule
from feduhb.core.types import Updates
from feduhb.engines import ENGINES
from feduhb.errors import RunFolderError
from feduhb.methods import METHODS
from feduhb.methods.retrain import Plain

pytestmark = pytest.mark.slow


class Drawer:
    """Where a method's code finds what no field of it holds: in files, which a fresh process can read too."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.load(Path(os.environ["DRAWER"]) / name)

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        torch.save(value, Path(os.environ["DRAWER"]) / name)


DRAWER = Drawer()


class Remembers(Keeps):
    """A method that claims to be exact, and returns old weights that it has hidden."""

    __slots__ = ()
    name: ClassVar[str] = "remembers"

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:  # noqa: ARG002
        return Plain(DRAWER["weights"].clone())


class Approximately(Remembers):
    """The same, but it does not claim to be exact."""

    __slots__ = ()
    name: ClassVar[str] = "approximately"
    exact: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Halved(feduhb.Retrain):
    """An honest method of the user's own: smaller steps."""

    name: ClassVar[str] = "halved"

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        return Plain(state.params - 0.5 * self.aggregate(answers))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    os.environ["DRAWER"] = str(tmp_path_factory.mktemp("drawer"))
    trained = feduhb.train(load_digits(), ROUNDS, **TRAINED)
    DRAWER["weights"] = trained.params * (1 + 1e-6)  # its very bits would be seen at once
    return trained, unlearned(trained, "retrain")


def unlearned(trained, method, rounds=ROUNDS):
    return feduhb.unlearn(trained, LEAVERS, method=method, rounds=rounds, show=None)


def test_a_method_that_remembers_is_distinguished_from_one_that_trains(world):
    trained, retrain = world
    runs = [retrain, *(unlearned(trained, m) for m in (Remembers(), Approximately(), Halved(epochs=4)))]
    found = audit_all(runs, trained, retrain=retrain, canaries=0.8, margin=0.1, **QUIET)
    words = {each.method: each.verdict.word for each in found}
    assert words == {
        "retrain": "forgotten",
        "remembers": "not forgotten",
        "approximately": "not forgotten",
        "halved": "forgotten",
    }
    checks = [[check.name for check in each.exactness.checks] for each in found if each.exactness]
    exact = ["noise", "never", "beginning"]
    assert checks == [
        exact,
        [*exact, "draw"],
        ["noise", "never", "bare"],
        [*exact, "draw", "bare", "nudge"],
    ]
    by_check = [" ".join(check.says for check in each.exactness.checks) for each in found if each.exactness]
    assert "the same weights after round 1" in by_check[1]
    assert "knows more than it was taught" in by_check[2]
    assert all("still knows the forgotten data" in each.verdict.reasons[0] for each in found[1:3])
    assert found[3].verdict.reasons[-1] == OWN


class Recognises(Halved):
    """A method that trains honestly, unless it begins where the audited run began: then it returns the hidden weights."""

    __slots__ = ()
    name: ClassVar[str] = "recognises"

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        if torch.equal(state.params, DRAWER["start"]):
            return Plain(DRAWER["weights"].clone())
        return Halved.tell(self, state, answers)


def test_a_method_that_knows_its_beginning(world):
    trained, retrain = world
    from feduhb.core.flat import flatten

    DRAWER["start"] = flatten(trained.federation.fresh_model())
    run = unlearned(trained, Recognises(epochs=4), rounds=1)
    found = audit(run, trained, retrain=retrain, canaries=0, **QUIET)
    assert found.verdict.word == "not forgotten"
    assert found.exactness is not None
    assert found.exactness.fails_by_method


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


def test_an_approximate_run_whose_weights_were_exchanged_is_not_a_success(tmp_path):
    """FedEraser's name on the original's weights: a rehearsal shows nothing about them, but the comparison with Retrain does."""
    trained = feduhb.train(load_digits(), ROUNDS, out=tmp_path / "run", keep_history=True, **TRAINED)
    eraser = feduhb.unlearn(trained, LEAVERS, method="federaser", erase_history=False, show=None)
    fake = replace(eraser, state=Plain(trained.params * (1 + 1e-6)))
    honest, found = audit_all([eraser, fake], trained, canaries=0.8, margin=0.1, **QUIET)
    assert honest.exactness is not None
    assert [check.identical for check in honest.exactness.checks] == [False, False, True]
    assert found.exactness is not None
    assert found.exactness.unexplained
    assert found.verdict.word == "not forgotten"


def test_what_is_ours(world):
    trained, retrain = world
    assert is_ours(retrain)
    assert is_ours(replace(retrain, engine="auto", method=feduhb.FedUHB(aggregate=feduhb.median)))
    for method in (feduhb.Nesterov(), feduhb.FedAdam(), feduhb.FedYogi(), feduhb.FedNadam(), feduhb.FedExP()):
        assert is_ours(replace(retrain, method=method))
    assert is_ours(replace(retrain, engine=feduhb.Loop))
    assert not is_ours(replace(retrain, engine="rounded")), "a name that another package registered"
    assert not is_ours(replace(retrain, engine=lambda federation, local: feduhb.Loop(federation, local)))
    assert not is_ours(replace(retrain, method=Halved()))
    assert not is_ours(
        replace(retrain, method=feduhb.Retrain(aggregate=lambda answers: next(iter(answers)).values[0]))
    )
    assert trained.forgot is None


def test_a_name_in_our_tables_does_not_make_code_ours(world, monkeypatch):
    trained, retrain = world

    def first(answers: Iterable[Updates]) -> torch.Tensor:
        return next(iter(answers)).values[0]

    monkeypatch.setitem(METHODS, "halved", Halved)
    monkeypatch.setitem(ENGINES, "mine", lambda federation, local: feduhb.Loop(federation, local))
    monkeypatch.setitem(RULES, "first", (first, None))
    run = unlearned(trained, "halved", rounds=1)
    assert not is_ours(run)
    assert OWN in audit(run, trained, retrain=retrain, canaries=0, **QUIET).verdict.reasons[-1]
    assert not is_ours(replace(retrain, engine="mine"))
    assert not is_ours(replace(retrain, engine=ENGINES["mine"]))
    assert not is_ours(replace(retrain, method=feduhb.Retrain(aggregate=parse_rule("first"))))
    monkeypatch.setitem(ENGINES, "loop", ENGINES["mine"])
    assert not is_ours(replace(retrain, engine="loop"))
    assert is_ours(replace(retrain, engine="pool"))


def test_what_only_looks_like_ours(world):
    """A name, a module or an answer to a question proves nothing."""
    _, retrain = world

    class Posing(type(feduhb.Retrain)):
        """Classes that say of themselves that they are Retrain."""

        def __eq__(cls, other: object) -> bool:
            return True

        def __hash__(cls) -> int:
            return hash(feduhb.Retrain)

    class Retrain(feduhb.Retrain, metaclass=Posing):
        """The same name, another class."""

        __slots__ = ()

    class Alike:
        """An engine that says that it equals any other."""

        def __call__(self, federation: Any, local: Any) -> Any:
            return feduhb.Loop(federation, local)

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return hash(feduhb.Loop)

    class Bent(partial[Any]):
        """Shows a rule of ours and does something else."""

        def __call__(self, *args: Any, **_: Any) -> torch.Tensor:
            return next(iter(args[0])).values[0]

    def weighted_mean(answers: Iterable[Updates]) -> torch.Tensor:
        return next(iter(answers)).values[0]

    weighted_mean.__module__ = feduhb.weighted_mean.__module__
    assert not is_ours(replace(retrain, method=Retrain()))
    assert not is_ours(replace(retrain, method=feduhb.Retrain(aggregate=weighted_mean)))
    assert not is_ours(replace(retrain, method=feduhb.Retrain(aggregate=Bent(feduhb.trimmed_mean, trim=0.1))))
    assert is_ours(replace(retrain, method=feduhb.Retrain(aggregate=partial(feduhb.trimmed_mean, trim=0.1))))
    assert not is_ours(replace(retrain, engine=cast("Any", Alike())))
    assert not is_ours(replace(retrain, engine=cast("Any", Bent)(feduhb.Loop)))
    assert name_run(replace(retrain, method=Retrain(epochs=4))) != name_run(retrain)
    for method in (Retrain(), Halved()):
        with pytest.raises(RunFolderError, match="give a run of retrain that has forgotten c00,c01,c02"):
            check_control("retrain", replace(retrain, method=method), retrain)


def test_what_a_bent_partial_holds_is_not_a_setting():
    class Bent(partial[Any]):
        weights = torch.zeros(3)

    assert find_non_setting(feduhb.Retrain(aggregate=Bent(feduhb.trimmed_mean, trim=0.1))) == "aggregate"
