"""The attack that compares two models, where changes and slopes can be written down."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from feduhb.audit.attacks.before_after import (
    CHANGES,
    compare_answers,
    compare_weights,
    explain_pair,
    score_changes,
)
from feduhb.audit.attacks.membership import Candidates, compute_confidences, score_losses
from feduhb.audit.result import Attack, AucDifference, Interval, Kept, Roc
from feduhb.audit.statistics import compute_roc
from feduhb.core.flat import flatten, with_params
from feduhb.data.federation import Examples
from feduhb.errors import ModelError
from toys import Table, quick


def draw_models(seed: int, model: nn.Module) -> tuple[nn.Module, nn.Module, torch.Generator]:
    """Return two models with random weights in double precision."""
    rng = torch.Generator().manual_seed(seed)
    count = len(flatten(model))
    first, second = (
        with_params(model.double(), torch.randn(count, generator=rng).double()) for _ in range(2)
    )
    return first, second, rng


def slope_of_softmax(at: nn.Linear, w: nn.Linear, v: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
    """dφ = dz_y - Σ_{k ≠ y} q_k dz_k,  dz = (W - V) x + (b - c),  q the softmax without the own label."""
    dz = x @ (w.weight - v.weight).T + (w.bias - v.bias)
    own = y[:, None]
    q = at(x).scatter(1, own, -torch.inf).softmax(dim=1)
    return dz.gather(1, own).squeeze(1) - (q * dz).sum(dim=1)


@pytest.mark.parametrize(("seed", "classes", "count"), [(0, 2, 1), (1, 3, 9), (2, 5, 300)])
def test_the_slopes_of_softmax_regression(seed, classes, count):
    v, w, rng = draw_models(seed, nn.Linear(3, classes))
    assert isinstance(v, nn.Linear)
    assert isinstance(w, nn.Linear)
    x = torch.randn(count, 3, generator=rng).double()
    y = torch.randint(classes, (count,), generator=rng)
    with torch.no_grad():
        wanted = (slope_of_softmax(v, w, v, x, y) + slope_of_softmax(w, w, v, x, y)) / 2
    torch.testing.assert_close(compare_weights(v, w, Examples.of(x, y), F.cross_entropy), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", ["images", "sequences"])
def test_a_gpu_computes_the_same_slopes_in_full_precision(kind):
    """A convolution, which cuDNN may compute in TF32, and an LSTM, which cuDNN cannot differentiate twice."""

    class Last(nn.Module):
        def forward(self, answer: tuple[Tensor, Any]) -> Tensor:
            return answer[0][:, -1]

    images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    sequences = nn.Sequential(nn.LSTM(6, 5, batch_first=True), Last(), nn.Linear(5, 3))
    model, shape = (images, (300, 3, 8, 8)) if kind == "images" else (sequences, (300, 7, 6))
    v, w, rng = draw_models(7, model)
    some = Examples.of(torch.randn(shape, generator=rng), torch.randint(3, (300,), generator=rng))
    wanted = compare_weights(v.float(), w.float(), some, F.cross_entropy)
    found = compare_weights(v.cuda(), w.cuda(), some, F.cross_entropy)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_slopes_are_the_gradients_of_single_examples_along_the_difference():
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.GroupNorm(3, 12),
            nn.Linear(12, 4),
        )

    v, w, rng = draw_models(1, make())
    some = Examples.of(torch.randn(5, 1, 6, 6, generator=rng).double(), torch.tensor([0, 1, 2, 3, 0]))
    d, wanted = flatten(w) - flatten(v), torch.zeros(5).double()
    for model in (v, w):
        for i in range(5):
            z = model(some.all()[0][i : i + 1])
            y = some.targets[i : i + 1, None]
            confidence = z.gather(1, y).squeeze(1) - z.scatter(1, y, -torch.inf).logsumexp(dim=1)
            parts = torch.autograd.grad(confidence.sum(), list(model.parameters()))
            wanted[i] += torch.cat([part.flatten() for part in parts]) @ d / 2
    torch.testing.assert_close(compare_weights(v, w, some, F.cross_entropy), wanted)


@quick
@given(st.integers(0, 1000))
def test_for_a_quadratic_loss_both_slopes_give_the_change_itself(seed):
    """-(w'x - y)² is quadratic in w, and the trapezoid rule is exact for a linear derivative. Targets are not labels."""
    v, w, rng = draw_models(seed, nn.Linear(4, 1))
    some = Examples.of(torch.randn(6, 4, generator=rng).double(), torch.randn(6, 1, generator=rng).double())
    change = compare_answers(v, w, some, F.mse_loss)
    torch.testing.assert_close(compare_weights(v, w, some, F.mse_loss), change)


@pytest.mark.parametrize("change", CHANGES.values())
def test_the_way_back_is_the_negative(change):
    v, w, rng = draw_models(2, nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3)))
    some = Examples.of(torch.randn(7, 3, generator=rng).double(), torch.arange(7) % 3)
    there, back = change(v, w, some, F.cross_entropy), change(w, v, some, F.cross_entropy)
    torch.testing.assert_close(there, -back)
    assert float(there.abs().min()) > 0
    assert not change(v, v, some, F.cross_entropy).any()
    assert there.dtype == torch.float64


@pytest.mark.parametrize("change", CHANGES.values())
def test_no_examples_no_changes(change):
    v, w, _ = draw_models(2, nn.Linear(3, 3))
    none = Examples.of(torch.zeros(3, 3).double(), torch.zeros(3).long(), torch.zeros(0).long())
    assert change(v, w, none, F.cross_entropy).shape == (0,)


def test_a_parameter_without_a_part_in_the_outputs():
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.spare = nn.Parameter(torch.ones(2))

    v, w, rng = draw_models(3, Spare())
    some = Examples.of(torch.randn(4, 3, generator=rng).double(), torch.arange(4) % 2)
    torch.testing.assert_close(  # two classes: φ is linear in the weights
        compare_weights(v, w, some, F.cross_entropy), compare_answers(v, w, some, F.cross_entropy)
    )


def test_a_model_that_cannot_be_differentiated_twice_is_explained():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return 2 * ctx.saved_tensors[0] * grad_outputs[0]

    class Squares(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return Once.apply(super().forward(input))

    v, w, rng = draw_models(4, Squares(3, 2))
    some = Examples.of(torch.randn(4, 3, generator=rng).double(), torch.arange(4) % 2)
    with pytest.raises(
        ModelError, match="The weights were not compared: torch cannot differentiate this model twice"
    ):
        compare_weights(v, w, some, F.cross_entropy)
    assert compare_answers(v, w, some, F.cross_entropy).shape == (4,)


class Breaks(nn.Linear):
    """A layer that does not compute at all."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: ARG002
        raise RuntimeError("shapes do not fit")


def test_an_error_that_is_not_about_derivatives_is_not_explained_away():
    v, w, rng = draw_models(4, Breaks(3, 2))
    some = Examples.of(torch.randn(4, 3, generator=rng).double(), torch.arange(4) % 2)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        compare_weights(v, w, some, F.cross_entropy)


def draw_tables(*knows: float, count: int = 400) -> tuple[list[Table], Candidates]:
    """Return models that find the same examples hard, each with noise of its own, and know members by so much better.

    Even inputs are members. Label 0 is right for all.
    """
    rng = torch.Generator().manual_seed(5)
    hard = 3 * torch.randn(count, generator=rng)
    is_member = torch.arange(count) % 2 == 0

    def make(known: float) -> Table:
        sure = -hard + 0.3 * torch.randn(count, generator=rng) + known * is_member
        return Table(torch.stack([sure, torch.zeros(count)], dim=1))

    everything = Examples.of(torch.arange(float(count))[:, None], torch.zeros(count).long())
    sides = ({"a": everything.where(mask)} for mask in (is_member, ~is_member))
    return [make(known) for known in knows], Candidates(*sides)


def test_what_was_learned_is_found_where_the_loss_hides_it():
    """Examples differ by a standard deviation of 3, and members are known by 1 better: AUC 0.59. The change shows it: 0.99."""
    (retrain, knows), candidates = draw_tables(0.0, 1.0)
    assert compute_roc(score_losses(knows, candidates, F.cross_entropy)).auc < 0.65
    for change in CHANGES.values():
        found = score_changes(retrain, knows, candidates, change, F.cross_entropy)
        assert compute_roc(found).auc > 0.95
        back = score_changes(knows, retrain, candidates, change, F.cross_entropy)
        assert compute_roc(back).auc < 0.05


def test_two_models_that_never_saw_the_examples_say_nothing():
    (retrain, other), candidates = draw_tables(0.0, 0.0)
    for change in CHANGES.values():
        found = compute_roc(score_changes(retrain, other, candidates, change, F.cross_entropy))
        assert found.interval.low < 0.5 < found.interval.high


@quick
@given(st.floats(0.1, 10), st.floats(-5, 5))
def test_scores_do_not_depend_on_difficulty(scale, shift):
    """Scores have no correlation with the first model's confidence; a second model that repeats it, louder, changes nothing."""
    (before, after), candidates = draw_tables(0.0, 0.5, count=40)
    [found] = score_changes(before, after, candidates, compare_answers, F.cross_entropy)
    known = torch.cat(
        [
            compute_confidences(before, side["a"], F.cross_entropy)
            for side in (candidates.members, candidates.others)
        ]
    )
    scores = torch.cat([found.members, found.others])
    assert abs(float(torch.corrcoef(torch.stack([scores, known]))[0, 1])) < 1e-6
    louder = Table(before.rows.detach() * scale + torch.tensor([shift, 0.0]))
    [same] = score_changes(before, louder, candidates, compare_answers, F.cross_entropy)
    both = torch.cat([same.members, same.others])
    assert float(both.max() - both.min()) < 1e-4 * (1 + scale)


def test_a_model_without_differences_between_examples():
    flat, candidates = Table(torch.zeros(400, 2)), draw_tables(0.0)[1]
    [knows], _ = draw_tables(1.0)
    for change in CHANGES.values():
        assert compute_roc(score_changes(flat, knows, candidates, change, F.cross_entropy)).auc > 0.55


def test_no_gradient_is_kept_and_nothing_is_drawn():
    state = torch.default_generator.get_state()
    (before, after), candidates = draw_tables(0.0, 0.5, count=10)
    for change in CHANGES.values():
        [found] = score_changes(before, after, candidates, change, F.cross_entropy)
        assert not found.members.requires_grad
    assert before.rows.grad is None
    assert after.rows.grad is None
    assert torch.equal(state, torch.default_generator.get_state())


def make_attack(unlearned: float, nothing: float, *, name: str = "change of confidence") -> Attack:
    def roc(auc: float) -> Roc:
        wide, some = Interval(auc - 0.05, auc + 0.05), Interval(0.0, 0.1)
        return Roc(auc, 0.02, wide, wide, 0.01, some, 0.0, some, 100, 100)

    apart = AucDifference(0.0, 0.02, Interval(-0.05, 0.05), Interval(-0.03, 0.03))
    kept = Kept({"unlearned": roc(unlearned), "original": roc(nothing), "retrain": roc(0.8)}, apart)
    models = {name: roc(0.5) for name in ("unlearned", "original", "retrain")}
    return Attack(name, "canaries", "inconclusive", "", 0.05, 0.5, models, kept=kept)


def test_the_attack_that_shows_best_why_the_original_must_go():
    weak, strong = make_attack(0.7, 0.5), make_attack(0.9, 0.5, name="change of weights")
    [says] = explain_pair([weak, strong])
    assert "change of weights on canaries, AUC 0.900; the original and Retrain, 0.800" in says
    assert "feduhb retire" in says


@pytest.mark.parametrize(("unlearned", "nothing"), [(0.52, 0.5), (0.7, 0.68)])
def test_nothing_is_said_where_no_more_is_revealed_than_by_chance_or_without_a_removal(unlearned, nothing):
    assert explain_pair([make_attack(unlearned, nothing)]) == []
