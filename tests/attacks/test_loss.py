"""The loss attack on models whose losses can be written down."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from feduhb.audit.attacks.membership import Candidates, compute_confidences, compute_losses, score_losses
from feduhb.audit.measures import compute_accuracy, compute_chance
from feduhb.audit.statistics import compute_roc
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import as_request
from toys import Table, quick

LN3 = math.log(3)


TABLE = Table(torch.tensor([[LN3, 0.0], [0.0, LN3], [0.0, 0.0]]))  # 3 : 1, 1 : 3, undecided


def numbered(count: int, y: Tensor) -> Examples:
    return Examples.of(torch.arange(float(count))[:, None], y)


def mean_cross_entropy(given: Tensor, y: Tensor) -> Tensor:
    """The same loss under another name, so that the fast path does not know it."""
    return F.cross_entropy(given, y)


def test_losses_by_hand():
    found = compute_losses(TABLE, numbered(3, torch.tensor([0, 0, 1])), F.cross_entropy)
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([math.log(4 / 3), math.log(4), math.log(2)], rel=1e-6)


@quick
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(2, 5))
def test_the_fast_path_is_the_slow_one(seed, count, classes):
    rng = torch.Generator().manual_seed(seed)
    model = Table(3 * torch.randn(count, classes, generator=rng))
    some = numbered(count, torch.randint(classes, (count,), generator=rng))
    fast, slow = (compute_losses(model, some, loss) for loss in (F.cross_entropy, mean_cross_entropy))
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)


def test_targets_may_be_probabilities():
    shares = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    found = compute_losses(TABLE, numbered(3, shares), F.cross_entropy)
    assert found.tolist() == pytest.approx(
        [(math.log(4 / 3) + math.log(4)) / 2, math.log(4), math.log(2)], rel=1e-6
    )


def test_a_custom_loss():
    model = Table(torch.tensor([[1.0], [2.0], [3.0]]))
    found = compute_losses(model, numbered(3, torch.tensor([[1.0], [4.0], [0.0]])), F.mse_loss)
    assert found.tolist() == [0.0, 4.0, 9.0]
    assert found.dtype == torch.float64


def test_a_loss_with_weights_in_single_precision():
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
    found = compute_losses(TABLE, numbered(3, torch.tensor([0, 0, 1])), weighted)
    assert found.tolist() == pytest.approx([math.log(4 / 3), math.log(4), math.log(2)], rel=1e-6)


def test_only_the_rows_of_the_list_in_their_order():
    x, y = torch.tensor([[0.0], [0.0], [2.0]]), torch.tensor([0, 1, 1])
    found = compute_losses(TABLE, Examples.of(x, y, torch.tensor([2, 0])), F.cross_entropy)
    assert found.tolist() == pytest.approx([math.log(2), math.log(4 / 3)], rel=1e-6)


def test_no_examples_no_losses():
    none = Examples.of(torch.zeros(3, 1), torch.zeros(3).long(), torch.zeros(0).long())
    for found in (
        compute_losses(TABLE, none, F.cross_entropy),
        compute_confidences(TABLE, none, F.cross_entropy),
    ):
        assert found.shape == (0,)
        assert found.dtype == torch.float64


def test_confidences_by_hand():
    """Odds are 3 : 1, 1 : 3 and 1 : 1; over three classes of e, 1, 1 they are e : 2."""
    found = compute_confidences(TABLE, numbered(3, torch.tensor([0, 0, 1])), F.cross_entropy)
    assert found.tolist() == pytest.approx([LN3, -LN3, 0.0], abs=1e-6)
    three = Table(torch.tensor([[1.0, 0.0, 0.0]]))
    assert compute_confidences(
        three, numbered(1, torch.tensor([0])), F.cross_entropy
    ).item() == pytest.approx(1 - math.log(2))


@quick
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=6), st.data())
def test_confidence_is_the_log_of_the_odds(outputs, data):
    label = data.draw(st.integers(0, len(outputs) - 1))
    model = Table(torch.tensor([outputs], dtype=torch.float64))
    found = compute_confidences(model, numbered(1, torch.tensor([label])), F.cross_entropy).item()
    p = torch.tensor(outputs, dtype=torch.float64).softmax(0)
    rest = float(p.sum() - p[label])
    if rest > 1e-6:
        assert found == pytest.approx(math.log(float(p[label]) / rest), rel=1e-6, abs=1e-6)


def test_confidence_keeps_growing_where_the_probability_is_one():
    sure = Table(torch.tensor([[50.0, 0.0], [500.0, 0.0], [-500.0, 0.0]]))
    found = compute_confidences(sure, numbered(3, torch.tensor([0, 0, 0])), F.cross_entropy)
    assert found.tolist() == [50.0, 500.0, -500.0]


@pytest.mark.parametrize("y", [torch.tensor([[1.0], [4.0]]), torch.tensor([[1], [4]])])
def test_without_labels_confidence_is_minus_the_loss(y):
    model, some = Table(torch.tensor([[1.0], [2.0]])), numbered(2, y)
    assert compute_confidences(model, some, F.mse_loss).tolist() == [0.0, -4.0]


def test_one_output_has_no_odds():
    def squared(given: Tensor, y: Tensor) -> Tensor:
        return (given.squeeze(1) - y).square().mean()

    some = numbered(2, torch.tensor([1, 4]))
    assert compute_confidences(Table(torch.tensor([[1.0], [2.0]])), some, squared).tolist() == [0.0, -4.0]


def test_scores_are_minus_losses_client_by_client():
    right, wrong = numbered(1, torch.tensor([0])), numbered(1, torch.tensor([1]))
    found = score_losses(
        TABLE, Candidates({"a": right, "b": wrong}, {"b": right, "a": wrong}), F.cross_entropy
    )
    assert [(s.members.item(), s.others.item()) for s in found] == [
        pytest.approx((-math.log(4 / 3), -math.log(4)), rel=1e-6),
        pytest.approx((-math.log(4), -math.log(4 / 3)), rel=1e-6),
    ]
    assert compute_roc(found[:1]).auc == 1.0
    assert compute_roc(found).auc == 0.5


def test_clients_without_either_side_are_left_out():
    some, none = (
        numbered(2, torch.tensor([0, 0])),
        numbered(2, torch.tensor([0, 0])).where(torch.zeros(2).bool()),
    )
    members = {"a": some, "b": some, "c": none, "d": some}
    found = score_losses(
        TABLE, Candidates(members, {"a": some, "b": none, "c": some, "e": some}), F.cross_entropy
    )
    assert len(found) == 1


def memorised(labels: Tensor) -> tuple[Table, Candidates]:
    """A model that knows the labels of even inputs and guesses at odd ones; even inputs are members."""
    rows = 0.1 * torch.randn(len(labels), 10, generator=torch.Generator().manual_seed(0))
    even = torch.arange(len(labels)) % 2 == 0
    rows[even] += 4 * F.one_hot(labels[even], 10)
    everything = numbered(len(labels), labels)
    return Table(rows), Candidates({"a": everything.where(even)}, {"a": everything.where(~even)})


def test_a_model_that_memorised_is_caught():
    labels = torch.randint(10, (400,), generator=torch.Generator().manual_seed(1))
    assert compute_roc(score_losses(*memorised(labels), F.cross_entropy)).auc > 0.99


def test_a_model_that_never_saw_them_is_not():
    labels = torch.randint(10, (400,), generator=torch.Generator().manual_seed(1))
    model, candidates = memorised(labels)
    fresh = Table(0.1 * torch.randn(400, 10, generator=torch.Generator().manual_seed(2)))
    found = compute_roc(score_losses(fresh, candidates, F.cross_entropy))
    assert found.interval.low < 0.5 < found.interval.high
    assert compute_roc(score_losses(model, candidates, F.cross_entropy)).interval.low > 0.9


def test_no_gradient_is_kept_and_nothing_is_drawn():
    before = torch.default_generator.get_state()
    some = numbered(3, torch.tensor([0, 0, 1]))
    for loss in (F.cross_entropy, mean_cross_entropy):
        assert not compute_losses(TABLE, some, loss).requires_grad
    assert not compute_confidences(TABLE, some, F.cross_entropy).requires_grad
    assert torch.equal(before, torch.default_generator.get_state())


def test_labels_that_the_loss_leaves_out_are_neither_attacked_nor_counted():
    y = torch.tensor([0, -100, 1])
    data = {
        client: (torch.arange(3.0)[:, None], labels)
        for client, labels in {"a": y, "b": y.clamp(max=-100)}.items()
    }
    federation = Federation(data, data["a"], TABLE, held_out=data, start="given")
    found = Candidates.of(federation, as_request(["a", "b"]))
    assert (found.sizes, found.members["a"].keys.tolist()) == ([(2, 2)], [0, 2])
    (scores,) = score_losses(TABLE, found, F.cross_entropy)
    assert scores.members.tolist() == pytest.approx([-math.log(4 / 3), -math.log(2)], rel=1e-6)
    assert compute_accuracy(TABLE, [*federation.clients.values()], federation) == 0.5
    assert compute_chance(federation) == 0.5
