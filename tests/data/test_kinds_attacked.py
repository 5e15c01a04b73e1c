"""What a model, a loss or an engine could remember between steps, clients and runs, and must not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import feduhb
from data.wording import refused
from feduhb.core.modules import list_carried
from feduhb.errors import ModelError

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 3


def federate(model: Any, **how: Any) -> feduhb.Federation:
    clients = {f"c{i}": (X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]) for i in range(3)}
    return feduhb.Federation(clients, (X, Y), model, **how)


def test_a_given_start_is_that_of_the_moment_it_was_given():
    net = nn.Linear(3, 3)
    federation = federate(net, start="given")
    before = copy.deepcopy(net.state_dict())
    trained = feduhb.train(federation, 1, epochs=1, engine="loop", show=None)
    net.load_state_dict(trained.model().state_dict())
    for seen in (
        federation,
        federation.reseed(5),
        federation.replace(loss="cross_entropy"),
        copy.copy(federation),
    ):
        assert torch.equal(seen.fresh_model().state_dict()["weight"], before["weight"])
    assert federation.replace(seed=1).model is federation.model


class Shifted(nn.Linear):
    """Adds a constant buffer."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.get_buffer("shift")


def test_a_constant_is_that_of_the_moment_it_was_given():
    net = Shifted()
    federation = federate(net)
    net.get_buffer("shift").fill_(9)
    assert federation.fresh_model().get_buffer("shift").tolist() == [1, 1, 1]


class Checkpointed(nn.Module):
    """Computes its inner layers again in the backward pass."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.inner, self.head = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(rate)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.inner, x, use_reentrant=False))


def test_a_checkpointed_layer_may_not_draw():
    with refused(
        ModelError, "inner.2 draws outside of the forward pass of a step, as gradient checkpointing does"
    ):
        federate(Checkpointed(0.5)).fresh_model()
    one, other = (
        feduhb.train(federate(Checkpointed(0.0)), 1, engine=e, show=None).params for e in ("loop", "pool")
    )
    torch.testing.assert_close(one, other)


class Remembering(nn.Linear):
    """Keeps a tensor of the last batch and counts its batches; from the twelfth on it computes something else."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.count = 0

    def forward(self, input: Tensor) -> Tensor:
        self.count += 1
        self.last = super().forward(input)
        return self.last * (2 if self.count > 12 else 1)


def test_what_a_client_leaves_in_a_model_does_not_reach_the_next_one():
    runs = [
        feduhb.train(
            federate(Remembering), 2, epochs=4, batch_size=2, lr=0.1, engine=engine, show=None
        ).params
        for engine in ("loop", "pool", "pool")
    ]
    torch.testing.assert_close(runs[0], runs[1])
    assert torch.equal(runs[1], runs[2])


class Hooked(nn.Linear):
    """Adds noise to gradients."""

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient + torch.randn_like(gradient))
        return output


def test_draws_of_the_backward_pass_are_found():
    with refused(ModelError, "the loss, the augmentation or the backward pass draws random numbers"):
        federate(Hooked(3, 3)).fresh_model()


class Averaging:
    """A loss that remembers."""

    def __init__(self) -> None:
        self.mean = 0.0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        value = functional.cross_entropy(outputs, y)
        self.mean = 0.9 * self.mean + 0.1 * float(value)
        return value * (1 + self.mean)


class Weighted(nn.Module):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.scale * functional.cross_entropy(outputs, y)


def test_losses_that_remember_or_could_learn():
    with refused(
        ModelError, "the loss returns another value for the same outputs, so it keeps a state or draws"
    ):
        federate(nn.Linear(3, 3), loss=Averaging()).fresh_model()
    with refused(
        ModelError, "the loss has parameters of its own, which nobody trains; put them into the model"
    ):
        federate(nn.Linear(3, 3), loss=Weighted()).fresh_model()


class Resting(nn.Sequential):
    """Keeps its normalisation in evaluation mode."""

    def train(self, mode: bool = True) -> Resting:
        super().train(mode)
        self[1].eval()
        return self


def test_a_norm_that_stays_in_evaluation_mode_must_be_frozen():
    def make() -> nn.Module:
        return Resting(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    with refused(
        ModelError, "layer 1 stays in evaluation mode, but its parameters are not frozen; freeze them too"
    ):
        federate(make).fresh_model()
    net = make()
    net[1].requires_grad_(False)  # pyright: ignore[reportIndexIssue]
    assert [name for name, _ in list_carried(federate(net, start="given").fresh_model())][-2:] == [
        "1.running_mean",
        "1.running_var",
    ]


class Counting(nn.Linear):
    """Uses a buffer that has the name of BatchNorm's counter."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("num_batches_tracked", torch.ones(()))


def test_only_counters_of_norms_are_ignored():
    assert [name for name, _ in list_carried(Counting())] == ["num_batches_tracked"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_module_that_cannot_be_copied():
    net = torch.nn.utils.weight_norm(nn.Linear(3, 3))
    net(X)
    with refused(ModelError, "Linear cannot be copied", "torch.nn.utils.parametrizations.weight_norm"):
        federate(net, start="given").fresh_model()
    with refused(ModelError, "Linear cannot be copied", "torch.nn.utils.parametrizations.weight_norm"):
        federate(lambda: torch.nn.utils.weight_norm(nn.Linear(3, 3))).fresh_model()


def test_targets_of_bce_are_numbers():
    with refused(
        ModelError, "the loss is bce_with_logits, but the targets are int64 [n, 3]; give numbers: y.float()"
    ):
        feduhb.Federation(
            {"a": (X, X.long())}, (X, X.long()), nn.Linear(3, 3), loss="bce_with_logits"
        ).fresh_model()
