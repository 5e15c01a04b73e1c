"""What a run says before it starts: that a module's weights are not used, and that the default number of rounds is another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import feduhb
from federations import ragged, tensors

SOON = feduhb.dynamic_stop(1e9, min_rounds=2)  # ends any run after two rounds
HOW: dict[str, Any] = {"epochs": 1, "engine": "loop"}


def make_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 3)).double()


def train(model: Any) -> feduhb.Run:
    clients = {name: tensors(name, 6) for name in ("ant", "bee")}
    return feduhb.train(feduhb.Federation(clients, tensors("test", 6), model), 1, show=None, **HOW)


def test_weights_that_are_not_used_are_said_to_be(capsys):
    learned = train(make_net).model()
    nn.init.constant_(learned.get_parameter("1.weight"), 0.5)
    capsys.readouterr()
    trained = train(learned)
    assert capsys.readouterr().err == (
        "feduhb: the weights that the module holds are not used: every run draws them anew from its seed, by the "
        "reset_parameters of the layers, and 1.weight does not look like such a draw. To draw weights in another way, give a "
        "factory: model=make_net\n"
    )
    assert torch.equal(trained.params, train(make_net()).params)


@pytest.mark.parametrize("model", [make_net, make_net()], ids=["factory", "module"])
def test_nothing_is_said_of_a_new_module(model, capsys):
    train(model)
    assert capsys.readouterr().err == ""


def test_a_default_that_is_not_the_number_of_the_training_is_said(capsys):
    trained = feduhb.train(ragged(), 3, show=None, **HOW)
    said = "at most 40 rounds, the default; the training had 3\n"
    asked: list[tuple[dict[str, Any], bool]] = [
        ({}, True), ({"rounds": 40}, False), ({"rounds": 3}, False), ({"show": None}, False),
    ]  # fmt: skip
    for more, is_said in asked:
        new = feduhb.unlearn(trained, ["elk"], stop=SOON, **{"show": "lines", **more})
        assert new.scheduled == more.get("rounds", 40)
        assert (said in capsys.readouterr().err) is is_said


def test_nothing_is_said_if_they_are_equal_or_the_method_has_its_own(capsys, tmp_path):
    trained = feduhb.train(ragged(), 2, out=tmp_path / "run", keep_history=True, show=None, **HOW)
    feduhb.unlearn(trained, ["elk"], method="federaser", erase_history=False, show="lines")
    assert "the default" not in capsys.readouterr().err
