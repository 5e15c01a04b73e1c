"""PGA and FedAF: what they ask the leavers, what follows from it by hand, and that nobody else may ask them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.core.tasks import Ascend
from feduhb.core.types import Work
from feduhb.errors import AnswerError, ConfigError
from feduhb.methods import PGA, FedAF, Retrain, settings_of
from feduhb.methods.retrain import Plain
from feduhb.runs.loop import run
from toys import Scripted, block_of, quadratics

OLD = torch.tensor([6.0, -3.0], dtype=torch.float64)
FRESH = torch.tensor([0.0, 1.0], dtype=torch.float64)
HOW = {"epochs": 1, "batch_size": 6, "lr": 0.05, "engine": "loop", "show": None}


def bound(method, **more):
    return feduhb.methods.binding.bind(
        method, {"model": OLD, "clients": ("a", "b"), "leavers": ("x",), **more}
    )


def test_two_leavers_count_by_their_examples_in_the_reference():
    """N = 4, mean(u) = (1 (4, 0) + 3 (0, 8)) / 4 = (1, 6): w_ref = w_T + 2 / 2 (1, 6) = (7, 3)."""
    method = bound(PGA(), leavers=("x", "y"))
    told = method.tell(method.init(FRESH), [block_of({"x": [4, 0], "y": [0, 8]}, [1, 3])])
    assert told.params.tolist() == [7, 3]


def test_the_ball_of_pga_is_a_share_of_the_way_from_the_reference_to_the_fresh_model():
    """w_ref - w_0 = (7.5, -3.5), of length √(56.25 + 12.25) = √68.5."""
    method = bound(PGA(radius=0.5, lr=0.1, momentum=0.2, clip_norm=3.0, ascent=4))
    state = method.tell(method.init(FRESH), [block_of({"x": [3, 1]})])
    work = method.ask(state)
    assert (work.clients, work.leavers, work.epochs) == (("x",), True, 4)
    assert work.task == Ascend(work.task.radius, 0.1, 0.2, 3.0)
    assert work.task.radius == pytest.approx(0.5 * 68.5**0.5)


@pytest.fixture(scope="module")
def trained():
    return feduhb.train(ragged(), 2, **HOW)


def test_rounds_after_pga_are_fedavg_with_the_remaining_clients():
    method = bound(
        PGA(after=3, epochs=2), model=torch.zeros(3).double(), clients=tuple("acd"), leavers=("b",)
    )
    states = [
        state
        for state, _ in run(
            method, quadratics(), "acd", method.init(torch.ones(3).double()), rounds=5, leavers=("b",)
        )
    ]
    plain = Retrain(epochs=2)
    after = run(plain, quadratics(), "acd", plain.init(states[1].params), rounds=3)
    assert all(torch.equal(one.params, w.params) for one, (w, _) in zip(states[2:], after, strict=True))


CASES = {"pga": (PGA(epochs=1, ascent=1, after=2), ["bee"]), "fedaf": (FedAF(epochs=1, after=2), "dog:0+3")}
each_case = pytest.mark.parametrize("name", CASES)


@each_case
@pytest.mark.parametrize("last", [0, 1])
def test_a_resumed_run_equals_the_uninterrupted_one(trained, tmp_path, name, last):
    method, forget = CASES[name]
    whole = feduhb.unlearn(trained, forget, method=method, show=None)

    def interrupt(record):
        if record.round == last:
            raise KeyboardInterrupt

    out = tmp_path / "new"
    with pytest.raises(KeyboardInterrupt):
        feduhb.unlearn(trained, forget, method=method, out=out, show=interrupt)
    new = feduhb.unlearn(trained, forget, method=method, out=out, resume=True, show=None)
    assert torch.equal(new.params, whole.params)
    opened = feduhb.open_run(out, trained.federation)
    assert torch.equal(opened.params, whole.params)
    assert [r.leavers for r in opened.rounds] == [r.leavers for r in whole.rounds]
    assert any(r.leavers for r in opened.rounds)


@each_case
def test_loop_and_pool_agree_to_rounding(trained, name):
    method, forget = CASES[name]
    one, other = (
        feduhb.unlearn(trained, forget, method=method, engine=e, show=None) for e in ("loop", "pool")
    )
    torch.testing.assert_close(one.params, other.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [PGA, FedAF])
def test_the_old_model_is_no_setting_and_two_bound_methods_can_be_compared(kind):
    assert bound(kind()) == bound(kind(), model=OLD.clone())
    assert "tensor" not in repr(bound(kind()))
    assert settings_of(bound(kind())) == settings_of(kind())
    with pytest.raises(
        ConfigError, match=r"starts from the model that is to forget, but has none; run it by"
    ):
        kind().init(FRESH)


@dataclass(frozen=True, slots=True)
class Sneaky(Retrain):
    """Asks a leaver: as one of those that take part, or openly but without having declared it."""

    openly: bool = False
    name: ClassVar[str] = "sneaky"

    def ask(self, state: Plain) -> Work:
        return Work(state.params, 1, ("x",), leavers=self.openly)


@pytest.mark.parametrize(
    ("openly", "says"),
    [
        (True, r"sneaky asked leavers to work on .*; a method must declare that: asks_leaver = True"),
        (False, r"the method asked x, which do not take part; a method may ask only the remaining clients"),
    ],
)
def test_a_method_that_does_not_declare_it_cannot_ask_a_leaver(openly, says):
    engine = Scripted({0: [block_of({"x": [1, 1]})]})
    rounds = run(Sneaky(openly=openly), engine, "ab", Plain(OLD), rounds=1, leavers=("x",))
    with pytest.raises(AnswerError, match=says):
        next(rounds)
    assert engine.asked == []


@pytest.mark.parametrize("openly", [True, False])
def test_it_is_refused_before_anything_is_written_or_erased(tmp_path, openly):
    old = feduhb.train(ragged(), 1, out=tmp_path / "old", keep_history=True, **HOW)
    with pytest.raises(AnswerError, match=r"asked (leavers to work on|x, which do not take part)"):
        feduhb.unlearn(old, ["bee"], method=Sneaky(openly=openly), out=tmp_path / "new", show=None)
    assert not (tmp_path / "new").exists()
    assert old.history is not None


@dataclass(frozen=True, slots=True)
class Whole(PGA):
    """Asks all leavers in its first round, without naming them."""

    name: ClassVar[str] = "whole"

    def ask(self, state) -> Work:
        work = PGA.ask(self, state)
        return replace(work, clients=None) if state.step == 0 else work


def test_leavers_who_are_not_named_are_all_asked_and_counted(trained):
    run = feduhb.unlearn(trained, ["bee", "dog"], method=Whole(epochs=1, ascent=1, after=1), show=None)
    named = feduhb.unlearn(trained, ["bee", "dog"], method=PGA(epochs=1, ascent=1, after=1), show=None)
    assert run.rounds[0].leavers == ("bee", "dog")
    assert torch.equal(run.params, named.params)
    assert run.expected is not None
    assert named.expected is not None
    assert replace(run.expected, notes=()) == replace(named.expected, notes=())
    assert run.expected.client_epochs == sum(r.client_epochs for r in run.rounds)


def test_a_method_that_asks_leavers_cannot_ask_a_client_that_stays():
    method, engine = bound(PGA(), leavers=("a",)), Scripted({})
    rounds = run(method, engine, "ab", method.init(FRESH), rounds=1, leavers=("x",))
    with pytest.raises(AnswerError, match=r"pga asked a, which did not ask to forget anything"):
        next(rounds)
    assert engine.asked == []


@dataclass(frozen=True, slots=True)
class Boastful(PGA):
    """Asks leavers, and claims to be exact."""

    name: ClassVar[str] = "boastful"
    exact: ClassVar[bool] = True


def test_a_method_that_asks_leavers_cannot_declare_itself_exact(trained):
    with pytest.raises(ConfigError, match=r"boastful declares itself exact, but it uses the old model"):
        feduhb.unlearn(trained, ["bee"], method=Boastful(), show=None)
