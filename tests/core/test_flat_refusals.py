"""Modules whose training cannot be exact are refused: which layer, why, and the way out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from feduhb.core.flat import draw_model, flatten
from feduhb.core.modules import check_module
from feduhb.errors import ModelError


class Bare(nn.Module):
    """Holds a parameter and does not say how to draw it anew."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


def sharing() -> nn.Module:
    """Two norms with one tensor for their means."""
    one, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    other.running_mean = one.running_mean
    return nn.Sequential(one, nn.Linear(2, 2), other)


def frozen() -> nn.Module:
    first = nn.Linear(2, 2)
    first.weight.requires_grad_(False)
    return nn.Sequential(first, nn.Linear(2, 1))


DRAWS = "draws random numbers that have no address, so no seed of a client and round fixes them"
INSIDE = f"{DRAWS}; set its dropout to 0, and use nn.Dropout as a layer of its own"
REFUSED = [
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)),
        "layer 1 (BatchNorm1d) averages over all batches it ever saw (momentum=None), but clients keep no state; "
        "give a number, such as momentum=0.1",
        id="BatchNorm without momentum",
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)),
        "layer 1 (BatchNorm1d) scores an example by the others in its batch; set track_running_stats=True, or use "
        "GroupNorm or LayerNorm",
        id="BatchNorm without statistics",
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.5)),
        f"layer 1 (AlphaDropout) {DRAWS}; use nn.Dropout, or remove it",
        id="Alpha",
    ),
    pytest.param(
        lambda: nn.ModuleDict({"core": nn.LSTM(2, 2, num_layers=2, dropout=0.2)}),
        f"layer core (LSTM) {INSIDE}",
        id="LSTM with dropout",
    ),
    pytest.param(
        lambda: nn.MultiheadAttention(4, 2, dropout=0.1),
        f"layer (the module itself) (MultiheadAttention) {INSIDE}",
        id="attention with dropout",
    ),
    pytest.param(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.RReLU()),
        f"layer 1 (RReLU) {DRAWS}; use nn.LeakyReLU",
        id="RReLU",
    ),
    pytest.param(
        lambda: nn.Linear(2, 2).requires_grad_(False),
        "all parameters of Linear are frozen (requires_grad=False), so nothing would be trained; unfreeze the part to train, "
        "such as the head: net.head.requires_grad_(True)",
        id="all frozen",
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
        sharing,
        "0.running_mean and 2.running_mean are one tensor, to which each layer would add its own batches; give each layer "
        "statistics of its own, or use one layer in both places",
        id="one statistic of two layers",
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


def test_a_frozen_parameter_needs_a_given_start():
    for source in (frozen(), frozen):
        with pytest.raises(ModelError) as error:
            draw_model(source, 0)
        assert str(error.value) == (
            "parameter 0.weight is frozen (requires_grad=False), so a fresh draw of it would never be trained; if the module's "
            "weights are public and never saw clients' data, start from them: start='given'; else unfreeze it"
        )
    net = frozen()
    assert torch.equal(flatten(draw_model(net, 0, given=True)), flatten(net))


def test_a_given_start_is_a_module():
    with pytest.raises(ModelError, match="a given start needs the module itself"):
        draw_model(frozen, 0, given=True)


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
        pytest.param(
            lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)),
            id="BatchNorm, Dropout",
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
        nn.Linear(2, 2), nn.RReLU(), nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None), nn.Dropout(0.1)
    )
    with pytest.raises(ModelError, match=r"^layer 1 \(RReLU\) .* \(see also layer 3 \(BatchNorm1d\)\)$"):
        check_module(module)


def test_a_frozen_norm_needs_no_momentum():
    """It is carried with its statistics, so it never gathers any."""
    frozen = nn.BatchNorm1d(2, momentum=None).requires_grad_(False)
    check_module(nn.Sequential(nn.Linear(2, 2), frozen))


def test_a_factory_that_hands_out_what_was_learned_is_refused():
    """The same module each time, or a copy of one: neither is drawn afresh."""
    net = nn.Linear(3, 2)
    with pytest.raises(ModelError, match="the model's factory returns the same module each time"):
        draw_model(lambda: net, 0)
    with pytest.raises(ModelError, match="the model's factory returns the same weights for every seed"):
        draw_model(lambda: copy.deepcopy(net), 0)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (nn.Linear, "raised TypeError: .*missing 2 required positional arguments.*; give a module, or a"),
        (lambda: "net", "returned a str; give a module, or a function without arguments"),
    ],
)
def test_a_factory_that_makes_no_module_is_refused_in_one_line(factory, words):
    with pytest.raises(ModelError, match=f"^the model's factory {words}"):
        draw_model(factory, 0)


def test_a_factory_that_starts_at_zero_is_fresh_enough():
    def zeros() -> nn.Module:
        module = nn.Linear(3, 2)
        for p in module.parameters():
            nn.init.zeros_(p)
        return module

    assert not flatten(draw_model(zeros, 0)).any()
