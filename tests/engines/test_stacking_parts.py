"""The parts of the stacked engine, each alone: tracing, fused layers, losses, the store, and the trial."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import feduhb
from feduhb.core.flat import flatten, split
from feduhb.data.federation import Examples
from feduhb.engines.stacked.data import ExampleStore, are_tensors_shared
from feduhb.engines.stacked.fused import (
    FusedConvolution,
    FusedFlatten,
    FusedLinear,
    has_kernel,
    make_fused_layers,
)
from feduhb.engines.stacked.layers import Dense, Descent, Layer, NoStackedFormError, make_layers, trace
from feduhb.engines.stacked.networks import LayeredNetwork, compute_gradient
from feduhb.engines.stacked.trial import run_trial

CPU = torch.device("cpu")


def paper(*more):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(54, 8), nn.ReLU(), nn.Linear(8, 3), *more,
    )  # fmt: skip


def test_a_sequence_is_traced_to_its_layers():
    names = [name for name, _ in trace(nn.Sequential(paper(), nn.Identity()))]
    assert names == [f"0.{i}" for i in range(9)]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x):
        return self.one(self.one(x))


class Branching(nn.Linear):
    def forward(self, input):
        return super().forward(input) if input.sum() > 0 else input


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x, other):
        return self.one(x) + other


class Outputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x):
        return self.one(x), x


class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.idle = nn.Linear(3, 3), nn.Linear(2, 2)

    def forward(self, x):
        return functional.relu(self.one(x))


class Own(nn.Linear):
    """A layer that looks like a linear layer and is not one."""

    def forward(self, input):
        return super().forward(input) * 2


def make_hooked():
    module = nn.Sequential(nn.Linear(3, 3))
    module[0].register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Twice(), "a layer is used twice"),
        (nn.Sequential(Branching(3, 3)), "0 (Branching) has no stacked form|cannot be traced"),
        (Pair(), "it takes more than one input|is not fed by"),
        (Outputs(), "is not fed by the layer before it alone|more than one output"),
        (Idle(), "a parameter is not used by any layer"),
        (nn.Sequential(Own(3, 3)), "is not fed by the layer before it alone"),
        (nn.Sequential(nn.Linear(3, 3), nn.Tanh()), r"1 \(Tanh\) has no stacked form"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(3, 3)), "0 mixes the examples of a batch"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")), "0 pads with circular"),
        (make_hooked(), "a layer has hooks"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_not_a_chain_of_known_layers_is_refused_with_the_reason(module, why):
    with pytest.raises(NoStackedFormError, match=why):
        trace(module)


def test_convolution_relu_and_pooling_are_fused_and_flattening_moves_nothing():
    layers = make_fused_layers(trace(paper()), 3, CPU, "tf32", torch.zeros(2, 1, 12, 12))
    assert [type(layer) for layer in layers] == [
        FusedConvolution,
        FusedConvolution,
        FusedFlatten,
        FusedLinear,
        FusedLinear,
    ]
    first, second, _, third, last = layers
    assert isinstance(first, FusedConvolution)
    assert isinstance(second, FusedConvolution)
    assert isinstance(third, FusedLinear)
    assert isinstance(last, FusedLinear)
    assert (first.relu, first.pool, first.feeds, first.first) == (True, 2, True, True)
    assert (second.relu, second.pool, second.feeds, second.source) == (True, 1, False, first)
    assert (third.relu, tuple(third.image or ()), last.relu, last.image) == (True, (6, 3, 3), False, None)


def test_layers_between_and_settings_that_kernels_do_not_know_stay_plain():
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.MaxPool2d(3), nn.GroupNorm(2, 4), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip
    layers = make_fused_layers(trace(module), 2, CPU, "float32", torch.zeros(2, 1, 12, 12))
    assert [type(layer) for layer in layers] == [
        Layer,
        Layer,
        FusedConvolution,
        Layer,
        Layer,
        Layer,
        FusedLinear,
    ]
    lines = nn.Sequential(nn.Linear(12, 4), nn.Flatten(), nn.Linear(48, 3))
    layers = make_fused_layers(trace(lines), 2, CPU, "float32", torch.zeros(2, 1, 12, 12))
    assert [type(layer) for layer in layers] == [Dense, Layer, FusedLinear]


@pytest.mark.parametrize(
    ("module", "known"),
    [
        (nn.Conv2d(3, 8, 5), True),
        (nn.Conv2d(3, 8, (5, 3), padding=2, bias=False), True),
        (nn.Conv2d(3, 8, 5, stride=2), False),
        (nn.Conv2d(3, 8, 5, dilation=2), False),
        (nn.Conv2d(4, 8, 5, groups=2), False),
        (nn.Conv2d(3, 8, 5, padding=(1, 2)), False),
        (nn.Conv2d(129, 8, 1), False),
        (nn.Conv2d(3, 8, 5).double(), False),
        (nn.Linear(3, 8), False),
    ],
)
def test_which_convolutions_the_kernels_know(module, known):
    assert has_kernel(module) == known


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("fused", [False, True])
def test_weights_come_out_as_they_went_in_whatever_order_they_are_kept_in(fused, precision):
    module = paper()
    example = torch.zeros(2, 1, 12, 12)
    chain = trace(module)
    layers = make_fused_layers(chain, 3, CPU, precision, example) if fused else make_layers(chain, 3, CPU)
    network = LayeredNetwork(module, layers, feduhb.Local())
    start = torch.randn(flatten(module).shape, generator=torch.Generator().manual_seed(0))
    network.begin(start)
    assert torch.equal(network.end(), start.expand(3, -1))


def test_filters_are_kept_taps_before_channels_and_turned_for_the_way_back():
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 3))
    layers = make_fused_layers(trace(module), 1, CPU, "float32", torch.zeros(1, 1, 2, 2))
    network = LayeredNetwork(module, layers, feduhb.Local())
    network.begin(flatten(module))
    second = layers[1]
    assert isinstance(second, FusedConvolution)
    assert second._turned is not None
    w = split(flatten(module), module)[2]
    for out, into, y, x in [(0, 0, 0, 0), (2, 1, 0, 1), (1, 1, 1, 0)]:
        tap = 2 * y + x
        assert second.weights[0][0, out, tap * 2 + into] == w[out, into, y, x]
        assert second._turned[0, tap, into, out] == w[out, into, y, x]


def test_a_step_on_paper():
    """w <- w - lr (g + l2 w) = 2 - 0.5 (1 + 0.1 · 2) = 1.4, and nothing for a client that is off."""
    w = torch.tensor([[2.0], [2.0]])
    Descent(0.5, 0.1, torch.tensor([1.0, 0.0]))(w, torch.tensor([[1.0], [0.0]]))
    assert w.tolist() == [[pytest.approx(1.4)], [2.0]]


def absolute(outputs, targets):
    return (outputs.sum(-1) - targets).abs().mean()


@pytest.mark.parametrize("loss", [functional.cross_entropy, absolute])
def test_the_gradient_of_a_stack_is_the_gradient_of_its_weighted_losses(loss):
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 4, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 3, (2, 4), generator=draw)
    share = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]], dtype=torch.float64)
    total = loss(outputs[0], targets[0]) + loss(outputs[1, :2], targets[1, :2])
    (expected,) = torch.autograd.grad(total, outputs)
    found = compute_gradient(loss, outputs.detach(), targets, share)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    assert not found[1, 2:].any()


def test_targets_that_are_probabilities_have_a_gradient_too():
    outputs = torch.zeros(1, 1, 2, dtype=torch.float64)
    found = compute_gradient(
        functional.cross_entropy, outputs, torch.tensor([[[0.75, 0.25]]]).double(), torch.ones(1, 1).double()
    )
    assert found.tolist() == [[[pytest.approx(-0.25), pytest.approx(0.25)]]]


def test_a_store_holds_shared_tensors_once_and_finds_every_row():
    x, y = torch.arange(10.0).view(10, 1), torch.arange(10)
    clients = {"a": Examples.of(x, y, torch.tensor([3, 1])), "b": Examples.of(x, y, torch.tensor([7]))}
    assert are_tensors_shared(clients)
    store = ExampleStore(clients, CPU)
    assert store.x is x
    more = {**clients, "c": Examples.of(x[:4] + 100, y[:4])}
    assert not are_tensors_shared(more)
    store = ExampleStore(more, CPU)
    assert len(store.x) == 14
    assert ExampleStore.bytes(more) == 14 * (4 + 8)
    for client, examples in more.items():
        assert torch.equal(store.x[store.rows[client]], examples.all()[0])
        assert torch.equal(store.y[store.rows[client]], examples.all()[1])


def test_a_store_tells_apart_views_that_begin_at_the_same_place():
    x, y = torch.arange(10.0).view(10, 1), torch.arange(10)
    clients = {"short": Examples.of(x[:3], y[:3]), "long": Examples.of(x, y)}
    store = ExampleStore(clients, CPU)
    assert store.x[store.rows["long"]].flatten().tolist() == list(range(10))


def test_a_gradient_has_its_own_memory_because_kernels_write_into_it():
    """The gradient of a sum over outputs is one number seen many times."""
    found = compute_gradient(absolute, torch.ones(2, 4, 3), torch.zeros(2, 4), torch.full((2, 4), 0.25))
    assert found.is_contiguous()


def test_a_trial_finds_idle_parameters_and_counts_outputs_and_classes():
    def clients(x, y):
        return {"a": Examples.of(x, torch.tensor(y))}

    labels, fractions = [0, 1], [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]
    found = run_trial(Idle(), feduhb.Local(), clients(torch.randn(2, 3), labels))
    assert found.idle == {"idle.weight", "idle.bias"}
    assert (found.outputs, found.classes) == (3, 3)
    assert run_trial(Idle(), feduhb.Local(), clients(torch.randn(2, 3), fractions)).classes is None
    own = feduhb.Local(loss=lambda z, y: functional.cross_entropy(z, y))
    assert run_trial(Idle(), own, clients(torch.randn(2, 3), labels)).classes is None
    whole = run_trial(paper(), feduhb.Local(), clients(torch.randn(2, 1, 12, 12), labels))
    assert whole.idle == frozenset()
