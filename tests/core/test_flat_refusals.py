"""Modules whose training cannot be exact are refused: which layer, why, and the way out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from feduhb.core.flat import check_module, draw_model, flatten
from feduhb.errors import ModelError


class Counting(nn.Module):
    """A module of one's own that keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(1))


class Bare(nn.Module):
    """Holds a parameter and does not say how to draw it anew."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


def frozen() -> nn.Module:
    first = nn.Linear(2, 2)
    first.weight.requires_grad_(False)
    return nn.Sequential(first, nn.Linear(2, 1))


BUFFERS = (
    "and statistics in them would outlive a forgotten client; "
    "use GroupNorm or LayerNorm, or make a constant in forward"
)
DRAWS = "draws random numbers that depend on no seed of a client or round; remove it, or regularise with l2 instead"
REFUSED = [
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
        f"layer 1 (BatchNorm1d) keeps buffers (running_mean, running_var, num_batches_tracked), {BUFFERS}",
        id="BatchNorm",
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)),
        "layer 1 (BatchNorm1d) scores an example by the others in its batch; use GroupNorm or LayerNorm",
        id="BatchNorm without statistics",
    ),
    pytest.param(
        Counting, f"layer (the module itself) (Counting) keeps buffers (seen), {BUFFERS}", id="buffer"
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), f"layer 1 (Dropout) {DRAWS}", id="Dropout"
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.Dropout2d(0.5)),
        f"layer 1 (Dropout2d) {DRAWS}",
        id="Dropout2d",
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.5)),
        f"layer 1 (AlphaDropout) {DRAWS}",
        id="Alpha",
    ),
    pytest.param(
        lambda: nn.ModuleDict({"core": nn.LSTM(2, 2, num_layers=2, dropout=0.2)}),
        f"layer core (LSTM) {DRAWS}",
        id="LSTM with dropout",
    ),
    pytest.param(
        lambda: nn.MultiheadAttention(4, 2, dropout=0.1),
        f"layer (the module itself) (MultiheadAttention) {DRAWS}",
        id="attention with dropout",
    ),
    pytest.param(lambda: nn.Sequential(nn.Linear(2, 2), nn.RReLU()), f"layer 1 (RReLU) {DRAWS}", id="RReLU"),
    pytest.param(
        frozen,
        "parameter 0.weight is frozen (requires_grad=False), so a fresh draw would never be trained; "
        "unfreeze it, or put the frozen part into the data as features",
        id="frozen",
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
        "parameters have types ['torch.float32', 'torch.float64']; convert them to one float type",
        id="mixed types",
    ),
    pytest.param(
        lambda: nn.Linear(2, 2).to(torch.complex64),
        "parameters have types ['torch.complex64']; convert them to one float type",
        id="complex",
        marks=pytest.mark.filterwarnings("ignore:Complex modules"),
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Flatten(), nn.ReLU()),
        "Sequential has no parameters to train; give a module that has some",
        id="nothing to train",
    ),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_refused_with_the_layer_and_the_way_out(make, words: str):
    for attempt in (lambda: check_module(make()), lambda: draw_model(make(), 0), lambda: draw_model(make, 0)):
        with pytest.raises(ModelError) as error:
            attempt()
        assert str(error.value) == words


@pytest.mark.parametrize("nested", [False, True])
def test_a_layer_that_cannot_be_drawn_anew(nested: bool):
    module = nn.ModuleDict({"gate": Bare()}) if nested else Bare()
    check_module(module)
    with pytest.raises(ModelError) as error:
        draw_model(module, 0)
    which = "gate" if nested else "(the module itself)"
    assert str(error.value) == (
        f"layer {which} (Bare) has no reset_parameters, so a fresh model cannot be drawn; "
        "add one, or pass a factory: model=lambda: MyModule()"
    )


def test_a_refusal_leaves_the_global_generator_alone():
    module = Bare()
    before = torch.default_generator.get_state()
    with pytest.raises(ModelError):
        draw_model(module, 0)
    assert torch.equal(torch.default_generator.get_state(), before)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.GroupNorm(1, 2)), id="norms"),
        pytest.param(lambda: nn.LSTM(2, 2, num_layers=2), id="LSTM"),
        pytest.param(lambda: nn.MultiheadAttention(4, 2), id="attention"),
        pytest.param(lambda: nn.Linear(2, 2).to(torch.bfloat16), id="bfloat16"),
        pytest.param(
            lambda: nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0), id="transformer without dropout"
        ),
    ],
)
def test_accepted(make):
    module = make()
    check_module(module)
    assert torch.equal(flatten(draw_model(module, 0)), flatten(draw_model(module, 0)))


def test_a_lazy_layer_is_refused_in_words():
    """Its shapes are not known until data has been seen; flattening it would end in torch's own words."""
    with pytest.raises(ModelError, match="LazyLinear"):
        draw_model(nn.Sequential(nn.LazyLinear(2)), 0)


def test_every_layer_at_fault_is_named():
    module = nn.Sequential(
        nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1)
    )
    with pytest.raises(
        ModelError,
        match=r"^layer 1 \(BatchNorm1d\) .* \(see also layer 3 \(BatchNorm1d\), layer 4 \(Dropout\)\)$",
    ):
        check_module(module)


def test_a_factory_that_hands_out_what_was_learned_is_refused():
    """The same module each time, or a copy of one: neither is drawn afresh."""
    net = nn.Linear(3, 2)
    with pytest.raises(ModelError, match="the model's factory returns the same module each time"):
        draw_model(lambda: net, 0)
    with pytest.raises(ModelError, match="the model's factory returns the same weights for every seed"):
        draw_model(lambda: copy.deepcopy(net), 0)


def test_a_factory_that_starts_at_zero_is_fresh_enough():
    def zeros() -> nn.Module:
        module = nn.Linear(3, 2)
        for p in module.parameters():
            nn.init.zeros_(p)
        return module

    assert not flatten(draw_model(zeros, 0)).any()
