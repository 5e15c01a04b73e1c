"""Draws of a model that share weights are not fresh."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from feduhb.core.flat import draw_model, flatten, split
from feduhb.core.fresh import draw_several, find_shared


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


def test_a_table_that_no_seed_changes_is_shared():
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.arange(12.0).view(3, 4).sin())
            self.head = nn.Linear(4, 2)

    assert find(Table).names == ("places",)


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
