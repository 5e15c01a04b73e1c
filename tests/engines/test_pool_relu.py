"""The pool moves a ReLU behind the pooling: another order, the same bits."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import feduhb
from feduhb.core.flat import draw_model, flatten
from feduhb.engines.pool import postpone_relu
from feduhb.models import make_model


def kinds(model: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in model.children()]


def pass_through(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return a model's outputs for a batch, and the gradients of weighted outputs by input and parameters."""
    x = x.clone().requires_grad_()
    y = model(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *model.parameters()])]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padded=st.booleans(),
    ceil=st.booleans(),
    levels=st.integers(1, 4),
    last=st.booleans(),
)
def test_outputs_and_gradients_keep_their_bits(seed, kernel, stride, padded, ceil, levels, last):
    """Windows that overlap or leave gaps; few levels make many ties, at zero and above, and windows without a positive number."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(-levels - 1, levels + 1, (2, 3, 7, 7), generator=draw).float() / 4
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    pool = nn.MaxPool2d(kernel, stride, padding=kernel // 2 if padded else 0, ceil_mode=ceil)
    plain = nn.Sequential(nn.ReLU(), pool, nn.Flatten())
    changed = postpone_relu(plain)
    assert kinds(changed) == ["MaxPool2d", "ReLU", "Flatten"]
    for before, after in zip(pass_through(plain, x), pass_through(changed, x), strict=True):
        assert torch.equal(before, after)


def test_numbers_that_are_none_pass_either_way():
    x = torch.tensor([[[[-1.0, float("nan")], [-2.0, -3.0]]]])
    plain = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    assert plain(x).isnan().all()
    assert postpone_relu(plain)(x).isnan().all()


def test_the_papers_cnn_pools_first_and_keeps_its_bits_and_its_parameters_order():
    plain = draw_model(make_model("cnn", (1, 28, 28), 10), seed=0)
    changed = postpone_relu(copy.deepcopy(plain))
    first = ["Conv2d", "MaxPool2d", "ReLU"]
    assert kinds(changed) == [*first, *first, "Flatten", "Linear", "ReLU", "Linear"]
    assert torch.equal(flatten(plain), flatten(changed))
    x = torch.rand(8, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    for before, after in zip(pass_through(plain, x), pass_through(changed, x), strict=True):
        assert torch.equal(before, after)


def test_a_federation_trained_in_either_order_comes_to_the_same_bits(monkeypatch):
    federation = feduhb.load("mnist-5k", clients=2, per_client=70, held_out=0.0)
    work = feduhb.Work(flatten(federation.fresh_model()), 1)
    seen: list[list[str]] = []

    def answers() -> torch.Tensor:
        return torch.cat([u.values for u in feduhb.Pool(federation).train(work, ("c00", "c01"), 0)])

    def watched(model: nn.Module) -> nn.Module:
        changed = postpone_relu(model)
        seen.append(kinds(changed))
        return changed

    monkeypatch.setattr("feduhb.engines.pool.postpone_relu", watched)
    fast = answers()
    assert seen
    assert all(found[1] == "MaxPool2d" for found in seen)
    monkeypatch.setattr("feduhb.engines.pool.postpone_relu", lambda model: model)
    assert torch.equal(fast, answers())


class Branching(nn.Sequential):
    """A chain by name alone: what comes out of the ReLU is used twice."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        x = self[0](input)
        return self[1](x).sum() + x.sum()


def make_hooked(kind: str) -> nn.Module:
    model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    getattr(model[0], f"register_{kind}")(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "model",
    [
        Branching(nn.ReLU(), nn.MaxPool2d(2)),
        make_hooked("forward_hook"),
        make_hooked("forward_pre_hook"),
        make_hooked("full_backward_hook"),
        make_hooked("full_backward_pre_hook"),
    ],
    ids=["own forward", "forward hook", "forward pre-hook", "backward hook", "backward pre-hook"],
)
def test_what_may_look_between_is_left_alone(model):
    assert postpone_relu(model) is model


@pytest.mark.parametrize(
    "layers",
    [
        (nn.LeakyReLU(), nn.MaxPool2d(2)),
        (nn.ReLU(), nn.AvgPool2d(2)),
        (nn.ReLU(), nn.MaxPool2d(2, return_indices=True)),
        (nn.MaxPool2d(2), nn.ReLU()),
        (nn.ReLU(), nn.Conv2d(1, 1, 1), nn.MaxPool2d(2)),
        (nn.Sequential(nn.ReLU()), nn.MaxPool2d(2)),
    ],
    ids=lambda layers: "-".join(type(layer).__name__ for layer in layers),
)
def test_other_pairs_stay_in_their_order(layers):
    assert list(postpone_relu(nn.Sequential(*layers)).children()) == list(layers)


def test_a_relu_passes_every_pooling_that_follows():
    changed = postpone_relu(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(2), nn.Flatten()))
    assert kinds(changed) == ["MaxPool2d", "MaxPool2d", "ReLU", "Flatten"]


def test_a_chain_of_nothing_stays_one():
    assert kinds(postpone_relu(nn.Sequential())) == []
