"""Numbers and functions that will not do are refused in one line, before anything is done."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import feduhb
from federations import ragged
from feduhb.core.checks import check_show, check_stop, check_whole, is_finite
from feduhb.core.types import Local
from feduhb.errors import ConfigError, RequestError
from feduhb.methods import check_method
from feduhb.stopping import StopReason


@pytest.mark.parametrize("value", [1, 7, np.int64(3), torch.tensor(2)])
def test_whole_numbers_of_any_kind_will_do(value):
    check_whole("rounds", value)


@pytest.mark.parametrize("value", [2.5, 2.0, "2", None, True, math.nan, [2]])
def test_anything_else_will_not(value):
    with pytest.raises(ConfigError, match=r"rounds is .*; give a whole number, 1 or more"):
        check_whole("rounds", value)


def test_too_small_is_told_plainly():
    with pytest.raises(ConfigError, match=r"^epochs is -1; give 0 or more$"):
        check_whole("epochs", -1, least=0)


@pytest.mark.parametrize("value", [10**9 + 1, 10**30, int("9" * 400)])
def test_a_count_without_end_is_refused_and_a_seed_may_be_anything(value):
    with pytest.raises(
        ConfigError, match=r"^epochs is above 1,000,000,000, which no run would ever finish; give fewer$"
    ):
        check_whole("epochs", value, least=0)
    check_whole("epochs", 10**9)
    check_whole("seed", value, least=None)


def test_finite_numbers():
    assert is_finite(0.1)
    assert is_finite(3)
    assert not any(map(is_finite, (math.inf, -math.inf, math.nan, "0.1", None, True)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rounds": 2.5}, "rounds is 2.5"),
        ({"rounds": True}, "rounds is True"),
        ({"epochs": 1.5}, "epochs is 1.5"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"clients_per_round": 1.5}, "clients_per_round is 1.5"),
        ({"clients_per_round": 0}, "clients_per_round is 0"),
        ({"lr": "0.1"}, "lr is '0.1'"),
        ({"l2": "0"}, "l2 is '0'"),
    ],
)
def test_training_refuses_them(settings, says):
    with pytest.raises(ConfigError, match=says):
        feduhb.train(ragged(), **{"rounds": 1, "epochs": 1, "show": None, **settings})


def test_local_training_takes_no_infinite_rate():
    with pytest.raises(ConfigError, match="lr is inf"):
        Local(lr=math.inf)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int64])
def test_a_class_that_no_label_can_have_is_a_class_that_nobody_has(kind):
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 0, 1], dtype=kind)
    federation = feduhb.Federation({"a": (x, y), "b": (x, y)}, (x, y), torch.nn.Linear(4, 2))
    with pytest.raises(RequestError, match="class"):
        federation.without("class:99999999999999999999")
    assert list(federation.without("class:1").clients) == ["a", "b"]
    with pytest.raises(RequestError, match="257"):
        federation.without("class:257")  # on bytes that would be 1, by overflow


def test_a_seed_is_a_whole_number():
    with pytest.raises(ConfigError, match=r"^seed is 'a'; give a whole number$"):
        feduhb.load("digits", seed="a")  # pyright: ignore[reportArgumentType]


class NoRounds:
    """A method that lacks a part."""

    name, exact, needs = "odd", True, "sum"
    init = ask = tell = None


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (feduhb.FedUHB, "FedUHB is a class; give an instance of it: FedUHB()"),
        (NoRounds(), "is not a method: it has no rounds; inherit from feduhb.Method"),
    ],
)
def test_what_is_no_method_is_refused(method, says):
    run = feduhb.train(ragged(), 1, epochs=1, show=None)
    with pytest.raises(ConfigError, match=re.escape(says)):
        feduhb.unlearn(run, ["cat"], method=method)


def test_checking_a_method_does_not_count_its_rounds():
    """A method may read a whole history to count them."""

    @dataclass(frozen=True)
    class Slow(feduhb.Retrain):
        name: ClassVar[str] = "slow"

        @property
        def rounds(self) -> int | None:
            raise AssertionError

    assert check_method(Slow()).name == "slow"


@pytest.mark.parametrize("show", [[print, "tqdm"], "tqdm", True, 3, {}])
def test_what_cannot_show_rounds_is_refused_and_not_ignored(show, tmp_path):
    words = f"^{re.escape(f'show is {show!r}; give ')}'auto', 'lines', None, a function, which gets every Round, or a list of these$"
    with pytest.raises(ConfigError, match=words):
        feduhb.train(ragged(), 1, epochs=1, out=tmp_path / "run", show=show)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=words):
        feduhb.audit(None, show=show)  # type: ignore[arg-type]


def test_what_can_show_rounds():
    for show in ("auto", "lines", None, print):
        check_show(show)


@pytest.mark.parametrize("stop", [lambda moved: None, "never", 0.6, None, feduhb.dynamic_stop, print])  # noqa: ARG005
def test_what_is_not_a_stop_rule_is_refused(stop, tmp_path):
    trained = feduhb.train(ragged(), 1, epochs=1, show=None)
    words = re.escape(
        f"stop is {stop!r}, which is not a stop rule; give feduhb.dynamic_stop(0.6), feduhb.never, or an object"
    )
    with pytest.raises(ConfigError, match=f"^{words}"):
        feduhb.unlearn(trained, ["elk"], stop=stop, out=tmp_path / "run", show=None)
    assert not (tmp_path / "run").exists()


class AfterTwo:
    """A stop rule of one's own."""

    def __call__(self, moved):
        return StopReason("two rounds", moved[-1], 0.0) if len(moved) == 2 else None

    def threshold(self, moved):  # noqa: ARG002
        return None


def test_a_stop_rule_of_ones_own():
    check_stop(feduhb.never)
    trained = feduhb.train(ragged(), 1, epochs=1, show=None)
    assert len(feduhb.unlearn(trained, ["elk"], stop=AfterTwo(), show=None).rounds) == 2
