"""A loss that could not train on the targets is refused before anything trains, with the way out."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import feduhb
from data.wording import refused
from feduhb.core.loss import check_targets, is_defined
from feduhb.data.federation import Federation
from feduhb.errors import ModelError

DRAW = torch.Generator().manual_seed(0)
X, NUMBERS = torch.randn(20, 3, generator=DRAW), torch.randn(20, generator=DRAW)
LABELS = torch.arange(20) % 3


def check(y: Tensor, loss: Any, *, outputs: int = 1, model: nn.Module | None = None) -> None:
    """Draw and check the model of a federation with these targets."""
    Federation({"a": (X, y)}, (X, y), model or nn.Linear(3, outputs), loss=loss).fresh_model()


class Zeros(nn.Linear):
    """A layer that begins at zero, so that all outputs are equal."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


ENTROPIES = [F.cross_entropy, nn.CrossEntropyLoss(), functools.partial(F.cross_entropy, label_smoothing=0.1)]


@pytest.mark.parametrize("loss", ENTROPIES, ids=["function", "module", "partial"])
@pytest.mark.parametrize("y", [NUMBERS, NUMBERS.abs(), NUMBERS[:, None], NUMBERS.abs()[:, None]])
def test_numbers_are_not_the_targets_of_cross_entropy(loss, y):
    shape = "[n]" if y.dim() == 1 else "[n, 1]"
    with refused(
        ModelError,
        f"the loss is cross-entropy, but the targets are numbers (float32 {shape}) and not classes; for regression give "
        "loss=torch.nn.functional.mse_loss, for classes give whole numbers: y.long()",
    ):
        check(y, loss)


def test_several_numbers_are_not_probabilities_if_one_is_negative():
    with refused(ModelError, "the targets are numbers (float32 [n, 3]) and not classes"):
        check(X, F.cross_entropy, outputs=3)


def test_several_numbers_are_not_probabilities_unless_they_add_up_to_one():
    y = torch.rand(6, 2) + 1
    with pytest.raises(ModelError, match="targets are numbers"):
        check_targets(nn.functional.cross_entropy, y)
    check_targets(nn.functional.cross_entropy, y / y.sum(dim=1, keepdim=True))


def test_without_a_loss_regression_trains_nothing_and_is_refused():
    pair = X, NUMBERS.abs()[:, None]
    with refused(ModelError, "for regression give loss=torch.nn.functional.mse_loss"):
        feduhb.train(Federation({"a": pair}, pair, nn.Linear(3, 1)), 1, show=None)


@pytest.mark.parametrize("loss", ENTROPIES, ids=["function", "module", "partial"])
def test_classes_and_probabilities_are_the_targets_of_cross_entropy(loss):
    check(LABELS, loss, outputs=3)
    check(F.one_hot(LABELS, 3).float(), loss, outputs=3)
    check(torch.softmax(X, dim=1), loss, outputs=3)
    check(LABELS, functools.partial(F.cross_entropy, weight=torch.tensor([1.0, 5.0, 9.0])), outputs=3)
    check(torch.where(LABELS == 0, -100, LABELS), loss, outputs=3)


def spread(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).square().mean()


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, nn.SmoothL1Loss(), spread])
@pytest.mark.parametrize("model", [nn.Linear(3, 1), Zeros(3, 1)], ids=["drawn", "zeros"])
def test_outputs_are_not_compared_with_the_targets_of_others(loss, model):
    with refused(
        ModelError,
        "the model's outputs are [16, 1] and the targets [16], so the loss would compare every output with every target; "
        "make their shapes equal, such as y.unsqueeze(1) for outputs [n, 1]",
    ):
        check(NUMBERS, loss, model=model)


def test_also_the_other_way_round():
    class Scores(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).squeeze(1)

    check(NUMBERS, F.mse_loss, model=Scores(3, 1))
    with refused(ModelError, "the model's outputs are [16] and the targets [16, 1]"):
        check(NUMBERS[:, None], F.mse_loss, model=Scores(3, 1))


ALIGNING = {
    "equal shapes": (NUMBERS[:, None], F.mse_loss),
    "squeeze(1)": (NUMBERS, lambda z, y: F.mse_loss(z.squeeze(1), y)),
    "squeeze()": (NUMBERS, lambda z, y: F.mse_loss(z.squeeze(), y)),
    "column": (NUMBERS, lambda z, y: F.mse_loss(z[:, 0], y)),
    "view": (NUMBERS, lambda z, y: F.mse_loss(z.view(-1), y.view(-1))),
    "labels": (LABELS > 0, lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], y.float())),
    "probabilities": ((LABELS > 0).float(), lambda z, y: F.binary_cross_entropy(z.sigmoid()[:, 0], y)),
    "weighted": (NUMBERS, lambda z, y: ((z[:, 0] - y).square() * y.abs()).sum() / y.abs().sum()),
}


@pytest.mark.parametrize("name", ALIGNING)
def test_a_loss_that_aligns_them_itself_is_fine(name):
    check(*ALIGNING[name])


SUMS = {
    "labels": (LABELS, functools.partial(F.cross_entropy, reduction="sum"), 3),
    "numbers": (NUMBERS[:, None], nn.MSELoss(reduction="sum"), 1),
    "over a fixed size": (NUMBERS[:, None], lambda z, y: (z - y).square().sum() / 64, 1),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_the_batch_is_refused(name):
    y, loss, outputs = SUMS[name]
    with refused(
        ModelError,
        "the loss of every example counted twice is not the same but 2 times as large; use its mean over the batch, "
        "such as reduction='mean'",
    ):
        check(y, loss, outputs=outputs)


FLAT = {
    "one class": lambda z, y: F.cross_entropy(z, torch.zeros_like(y[:, 0], dtype=torch.long)),
    "one probability": lambda z, y: F.cross_entropy(z, torch.ones_like(y)),
    "detached": lambda z, y: F.mse_loss(z.detach(), y),
    "accuracy": lambda z, y: ((z > 0) == (y > 0)).float().mean(),
}


@pytest.mark.parametrize("name", FLAT)
def test_a_loss_that_no_output_changes_trains_nothing(name):
    with refused(
        ModelError,
        "the loss does not change with the model's outputs (float32 [n, 1]), so nothing would be trained; give one that "
        "fits the targets, such as loss=torch.nn.functional.mse_loss for numbers",
    ):
        check(NUMBERS[:, None], FLAT[name])


def test_a_loss_that_is_zero_for_some_outputs_is_fine():
    check(LABELS, F.multi_margin_loss, outputs=3)
    check(torch.zeros(20, 1), lambda z, y: F.relu((z - y).abs() - 0.5).mean(), model=Zeros(3, 1))


def test_a_loss_that_reads_only_what_the_model_returns():
    """Random outputs are not probabilities; the loss refuses them, and is tried on the model's own."""
    model = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid())
    check((LABELS > 0).float()[:, None], F.binary_cross_entropy, model=model)
    with refused(ModelError, "2 times as large"):
        check((LABELS > 0).float()[:, None], nn.BCELoss(reduction="sum"), model=model)


def test_a_model_that_returns_several_tensors_is_refused():
    class Both(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return super().forward(input), input

    with refused(ModelError, "the model returns a tuple; return one tensor, such as its logits"):
        check(NUMBERS[:, None], lambda both, y: F.mse_loss(both[0], y) + 0 * both[1].sum(), model=Both(3, 1))


def test_the_trials_leave_the_random_state_alone():
    model = nn.Linear(3, 1)
    before = torch.default_generator.get_state()
    check(NUMBERS[:, None], F.mse_loss, model=model)
    assert torch.equal(before, torch.default_generator.get_state())


def test_the_targets_of_clients_are_tried_too():
    """Clients may hold probabilities while the test set holds classes, but not numbers."""
    probabilities = torch.softmax(X, dim=1)
    Federation({"a": (X, LABELS), "b": (X, probabilities)}, (X, LABELS), nn.Linear(3, 3)).fresh_model()
    with refused(
        ModelError,
        "client b: the loss is cross-entropy, but the targets are numbers (float32 [n]) and not classes",
    ):
        Federation({"a": (X, LABELS), "b": (X, NUMBERS)}, (X, LABELS), nn.Linear(3, 3)).fresh_model()
    squares = Federation({"a": (X, NUMBERS)}, (X, NUMBERS[:, None]), nn.Linear(3, 1), loss=F.mse_loss)
    with refused(ModelError, "the model's outputs are [16, 1] and the targets [16]"):
        squares.fresh_model()


def average_marked(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss of the targets that are not NaN."""
    return (outputs - y)[y.isfinite()].square().mean()


@pytest.mark.parametrize(
    ("loss", "y", "wanted"),
    [
        (F.cross_entropy, torch.tensor([-100, 1]), True),
        (F.cross_entropy, torch.tensor([-100, -100]), False),
        (nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0])), torch.tensor([0, 0]), False),
        (F.mse_loss, torch.zeros(2, 2), True),
        (F.binary_cross_entropy, torch.ones(2, 2), True),  # of probabilities
        (average_marked, torch.tensor([[0.0, torch.nan]] * 2), True),
        (average_marked, torch.full((2, 2), torch.nan), False),
    ],
)
def test_a_loss_is_not_defined_where_it_counts_no_target(loss, y, wanted):
    assert is_defined(loss, torch.full((2, 2), torch.nan), y) is wanted
