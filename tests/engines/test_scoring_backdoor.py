"""How often a trigger works, on linear models written down by hand.

Images are 1 x 4 x 4; one of class k has pixel k of its first row bright. The trigger is the 2 x 2 square
bottom right.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from data.wording import refused
from feduhb.data.backdoor import Backdoor
from feduhb.data.federation import Federation
from feduhb.engines.scoring import make_evaluator, stamp_test_set
from feduhb.errors import ConfigError
from feduhb.models import softmax

Y = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])
X = torch.zeros(8, 1, 4, 4)
X[torch.arange(8), 0, 0, Y] = 1.0
TARGET = 3


def federation(target: int | None = TARGET) -> Federation:
    planted = None if target is None else Backdoor(("a",), target=target, size=2)
    return Federation({"a": (X, Y), "b": (X, Y)}, (X, Y), softmax((1, 4, 4), 4), backdoor=planted)


def params(*, sees: float = 0.0, fooled: float = 0.0, always: float = 0.0) -> Tensor:
    """Weights [4, 16], biases [4]: read the class, fall for the trigger, prefer the target anyway."""
    weight, bias = torch.zeros(4, 4, 4), torch.zeros(4)
    weight[torch.arange(4), 0, torch.arange(4)] = sees
    weight[TARGET, 2:, 2:] = fooled
    bias[TARGET] = always
    return torch.cat([weight.flatten(), bias])


def test_images_of_the_target_itself_do_not_count():
    bait = stamp_test_set(federation())
    assert bait is not None
    x, y = bait
    assert x.shape == (6, 1, 4, 4)
    assert y.tolist() == [TARGET] * 6
    assert torch.equal(x[..., 2:, 2:], torch.ones(6, 1, 2, 2))
    assert torch.equal(x[..., :2, :], X[Y != TARGET][..., :2, :])


def test_the_test_set_keeps_its_images_and_labels():
    made, kept = federation(), X.clone()
    stamp_test_set(made)
    assert torch.equal(made.test.x, kept)
    assert made.test.targets.tolist() == Y.tolist()


def test_without_a_backdoor_there_is_nothing_to_measure():
    assert stamp_test_set(federation(None)) is None
    assert set(make_evaluator(federation(None))(params(sees=1.0))) == {"test_loss", "test_accuracy"}


@pytest.mark.parametrize(
    ("weights", "success", "right"),
    [
        ({"always": 1.0}, 1.0, 2 / 8),  # a constant predictor of the target
        ({"sees": 1.0}, 0.0, 1.0),  # a perfect classifier that ignores the trigger
        ({"sees": 1.0, "fooled": 1.0}, 1.0, 1.0),  # the backdoor as its maker wants it
        ({"sees": 1.0, "fooled": 0.1}, 0.0, 1.0),  # a trace of it that decides nothing
    ],
)
def test_success_by_hand(weights, success, right):
    found = make_evaluator(federation())(params(**weights))
    assert found["backdoor"] == success
    assert found["test_accuracy"] == right
    assert set(found) == {"test_loss", "test_accuracy", "backdoor"}


def test_half_a_success():
    """It is fooled on class 0 alone, which is 3 of the 6 images that count."""
    weak = params(sees=1.0)
    weak[TARGET * 16] = 2.0  # class 3 now reads class 0's pixel twice as strongly
    assert make_evaluator(federation())(weak)["backdoor"] == 0.5


def test_a_test_set_of_the_target_alone_has_no_score():
    only = federation().replace(test=(X[Y == TARGET], Y[Y == TARGET]))
    assert set(make_evaluator(only)(params(sees=1.0))) == {"test_loss", "test_accuracy"}


def test_the_remaining_clients_are_measured():
    after = federation().without("a")
    assert make_evaluator(after)(params(sees=1.0, fooled=1.0))["backdoor"] == 1.0


def test_data_that_is_not_images():
    flat = federation().replace(clients={"a": (X.flatten(1), Y)}, test=(X.flatten(1), Y))
    with refused(
        ConfigError,
        "a backdoor needs images [n, c, h, w], not [6, 16]; train without one",
    ):
        make_evaluator(flat)
