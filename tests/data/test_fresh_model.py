"""w[0]: drawn from the seed alone, by a model that reads the data and draws nothing on the way."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import feduhb
from data.wording import refused
from feduhb.core.flat import flatten
from feduhb.data.federation import Federation
from feduhb.errors import ModelError

X = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def federation(
    model: Any, *, loss: Any = F.cross_entropy, seed: int = 0, names: str = "ab", count: int = 6
) -> Federation:
    return Federation(dict.fromkeys(names, (X, Y)), (X[:count], Y[:count]), model, seed=seed, loss=loss)


def weights(**more: Any) -> Tensor:
    return flatten(federation(nn.Linear(3, 3), **more).fresh_model())


def test_same_seed_same_weights_whatever_the_clients():
    full = federation(nn.Linear(3, 3), names="abcd")
    expected = flatten(full.fresh_model())
    for other in (federation(nn.Linear(3, 3), names="z"), full.without("a"), full.without("a:0,class:1")):
        assert torch.equal(flatten(other.fresh_model()), expected)


@pytest.mark.parametrize("model", ["mlp", None])
def test_what_is_not_a_model_is_refused_at_once(model):
    with refused(ModelError, f"model is {model!r}; give a module, or a function that returns a new one"):
        federation(model)


def test_other_seed_other_weights():
    assert not torch.equal(weights(seed=0), weights(seed=1))


def test_weights_that_the_module_holds_do_not_matter():
    trained = nn.Linear(3, 3)
    nn.init.constant_(trained.weight, 7.0)
    assert torch.equal(flatten(federation(trained).fresh_model()), weights())
    assert torch.equal(trained.weight, torch.full((3, 3), 7.0))


def test_the_callers_draws_do_not_matter_and_are_left_alone():
    made = federation(nn.Linear(3, 3))
    expected = flatten(made.fresh_model())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        before = torch.default_generator.get_state()
        assert torch.equal(flatten(made.fresh_model()), expected)
        assert torch.equal(before, torch.default_generator.get_state())


def test_a_factory_is_called_under_the_seed():
    made = federation(lambda: nn.Linear(3, 3))
    assert torch.equal(flatten(made.fresh_model()), weights())


def test_learned_weights_before_one_fresh_layer_are_refused_by_name():
    """They could hold the labels of a client that is forgotten, and every comparison of weights would pass."""
    learned = nn.Linear(3, 8)

    def make() -> nn.Module:
        return nn.Sequential(copy.deepcopy(learned), nn.ReLU(), nn.Linear(8, 3))

    for forget in (None, "a"):
        made = federation(make)
        with refused(
            ModelError, "the model's factory returns the same weights for every seed in 0.weight, so they are"
        ):
            feduhb.train(made if forget is None else made.without(forget), 1, show=None)


def test_a_model_that_was_found_fresh_is_not_checked_again_for_another_seed():
    factory = Factory()
    made = federation(factory)
    made.fresh_model()
    for seed in range(1, 4):
        assert torch.equal(flatten(made.reseed(seed).fresh_model()), weights(seed=seed))
    assert factory.calls == 3 + 3


@pytest.mark.parametrize("model", [nn.Linear(4, 3), nn.Conv2d(1, 2, 3)])
def test_a_model_that_cannot_read_the_data(model):
    with refused(ModelError, "the model and its loss cannot read this data (", "); check shapes and types"):
        federation(model).fresh_model()


def test_a_loss_that_cannot_read_the_targets():
    with refused(ModelError, "the model and its loss cannot read this data (", "); check shapes and types"):
        federation(nn.Linear(3, 3), loss=F.binary_cross_entropy).fresh_model()


def each(given: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(given, y, reduction="none")


def test_a_loss_that_is_no_single_number():
    with refused(ModelError, "the loss returns [2], not one number; use its mean over the batch"):
        federation(nn.Linear(3, 3), loss=each).fresh_model()


def test_a_loss_of_one_example_each_is_found_by_one_test_example_too():
    with refused(ModelError, "the loss returns [1], not one number; use its mean over the batch"):
        federation(nn.Linear(3, 3), loss=each, count=1).fresh_model()


def test_a_loss_that_is_no_tensor():
    with refused(ModelError, "the loss returns"):
        federation(nn.Linear(3, 3), loss=lambda given, y: F.cross_entropy(given, y).item()).fresh_model()


class Dropping(nn.Linear):
    """Dropout that no layer shows."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(F.dropout(input, 0.5))


class DrawingThenFailing(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(torch.cat([input, torch.rand(len(input), 1)], dim=1))


def test_dropout_inside_forward_is_found():
    with refused(
        ModelError,
        "layer (the module itself) (Dropping) draws random numbers that have no address, so no seed of a client and round fixes "
        "them; use nn.Dropout or the numbers of an augmentation, set its dropout to 0, or remove it",
    ):
        federation(Dropping(3, 3)).fresh_model()


@pytest.mark.parametrize("model", [Dropping(3, 3), DrawingThenFailing(3, 3)])
def test_a_model_that_draws_leaves_the_global_generator_alone(model):
    before = torch.default_generator.get_state()
    with refused(ModelError):
        federation(model).fresh_model()
    assert torch.equal(before, torch.default_generator.get_state())


def test_one_test_example_is_enough():
    assert isinstance(federation(nn.Linear(3, 3), count=1).fresh_model(), nn.Linear)


class Factory:
    """Makes linear models and counts the draws: the first one calls a factory three times, to see that it is fresh."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> nn.Module:
        self.calls += 1
        return nn.Linear(3, 3)

    @property
    def draws(self) -> float:
        return self.calls / 3


def test_the_model_is_drawn_once_for_a_federation_and_all_that_come_from_it():
    factory = Factory()
    whole = federation(factory, names="abcd")
    early = whole.without("a")  # before the draw
    expected = flatten(whole.fresh_model())
    less = whole.without("b:0").replace(held_out={"a": (X, Y)}, backdoor=None)
    for other in (whole, early, less, less.without("c")):
        assert torch.equal(flatten(other.fresh_model()), expected)
    assert factory.draws == 1


def test_every_model_is_a_copy():
    made = federation(Factory())
    expected = flatten(made.fresh_model())
    first, second = made.fresh_model(), made.without("a").fresh_model()
    assert first is not second
    nn.init.constant_(first.get_parameter("weight"), 7.0)
    first.double()
    assert torch.equal(flatten(second), expected)
    assert torch.equal(flatten(made.fresh_model()), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"model": Factory()},
        {"loss": lambda given, y: F.cross_entropy(given, y)},
        {"test": (X[:2], Y[:2])},
    ],
    ids=["seed", "model", "loss", "test"],
)
def test_another_seed_model_loss_or_test_set_draws_again(changes):
    factory = Factory()
    made = federation(factory)
    before = flatten(made.fresh_model())
    other = made.replace(**changes)
    factories = {factory, changes.get("model", factory)}
    after = flatten(other.fresh_model())
    assert torch.equal(after, before) is ("seed" not in changes)
    assert sum(one.draws for one in factories) == (
        4 / 3 if "seed" in changes else 2
    )  # checked once for all seeds
    assert torch.equal(flatten(made.fresh_model()), before)


def test_another_loss_is_checked():
    made = federation(nn.Linear(3, 3))
    made.fresh_model()
    with refused(ModelError, "the loss returns [2], not one number"):
        made.replace(loss=each).fresh_model()


def test_a_seed_that_is_changed_in_place_draws_again():
    made = federation(nn.Linear(3, 3))
    made.fresh_model()
    made.seed = 1
    assert torch.equal(flatten(made.fresh_model()), weights(seed=1))


@pytest.mark.parametrize("copied", [lambda made: pickle.loads(pickle.dumps(made)), copy.deepcopy])  # noqa: S301
def test_a_pickle_and_a_copy_do_not_hold_the_draw(copied):
    made = federation(nn.Linear(3, 3))
    small = len(pickle.dumps(made))
    expected = flatten(made.fresh_model())
    assert len(pickle.dumps(made)) == small
    again = copied(made)
    assert again._draw.module is None
    assert torch.equal(flatten(again.fresh_model()), expected)
    assert torch.equal(flatten(made.fresh_model()), expected)


class Remembering(nn.Linear):
    """Keeps its last output, which cannot be copied while it needs a gradient."""

    def forward(self, input: Tensor) -> Tensor:
        self.last = super().forward(input)
        return self.last


def test_the_check_leaves_no_trace_in_the_model():
    made = federation(Remembering(3, 3))
    made.fresh_model()
    assert not hasattr(made.fresh_model(), "last")


def test_the_examples_of_a_federation_are_here():
    assert federation(nn.Linear(3, 3)).is_remote is False
