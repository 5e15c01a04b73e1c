"""Draws of a model that share weights are not fresh."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from feduhb.core.flat import draw_model, flatten, is_plain, split
from feduhb.core.fresh import draw_several, find_shared, find_unlike
from feduhb.errors import ModelError


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))


def make_orthogonal() -> nn.Module:
    module = nn.Linear(8, 8)
    nn.init.orthogonal_(module.weight)
    return module


OLD = flatten(draw_model(make_model, 99))


def make_warm(share: float, noise: float = 1.0, places: slice = slice(None)) -> Callable[[], nn.Module]:
    """Return a factory that adds a share of old weights, in some places, to its draws."""

    def make() -> nn.Module:
        module = make_model()
        mask = torch.zeros_like(OLD)
        mask[places] = share
        with torch.no_grad():
            for p, old, shares in zip(
                module.parameters(), split(OLD, module), split(mask, module), strict=True
            ):
                p.copy_(shares * old + noise * p)
        return module

    return make


def find(source: nn.Module | Callable[[], nn.Module], seed: int = 0):
    return find_shared(draw_several(source, seed))


@pytest.mark.parametrize(
    "make",
    [
        make_model,
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Embedding(10, 4, padding_idx=0)),
        lambda: nn.LSTM(4, 4, num_layers=2),
        lambda: nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0),
        make_orthogonal,
    ],
    ids=["perceptron", "convolution and embedding", "LSTM", "transformer", "orthogonal"],
)
def test_honest_draws_share_nothing(make):
    for seed in range(5):
        found = find(make, seed)
        assert found.names == ()
        assert found.judged


def test_a_trained_module_is_drawn_afresh():
    module = make_model()
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(3.0)
    assert find(module).names == ()


@pytest.mark.parametrize(("share", "noise"), [(1.0, 1e-3), (1.0, 1.0), (0.5, 1.0)])
def test_old_weights_under_noise_are_found(share, noise):
    names = find(make_warm(share, noise)).names
    assert {"0.weight", "3.weight"} <= {*names}
    assert "2.weight" not in names  # ones in every draw


def test_the_parameter_that_is_shared_is_named():
    last = slice(-4 - 64, -4)
    found = find(make_warm(1.0, places=last))
    assert found.names == ("3.weight",)
    assert str(found) == "3.weight"
    assert str(find(make_warm(1.0))).startswith("0.weight and ")


def test_a_large_value_does_not_hide_the_others():
    def make() -> nn.Module:
        module = make_warm(1.0, 1e-3)()
        with torch.no_grad():
            for p in module.parameters():
                p.view(-1)[0] = 1e6 * torch.randn(())
        return module

    assert "0.weight" in find(make).names


class Table(nn.Module):
    """A table that no seed changes, before a layer that is drawn."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.places = nn.Parameter(table.clone())
        self.head = nn.Linear(4, 2)


class Forgetting(nn.LSTM):
    """An LSTM whose forget gates begin open."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for name, p in self.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(p)
                nn.init.ones_(p[self.hidden_size : 2 * self.hidden_size])


PLAIN = [
    torch.zeros(3, 4),
    torch.ones(5),
    torch.full((2, 2), 0.1),
    torch.tensor([0.5]),
    torch.tensor(0.07),
    torch.eye(4),
    0.5 * torch.eye(3, 5),
    nn.init.dirac_(torch.empty(3, 3, 3, 3)),
    torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
]
GIVEN = [
    torch.arange(12.0).view(3, 4).sin(),
    torch.tensor([0.1, 0.2, 0.3]),
    torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0]),  # the signs of weights
    0.05 * OLD[:12].sign().view(3, 4),
]


@pytest.mark.parametrize("table", PLAIN, ids=lambda t: f"{list(t.shape)}")
def test_constants_that_layers_begin_with_are_fresh(table):
    assert is_plain(table)
    assert torch.equal(draw_model(lambda: Table(table), 0).get_parameter("places"), table)
    assert find(lambda: Table(table)).names == ()


@pytest.mark.parametrize("table", GIVEN, ids=lambda t: f"{list(t.shape)}")
def test_a_table_that_no_seed_changes_is_refused_by_name(table):
    assert not is_plain(table)
    with pytest.raises(ModelError) as error:
        draw_model(lambda: Table(table), 0)
    assert str(error.value) == (
        "the model's factory returns the same weights for every seed in places, so they are not fresh and may hold what a "
        "training learned; draw them there, as torch's layers do. Compute a fixed table in forward, and train what is added to it"
    )


def test_many_constants_could_hold_a_table_too():
    def make(values: torch.Tensor) -> nn.Module:
        return nn.Sequential(nn.ParameterList(nn.Parameter(v.view(1)) for v in values), nn.Linear(4, 2))

    few, many = torch.linspace(2, 3, 16), torch.linspace(2, 3, 17)
    draw_model(lambda: make(few), 0)
    with pytest.raises(ModelError, match=r"the same weights for every seed in 0\.16, so they are not fresh"):
        draw_model(lambda: make(many), 0)


def test_one_fresh_layer_does_not_excuse_the_others():
    learned = make_model()

    def make() -> nn.Module:
        return nn.Sequential(copy.deepcopy(learned), nn.Linear(4, 4))

    with pytest.raises(
        ModelError, match=r"the model's factory returns the same weights for every seed in 0\.0\.weight"
    ):
        draw_model(make, 0)


class Loading(nn.Linear):
    """A layer whose reset_parameters loads stored weights."""

    stored = torch.linspace(-1, 1, 8).view(2, 4)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.weight.copy_(self.stored)


@pytest.mark.parametrize("how", ["permuted", "turned", "both"])
def test_stored_units_in_another_order_or_with_other_signs_are_not_fresh(how):
    """A hidden layer computes the same with its units permuted, or (under tanh) with their signs turned."""
    stored = nn.Linear(6, 20), nn.Linear(20, 3)

    def make() -> nn.Module:
        first, last = copy.deepcopy(stored)
        order = torch.randperm(20) if how != "turned" else torch.arange(20)
        signs = torch.randint(0, 2, (20,)) * 2.0 - 1 if how != "permuted" else torch.ones(20)
        with torch.no_grad():
            first.weight.copy_(stored[0].weight[order] * signs[:, None])
            first.bias.copy_(stored[0].bias[order] * signs)
            last.weight.copy_(stored[1].weight[:, order] * signs)
        return nn.Sequential(first, nn.Tanh(), last, nn.Linear(3, 3))

    with pytest.raises(ModelError, match=r"returns the same weights for every seed in 0\.weight"):
        draw_model(make, 1)


def test_a_sparse_or_signed_draw_of_few_values_is_fresh():
    def make() -> nn.Module:
        model = nn.Linear(40, 40)
        with torch.no_grad():
            model.weight.copy_(torch.randint(-1, 2, (40, 40)) * 0.1)
        return model

    draw_model(make, 1)


def test_a_layer_that_loads_weights_where_it_should_draw_them():
    words = r"^reset_parameters of a layer returns the same weights for every seed in 1\.weight"
    with pytest.raises(ModelError, match=words):
        draw_model(nn.Sequential(nn.Linear(4, 4), Loading(4, 2)), 0)


def test_open_forget_gates_are_fresh():
    assert find(Forgetting(4, 4)).names == ()


@pytest.mark.parametrize(
    "make",
    [
        make_model,
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Embedding(10, 4, padding_idx=0)),
        lambda: nn.LSTM(4, 4, num_layers=2),
        lambda: nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0),
        lambda: nn.Linear(2, 2).to(torch.bfloat16),
    ],
    ids=["perceptron", "convolution and embedding", "LSTM", "transformer", "bfloat16"],
)
def test_a_new_module_looks_like_a_draw(make):
    for seed in range(20):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = make()
        assert find_unlike(module, 0) is None


def test_a_module_with_weights_of_its_own_does_not():
    drawn = draw_model(make_model, 0)
    shifted, scaled, constant = (copy.deepcopy(drawn) for _ in range(3))
    with torch.no_grad():
        shifted.get_parameter("2.bias").add_(0.01)
        nn.init.normal_(scaled.get_parameter("0.weight"))
        nn.init.zeros_(constant.get_parameter("0.weight"))
    found = [find_unlike(module, 0) for module in (shifted, scaled, constant)]
    assert found == ["2.bias", "0.weight", "0.weight"]


def test_constants_are_fresh_and_what_is_too_small_is_not_judged():
    def make_zeros() -> nn.Module:
        module = nn.Linear(3, 2)
        for p in module.parameters():
            nn.init.zeros_(p)
        return module

    assert find(make_zeros) == find_shared([])  # nothing is shared, and nothing was left out
    assert find(make_zeros).judged
    tiny = find(lambda: nn.Linear(2, 1))
    assert (tiny.names, tiny.judged) == ((), False)
    assert find(lambda: nn.Linear(3, 1)).judged
