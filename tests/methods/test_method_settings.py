"""Settings that cannot be, by the words of their refusal, and methods by the name a user types."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from torch import Tensor

import feduhb
from federations import ragged
from feduhb.core.aggregate import krum, median, weighted_mean
from feduhb.core.types import Method, Updates, Work
from feduhb.errors import ConfigError
from feduhb.methods import METHODS, FedEraser, FedRecover, FedUHB, Retrain, check_method, make_method
from feduhb.methods.retrain import Plain
from feduhb.runs.config import TrainSettings
from feduhb.runs.folder import RunFolder
from feduhb.runs.prepare import run_method
from feduhb.runs.run import choose_method
from feduhb.stopping import never

MOMENTUM = "give at least 0 and below 1, such as 0.9"
STEP = "give a positive number, such as 1.0"
EPOCHS = "give 0 or more"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FedUHB(momentum=-0.1), f"momentum is -0.1; {MOMENTUM}"),
        (lambda: FedUHB(momentum=1.0), f"momentum is 1.0; {MOMENTUM}"),
        (lambda: FedUHB(momentum=math.nan), f"momentum is nan; {MOMENTUM}"),
        (lambda: FedUHB(step_size=0), f"step_size is 0; {STEP}"),
        (lambda: FedUHB(step_size=-1.0), f"step_size is -1.0; {STEP}"),
        (lambda: FedUHB(step_size=math.inf), f"step_size is inf; {STEP}"),
        (lambda: FedUHB(epochs=-1), f"epochs is -1; {EPOCHS}"),
        (lambda: Retrain(step_size=0), f"step_size is 0; {STEP}"),
        (lambda: Retrain(step_size=math.nan), f"step_size is nan; {STEP}"),
        (lambda: Retrain(epochs=-2), f"epochs is -2; {EPOCHS}"),
    ],
)
def test_settings_that_cannot_be(make, words: str):
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == words


COUNTED = [
    *((kind, "epochs") for kind in (FedUHB, Retrain, FedEraser, FedRecover)),
    (FedEraser, "interval"),
    *((FedRecover, name) for name in ("warmup", "correction", "final", "buffer")),
]


@pytest.mark.parametrize("value", [1.5, 4.0, math.nan, True, "3", None])
@pytest.mark.parametrize(("kind", "name"), COUNTED)
def test_what_is_counted_is_a_whole_number(kind, name, value):
    with pytest.raises(ConfigError, match=f"^{name} is {value!r}; give a whole number, [01] or more$"):
        kind(**{name: value})


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(FedUHB, "step_size"), (FedUHB, "momentum"), (Retrain, "step_size"), (FedEraser, "ratio"), (FedRecover, "abnormal")],
)  # fmt: skip
def test_what_is_measured_is_a_number(kind, name, value):
    with pytest.raises(ConfigError) as error:
        kind(**{name: value})
    assert str(error.value).startswith(f"{name} is {value!r}; give a")


@pytest.mark.parametrize("kind", [FedUHB, Retrain])
@pytest.mark.parametrize("value", [3, "median", None])
def test_a_rule_can_be_called(kind, value):
    with pytest.raises(ConfigError) as error:
        kind(aggregate=value)
    assert str(error.value) == (
        f"aggregate is {value!r}; give a rule, such as feduhb.median, or leave it out"
    )


def test_the_papers_defaults():
    assert FedUHB() == FedUHB(step_size=1.0, momentum=0.9, epochs=5, aggregate=weighted_mean)
    assert Retrain() == Retrain(step_size=1.0, epochs=5, aggregate=weighted_mean)
    FedUHB(momentum=0.0)
    FedUHB(epochs=0)


@pytest.mark.parametrize("kind", [FedUHB, Retrain])
def test_only_the_weighted_mean_is_content_with_a_sum(kind: type[FedUHB | Retrain]):
    assert kind().needs == "sum"
    assert kind(aggregate=median).needs == "each"
    assert kind(aggregate=functools.partial(krum, hostile=1)).needs == "each"


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_goes_by_its_name(name: str):
    assert METHODS[name].name == name


def test_a_method_by_name_has_the_settings_given():
    assert make_method("feduhb", momentum=0.5, epochs=0) == FedUHB(momentum=0.5, epochs=0)
    assert make_method("retrain", step_size=0.5) == Retrain(step_size=0.5)


def test_a_name_nobody_has():
    with pytest.raises(ConfigError) as error:
        make_method("fedavg")
    assert str(error.value) == f"there is no method 'fedavg'; choose one of {', '.join(METHODS)}"


@pytest.mark.parametrize(
    ("settings", "odd"),
    [({"momentum": 0.9}, "momentum"), ({"speed": 1, "gears": 3}, "speed, gears"), ({"rounds": 3}, "rounds")],
)
def test_a_setting_nobody_knows(settings: dict[str, float], odd: str):
    """The listed settings are those that the method takes: name, exact and rounds are not settings."""
    with pytest.raises(ConfigError) as error:
        make_method("retrain", **settings)
    assert str(error.value) == f"retrain has no setting {odd}; it knows step_size, epochs, aggregate"


def test_a_setting_of_the_wrong_kind_is_named():
    """'0.9' is not a number; that is not the same as a setting which does not exist."""
    with pytest.raises(ConfigError, match="momentum") as error:
        make_method("feduhb", momentum="0.9")
    assert "has no setting ;" not in str(error.value)


def test_a_refused_value_keeps_its_own_words():
    with pytest.raises(ConfigError, match=r"momentum is 1\.5; give at least 0"):
        make_method("feduhb", momentum=1.5)


class Old:
    """A method as version 0.1 wanted it: it does not say whether it needs a history."""

    name: ClassVar[str] = "old"
    exact: ClassVar[bool] = True
    needs, rounds = "sum", None

    def init(self, params: Tensor) -> Plain:
        return Plain(params)

    def ask(self, state: Plain) -> Work:
        return Work(state.params, 1)

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        return Plain(state.params - weighted_mean(answers))


def test_methods_of_version_0_1_still_run_wherever_they_are_first_seen():
    """Also in another process, to which a shadow's method travels without the parts that came later."""
    method: Any = dataclass(frozen=True)(Old)()
    run = run_method(ragged(), method, TrainSettings(rounds=1, epochs=1), rounds=1)
    assert (method.needs_history, method.samples_clients, method.default_stop()) == (False, True, never)
    assert len(run.rounds) == 1


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"init": None, "ask": None}, "has no tell; inherit from feduhb.Method"),
        ({"init": None, "ask": None, "tell": None, "name": None}, "Half is not a dataclass; put @dataclass"),
    ],
)
def test_what_is_half_a_method_is_told_what_it_lacks(parts: dict[str, Any], says: str):
    half = type("Half", (Method,), {"exact": True, "name": "half", **parts})
    with pytest.raises(ConfigError, match=says):
        check_method(half())


def test_a_method_registered_under_another_name_than_its_own_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Its runs would name a method that nobody finds again."""
    monkeypatch.setitem(METHODS, "odd", Retrain)
    with pytest.raises(ConfigError, match="the method registered as 'odd' has the name 'retrain'"):
        make_method("odd")


def test_fast_is_the_recommended_method_with_the_settings_of_a_run(tmp_path):
    trained = feduhb.train(ragged(), 1, epochs=2, aggregate="median")
    run = feduhb.unlearn(trained, ["bee"], method="fast", rounds=1, out=tmp_path / "new")
    assert run.method == FedUHB(momentum=0.7, step_size=2.0, epochs=2, aggregate=median)
    written = RunFolder(tmp_path / "new")
    assert written.config()["unlearn"]["method"] == written.result()["method"] == "feduhb"
    assert written.result()["settings"] == {
        "momentum": 0.7, "step_size": 2.0, "epochs": 2, "aggregate": "median",
    }  # fmt: skip
    other = choose_method("fast", trained.settings, momentum=0.5).method
    assert other == FedUHB(momentum=0.5, step_size=2.0, epochs=2, aggregate=median)
    assert list(feduhb.compare(trained, ["bee"], ["feduhb", "fast"], rounds=1)) == ["feduhb", "feduhb-2"]
