"""Scores: values counted by hand and compared with scikit-learn, which targets each is for, and what is refused."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn
from torch.nn import functional

from data.wording import refused
from feduhb.core.local import Loss
from feduhb.core.scores import (
    SCORES,
    Score,
    check_scores,
    choose_scores,
    compute_score,
    find_kind,
    find_scores,
    list_built_in,
)
from feduhb.core.seeds import generator
from feduhb.errors import ConfigError

BCE = functional.binary_cross_entropy_with_logits
DRAWN = torch.randn(60, 4, generator=generator(0, "outputs"))
LABELS = torch.randint(0, 4, (60,), generator=generator(0, "labels"))
MANY = (torch.rand(60, 4, generator=generator(0, "many")) > 0.6).float()


def value(name: str, outputs: Tensor, y: Tensor, loss: Loss = functional.cross_entropy) -> float:
    return compute_score(SCORES[name], outputs, y, loss)


def test_classes_against_scikit_learn():
    found = DRAWN.argmax(dim=1)
    assert value("accuracy", DRAWN, LABELS) == pytest.approx(metrics.accuracy_score(LABELS, found))
    assert value("f1", DRAWN, LABELS) == pytest.approx(metrics.f1_score(LABELS, found, average="macro"))
    shares = DRAWN.double().softmax(dim=1)
    expected = metrics.roc_auc_score(LABELS, shares, multi_class="ovr", average="macro")
    assert value("auroc", DRAWN, LABELS) == pytest.approx(expected)


def test_two_classes_against_scikit_learn():
    outputs, y = DRAWN[:, :2], LABELS % 2
    apart = outputs[:, 1] - outputs[:, 0]
    assert value("auroc", outputs, y) == pytest.approx(metrics.roc_auc_score(y, apart))
    assert value("f1", outputs, y) == pytest.approx(metrics.f1_score(y, outputs.argmax(dim=1)))


@pytest.mark.parametrize("shape", [(60,), (60, 1)])
def test_one_logit_against_scikit_learn(shape):
    y, z = MANY[:, 0], DRAWN[:, 0]
    found = (z > 0).float()
    assert value("accuracy", z.reshape(shape), y) == pytest.approx(metrics.accuracy_score(y, found))
    assert value("auroc", z.reshape(shape), y.reshape(shape)) == pytest.approx(metrics.roc_auc_score(y, z))
    assert value("f1", z.reshape(shape), y) == pytest.approx(metrics.f1_score(y, found))


def test_several_labels_against_scikit_learn():
    found = (DRAWN > 0).float()
    assert value("accuracy", DRAWN, MANY) == pytest.approx(float((found == MANY).double().mean()))
    assert value("auroc", DRAWN, MANY) == pytest.approx(metrics.roc_auc_score(MANY, DRAWN, average="macro"))
    assert value("f1", DRAWN, MANY) == pytest.approx(metrics.f1_score(MANY, found, average="macro"))


def test_by_hand():
    """Logits 2, 1, -1, -2 for 1, 0, 1, 0: three of four pairs in order, two right, one of two found and named."""
    z, y = torch.tensor([2.0, 1.0, -1.0, -2.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert [value(name, z, y) for name in ("accuracy", "auroc", "f1")] == [0.5, 0.75, 0.5]
    outputs, numbers = torch.tensor([[1.0], [5.0]]), torch.tensor([4.0, 1.0])
    assert value("rmse", outputs, numbers) == pytest.approx(math.sqrt((9 + 16) / 2))
    assert value("mae", outputs, numbers) == 3.5


def test_undefined_scores_are_not_numbers():
    same = torch.zeros(3, dtype=torch.int64)
    assert math.isnan(value("auroc", torch.rand(3, 2), same))
    assert math.isnan(value("auroc", torch.rand(3, 4), same))
    assert math.isnan(
        value("f1", torch.tensor([[1.0, 0.0]] * 3), same)
    )  # class 1 neither there nor predicted
    assert value("f1", torch.tensor([[0.0, 1.0]] * 3), same) == 0.0
    assert math.isnan(value("auroc", torch.full((3,), math.nan), torch.tensor([0.0, 1.0, 1.0])))


@pytest.mark.parametrize(
    ("loss", "ignored"),
    [
        (functional.cross_entropy, -100),
        (nn.CrossEntropyLoss(ignore_index=3), 3),
        (functools.partial(functional.cross_entropy, ignore_index=-1), -1),
    ],
)
@pytest.mark.parametrize("name", ["accuracy", "auroc", "f1"])
def test_labels_that_the_loss_leaves_out_do_not_count(name, loss, ignored):
    y, counted = LABELS.clamp(max=2), torch.arange(60) % 3 > 0
    given = torch.where(counted, y, ignored)
    assert value(name, DRAWN, given, loss) == value(name, DRAWN[counted], y[counted], loss)
    assert math.isnan(value(name, DRAWN, torch.full((60,), ignored), loss))
    own = Score("rows", lambda outputs, _: len(outputs))
    assert compute_score(own, DRAWN, given, loss) == 60


def test_a_class_that_nobody_has_does_not_count():
    y = LABELS.clamp(max=2)
    areas = [metrics.roc_auc_score(y == k, DRAWN.double().softmax(dim=1)[:, k]) for k in range(3)]
    assert value("auroc", DRAWN, y) == pytest.approx(np.mean(areas))


@pytest.mark.parametrize(
    ("outputs", "y", "loss", "kind", "default"),
    [
        (DRAWN, LABELS, functional.cross_entropy, "labels", ["accuracy"]),
        (DRAWN[:, 0], MANY[:, 0], BCE, "binary", ["accuracy"]),
        (DRAWN[:, :1], MANY[:, :1], nn.BCEWithLogitsLoss(), "binary", ["accuracy"]),
        (DRAWN, MANY, BCE, "multi-label", ["accuracy"]),
        (DRAWN, MANY, lambda a, b: BCE(a, b), "multi-label", []),  # its outputs may be no logits
        (DRAWN[:, 0], MANY[:, 0], functional.mse_loss, "numbers", []),
        (DRAWN[:, 0], DRAWN[:, 1], functional.huber_loss, "numbers", []),
        (DRAWN, MANY / 2, functional.cross_entropy, None, []),  # probabilities of classes
        (DRAWN[:, :1], LABELS, lambda a, _: a.mean(), None, []),
    ],
)
def test_kinds_of_targets_and_their_default_scores(outputs, y, loss, kind, default):
    assert find_kind(outputs, y, loss) == kind
    assert [score.name for score in choose_scores(outputs, y, loss)] == default


def test_all_ways_to_give_scores():
    assert find_scores(None) is None
    assert find_scores("auroc") == (SCORES["auroc"],)
    own = Score("mine", metrics.r2_score, "low")
    assert find_scores(["rmse", own]) == (SCORES["rmse"], own)
    assert find_scores(own) == (own,)
    assert [(one.name, one.best) for one in find_scores({"r2": metrics.r2_score}) or ()] == [("r2", "high")]
    assert [score.best for score in SCORES.values()] == ["high", "high", "high", "low", "low"]
    assert list_built_in(find_scores(["rmse", own])) == ("rmse",)
    assert list_built_in((own,)) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("acuracy", "there is no score 'acuracy'; choose one of accuracy, auroc, f1, rmse, mae, or give a function"),
        ([], "scores is empty; name one of accuracy"),
        (len, "scores is len; give names such as"),
        (["auroc", len], "there is no score len; choose one of"),
        (["f1", "f1"], "the score f1 is given twice"),
        ({"accuracy": len}, "accuracy is a built-in score; give your own function another name, such as my_accuracy"),
        ({"loss": len}, "'loss' cannot be the name of a score"),
        ({"two\nlines": len}, "cannot be the name of a score; use letters, digits, _ and -"),
        ({"mine": 3}, "the score mine is 3; give a function of (outputs, targets)"),
    ],
)  # fmt: skip
def test_what_is_not_a_score_is_refused(given, words):
    with refused(ConfigError, words):
        find_scores(given)


def test_a_direction_is_high_or_low():
    with refused(ConfigError, "best of the score mine is 'max'; give 'high' if more is better, else 'low'"):
        Score("mine", len, "max")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "outputs", "y", "loss", "words"),
    [
        ("rmse", DRAWN, LABELS, functional.cross_entropy, "which are labels; choose accuracy, auroc, f1"),
        ("auroc", DRAWN[:, 0], DRAWN[:, 1], functional.mse_loss, "which are numbers; choose rmse, mae"),
        ("accuracy", DRAWN[:, 0], MANY[:, 0], functional.mse_loss, "which are numbers; choose rmse, mae"),
        ("rmse", DRAWN, MANY, BCE, "which are several labels of 0 or 1; choose accuracy, auroc, f1"),
        ("f1", DRAWN, MANY / 2, functional.cross_entropy, "of another kind; give a function of your own"),
    ],
)
def test_a_score_that_does_not_fit_is_refused(name, outputs, y, loss, words):
    with refused(ConfigError, f"the score {name} does not fit the targets", words):
        check_scores([SCORES[name]], outputs, y, loss)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _outputs, _y: 1 / 0, "the score mine failed (ZeroDivisionError: division by zero)"),
        (lambda outputs, _y: outputs, "the score mine returns a tensor [60, 4], not one number"),
        (lambda _outputs, _y: "0.5", "the score mine returns str, not one number"),
        (lambda _outputs, _y: True, "the score mine returns bool, not one number"),
        (lambda _outputs, _y: None, "the score mine returns NoneType, not one number"),
    ],
)
def test_an_own_score_that_does_not_work_is_refused(function, words):
    with refused(ConfigError, words):
        check_scores([Score("mine", function)], DRAWN, LABELS, functional.cross_entropy)


@pytest.mark.parametrize("one", [1, 0.5, torch.tensor([0.5]), np.float32(0.5), math.nan])
def test_numbers_of_many_types_are_taken(one):
    found = compute_score(Score("mine", lambda *_: one), DRAWN, LABELS, functional.cross_entropy)
    assert type(found) is float
    assert found == float(one) or math.isnan(found)


def test_an_own_score_cannot_change_what_the_others_see():
    outputs, y = DRAWN.clone(), LABELS.clone()
    zero = Score("mine", lambda outputs, y: outputs.zero_().sum() + y.zero_().sum())
    compute_score(zero, outputs, y, functional.cross_entropy)
    assert torch.equal(outputs, DRAWN)
    assert torch.equal(y, LABELS)
