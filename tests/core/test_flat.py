"""Modules and flat vectors, there and back; a fresh draw keeps nothing of what the module held."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from feduhb.core.flat import draw_model, flatten, split, unflatten, with_params
from feduhb.errors import ModelError


class Tied(nn.Module):
    """An embedding and an output layer that share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.embed(words))


def linear() -> nn.Module:
    return nn.Linear(3, 2)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3), nn.PReLU()
    )


def attention() -> nn.Module:
    return nn.MultiheadAttention(4, 2)


def recurrent() -> nn.Module:
    return nn.LSTM(3, 2, num_layers=2)


def single() -> nn.Module:
    return nn.Linear(3, 1, bias=False)


MODULES: list[Callable[[], nn.Module]] = [linear, convolutions, Tied, attention, recurrent, single]
each_module = pytest.mark.parametrize("make", MODULES)


@each_module
def test_there_and_back(make: Callable[[], nn.Module]):
    module = make()
    flat = torch.arange(float(flatten(module).numel()))
    unflatten(flat, module)
    assert torch.equal(flatten(module), flat)


@each_module
def test_a_flat_vector_is_a_copy(make: Callable[[], nn.Module]):
    module = make()
    flat = flatten(module)
    assert not flat.requires_grad
    kept = flat.clone()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1)
    assert torch.equal(flat, kept)


def test_order_and_shapes_on_paper():
    """A layer's weight comes before its bias, rows first: [[1, 2], [3, 4]] and [5, 6] are 1 to 6."""
    module = nn.Linear(2, 2)
    unflatten(torch.arange(1.0, 7.0), module)
    assert module.weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert module.bias.tolist() == [5.0, 6.0]
    assert [list(part.shape) for part in split(torch.zeros(6), module)] == [[2, 2], [2]]


def test_tied_weights_count_once_and_stay_tied():
    """5 x 3 shared numbers and 5 of the bias are 20, not 35."""
    module = Tied()
    assert flatten(module).shape == (20,)
    for held in (with_params(module, torch.arange(20.0)), draw_model(module, 0)):
        assert isinstance(held, Tied)
        assert held.out.weight is held.embed.weight


def test_with_params_leaves_the_module_alone():
    module = linear()
    before = flatten(module)
    held = with_params(module, torch.full((8,), 9.0))
    assert flatten(held).tolist() == [9.0] * 8
    assert torch.equal(flatten(module), before)


@pytest.mark.parametrize("shape", [(7,), (9,), (1, 8), (0,)])
def test_parameters_that_do_not_fit(shape: tuple[int, ...]):
    with pytest.raises(ModelError) as error:
        split(torch.zeros(shape), linear())
    assert str(error.value) == f"weights {list(shape)} do not fit this module; it needs [8]"


@each_module
def test_the_same_seed_draws_the_same_and_another_another(make: Callable[[], nn.Module]):
    module = make()
    first = flatten(draw_model(module, 1))
    assert torch.equal(first, flatten(draw_model(module, 1)))
    assert not torch.equal(first, flatten(draw_model(module, 2)))


@each_module
def test_nothing_that_the_module_holds_survives(make: Callable[[], nn.Module]):
    """A module trained on a forgotten client and one full of 99 draw the same bits."""
    module = make()
    drawn = flatten(draw_model(module, 5))
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(99.0)
    assert torch.equal(flatten(draw_model(module, 5)), drawn)
    assert not (drawn == 99.0).any()


@each_module
def test_the_source_is_not_changed(make: Callable[[], nn.Module]):
    module = make()
    before = copy.deepcopy(module.state_dict())
    draw_model(module, 5)
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())


@each_module
def test_a_factory_is_called_under_the_seed(make: Callable[[], nn.Module]):
    assert torch.equal(flatten(draw_model(make, 1)), flatten(draw_model(make, 1)))
    assert not torch.equal(flatten(draw_model(make, 1)), flatten(draw_model(make, 2)))


def test_a_factory_may_draw_as_it_likes():
    """Layers without reset_parameters are no obstacle where the factory makes them anew."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(3))

    assert torch.equal(flatten(draw_model(Bare, 4)), flatten(draw_model(Bare, 4)))
    assert not torch.equal(flatten(draw_model(Bare, 4)), flatten(draw_model(Bare, 5)))


def test_a_draw_does_not_depend_on_what_was_drawn_before():
    module = linear()
    first = flatten(draw_model(module, 1))
    torch.rand(17)
    assert torch.equal(flatten(draw_model(module, 1)), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_type_is_kept(dtype: torch.dtype):
    module = linear().to(dtype)
    assert flatten(module).dtype is dtype
    assert flatten(draw_model(module, 0)).dtype is dtype


class Forgetful(nn.Linear):
    """Its reset draws the weight anew and leaves the bias as it was."""

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight)


def test_a_reset_that_forgets_a_parameter_does_not_let_it_survive():
    """The bias was trained with a forgotten client; keeping it would be a leak."""
    module = Forgetful(2, 1)
    with torch.no_grad():
        module.bias.fill_(99.0)
    with pytest.raises(ModelError, match="bias"):
        draw_model(module, 0)
