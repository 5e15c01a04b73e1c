"""How clients train: settings that contradict each other are refused, schedules are those on paper."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from data.wording import refused
from feduhb.core.describe import name_function
from feduhb.core.local import (
    LOSSES,
    SCHEDULES,
    Local,
    describe_local,
    find_loss,
    move_loss,
    scale_lr,
)
from feduhb.errors import ConfigError

NAN = math.nan
CHOICES = ", ".join(SCHEDULES)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size is 0; give"),
    ({"lr": 0.0}, "lr is 0.0; give a positive number, such as 0.005"),
    ({"lr": NAN}, "lr is nan; give a positive number, such as 0.005"),
    ({"lr": "fast"}, "lr is 'fast'; give a positive number, such as 0.005"),
    ({"l2": -1.0}, "l2 is -1.0; give 0 or more"),
    ({"weight_decay": -1.0}, "weight_decay is -1.0; give 0 or more"),
    ({"proximal": math.inf}, "proximal is inf; give 0 or more"),
    ({"optimizer": "lion"}, "there is no optimizer 'lion'; choose one of sgd, adam, adamw"),
    ({"optimizer": None}, "there is no optimizer None; choose one of sgd, adam, adamw"),
    ({"momentum": 1.0}, "momentum is 1.0; give at least 0 and below 1"),
    ({"momentum": -0.1}, "momentum is -0.1; give at least 0 and below 1"),
    (
        {"optimizer": "adam", "momentum": 0.9},
        "adam has moments of its own; give momentum with optimizer 'sgd', or leave it out",
    ),
    (
        {"optimizer": "adamw", "momentum": 0.9},
        "adamw has moments of its own; give momentum with optimizer 'sgd', or leave it out",
    ),
    (
        {"optimizer": "adamw", "l2": 0.1},
        "l2 is the weight decay of sgd and adam; give weight_decay alone",
    ),
    ({"l2": 0.1, "weight_decay": 0.1}, "l2 is the weight decay of sgd and adam; give weight_decay alone"),
    ({"clip_norm": 0.0}, "clip_norm is 0.0; give a positive number, or leave it out"),
    ({"clip_norm": "1"}, "clip_norm is '1'; give a positive number, or leave it out"),
    ({"schedule": "step"}, f"there is no schedule 'step'; choose one of {CHOICES}"),
    ({"schedule": "decay"}, f"there is no schedule 'decay'; choose one of {CHOICES}"),
    ({"schedule": "decay:0"}, f"there is no schedule 'decay:0'; choose one of {CHOICES}"),
    ({"schedule": "decay:1.1"}, f"there is no schedule 'decay:1.1'; choose one of {CHOICES}"),
    ({"schedule": "decay:-0.5"}, f"there is no schedule 'decay:-0.5'; choose one of {CHOICES}"),
    ({"schedule": "decay:nan"}, f"there is no schedule 'decay:nan'; choose one of {CHOICES}"),
    ({"schedule": "decay:."}, f"there is no schedule 'decay:.'; choose one of {CHOICES}"),
    ({"schedule": None}, f"there is no schedule None; choose one of {CHOICES}"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSED, ids=[str(settings) for settings, _ in REFUSED])
def test_refused_in_one_line(settings, words):
    with refused(ConfigError, words):
        Local(**settings)


def test_schedules_on_paper():
    """Of four steps in round 3."""
    steps = {name: [scale_lr(name, 3, step, 4) for step in range(4)] for name in SCHEDULES}
    half = math.sqrt(0.5)
    assert steps["constant"] == [1.0, 1.0, 1.0, 1.0]
    assert steps["linear"] == [1.0, 0.75, 0.5, 0.25]
    assert steps["cosine"] == pytest.approx([1.0, (1 + half) / 2, 0.5, (1 - half) / 2])
    assert steps["decay:0.99"] == [0.99**3] * 4
    assert scale_lr("decay:0.5", 0, 0, 1) == 1.0
    assert scale_lr("decay:1", 9, 0, 1) == 1.0


def test_a_schedule_never_stands_still():
    """The last step has a factor above 0, so that every step of a client counts."""
    for name in SCHEDULES:
        assert all(scale_lr(name, 5, step, steps) > 0 for steps in (1, 2, 7) for step in range(steps))


def test_plain_is_a_step_of_sgd_and_nothing_else():
    assert Local().is_plain
    assert Local(l2=0.1).is_plain
    assert Local(weight_decay=0.1).is_plain
    others = {"optimizer": "adam", "momentum": 0.5, "clip_norm": 1.0, "schedule": "linear", "proximal": 0.1}
    assert not any(Local(**{name: value}).is_plain for name, value in others.items())


def test_l2_and_weight_decay_are_one_for_sgd():
    assert Local(l2=0.1).decay == Local(weight_decay=0.1).decay == 0.1
    assert Local().decay == 0.0


def test_losses_by_name_or_as_they_are():
    assert find_loss("mse") is F.mse_loss
    assert {name: find_loss(name) for name in LOSSES} == LOSSES
    own = functools.partial(F.cross_entropy, label_smoothing=0.1)
    assert find_loss(own) is own
    with refused(
        ConfigError,
        "there is no loss 'l1'; choose one of cross_entropy, bce_with_logits, mse, huber, or give a function",
    ):
        find_loss("l1")


def test_the_tensors_of_a_loss_move_and_the_loss_stays():
    weight, device = torch.tensor([1.0, 2.0]), torch.device("meta")
    module = nn.CrossEntropyLoss(weight)
    partial = functools.partial(F.cross_entropy, weight=weight, label_smoothing=0.1)
    moved, changed = move_loss(module, device), move_loss(partial, device)
    assert isinstance(moved, nn.CrossEntropyLoss)
    assert isinstance(changed, functools.partial)
    assert moved.weight is not None
    assert moved.weight.device == changed.keywords["weight"].device == device
    assert changed.keywords["label_smoothing"] == 0.1
    assert module.weight is weight
    assert partial.keywords["weight"] is weight
    assert weight.device.type == "cpu"
    assert move_loss(F.mse_loss, device) is F.mse_loss


def test_records_name_only_what_is_used():
    plain = {"batch_size": 64, "lr": 0.005, "loss": "cross_entropy", "l2": 0.0}
    assert describe_local(Local()) == plain
    used = {
        "optimizer": "adamw",
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "schedule": "cosine",
        "proximal": 0.2,
    }
    assert describe_local(Local(**used)) == {**plain, **used}

    def flip(x: Any, _: Any) -> Any:
        return x

    assert describe_local(Local(augment=flip, momentum=0.9)) == {**plain, "momentum": 0.9, "augment": "flip"}
    assert name_function(functools.partial(F.mse_loss)) == "mse_loss"
    assert name_function(nn.HuberLoss()) == "HuberLoss"
