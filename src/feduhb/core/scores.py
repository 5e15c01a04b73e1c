"""Scores: numbers that say how good a model's outputs are, and whether more or less of each is better."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.core.local import Loss
from feduhb.core.loss import find_counted
from feduhb.errors import ConfigError

Best = Literal["high", "low"]
Kind = Literal["labels", "binary", "multi-label", "numbers"]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
# Losses whose targets are numbers, even if all of them are 0 or 1, and losses of logits for targets 0 and 1.
OF_NUMBERS: tuple[Any, ...] = (
    functional.mse_loss, functional.huber_loss, functional.l1_loss, functional.smooth_l1_loss,
    nn.MSELoss, nn.HuberLoss, nn.L1Loss, nn.SmoothL1Loss,
)  # fmt: skip
OF_LOGITS: tuple[Any, ...] = (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss)
OF_CLASSES: tuple[Any, ...] = (functional.cross_entropy, nn.CrossEntropyLoss)


@dataclass(frozen=True, slots=True)
class Score:
    """A score by name.

    Args:
        name: letters, digits, "_" and "-"; records call it test_NAME.
        compute: a function of (outputs, targets), two tensors on the CPU, that returns one number, or NaN where it is
            not defined, such as for examples of one class.
        best: "high" if more is better, "low" if less is.
    """

    name: str
    compute: Callable[[Tensor, Tensor], Any]
    best: Best = "high"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name) or self.name == "loss":
            raise ConfigError(
                f"{self.name!r} cannot be the name of a score; use letters, digits, _ and -, and not loss, which is recorded anyway"
            )
        if self.name in SCORES and self.compute is not SCORES[self.name].compute:
            raise ConfigError(
                f"{self.name} is a built-in score; give your own function another name, such as my_{self.name}"
            )
        if not callable(self.compute):
            raise ConfigError(
                f"the score {self.name} is {self.compute!r}; give a function of (outputs, targets)"
            )
        if self.best not in get_args(Best):
            raise ConfigError(
                f"best of the score {self.name} is {self.best!r}; give 'high' if more is better, else 'low'"
            )


ScoreSource = str | Score | Sequence[str | Score] | Mapping[str, Callable[[Tensor, Tensor], Any]]


def find_scores(given: ScoreSource | None) -> tuple[Score, ...] | None:
    """Return the scores of a name, of names, of functions by name or of `Score`s; None for None."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        found = [Score(name, function) for name, function in given.items()]
    elif isinstance(given, str | Score):
        found = [_find(given)]
    elif isinstance(given, Sequence):
        found = [_find(one) for one in given]
    else:
        raise ConfigError(
            f"scores is {_describe(given)}; give names such as ['auroc'], or functions by name: {{'my_score': function}}"
        )
    if not found:
        raise ConfigError(f"scores is empty; name one of {', '.join(SCORES)}, or leave it out")
    names = [score.name for score in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"the score {twice[0]} is given twice; give every score once")
    return tuple(found)


def _find(one: Any) -> Score:
    if isinstance(one, Score):
        return one
    if not isinstance(one, str) or one not in SCORES:
        raise ConfigError(
            f"there is no score {_describe(one)}; choose one of {', '.join(SCORES)}, or give a function by name: {{'my_score': function}}"
        )
    return SCORES[one]


def _describe(given: Any) -> str:
    """Return what was given as a score, a function by its name."""
    return given.__name__ if isinstance(given, FunctionType | BuiltinFunctionType) else repr(given)


def list_built_in(scores: Sequence[Score] | None) -> tuple[str, ...] | None:
    """Return the names of the built-in scores among some, as a config can describe them; None if there are none."""
    return tuple(score.name for score in scores or () if score.name in SCORES) or None


def find_kind(outputs: Tensor, y: Tensor, loss: Loss) -> Kind | None:
    """Return what the targets of some outputs are, such as labels or numbers; None if no built-in score is for them."""
    if are_labels(outputs, y):
        return "labels"
    if is_one_of(loss, OF_CLASSES) or outputs.numel() != y.numel():
        return None  # probabilities of classes, or a label for each of many places
    if not is_one_of(loss, OF_NUMBERS) and bool(((y == 0) | (y == 1)).all()):
        return None if y.dim() > 2 else "binary" if y.numel() == len(y) else "multi-label"
    return "numbers" if y.is_floating_point() else None


def choose_scores(outputs: Tensor, y: Tensor, loss: Loss) -> tuple[Score, ...]:
    """Return the scores of a federation that was given none: the accuracy of labels and of logits for 0 and 1."""
    kind = find_kind(outputs, y, loss)
    has_logits = kind in {"binary", "multi-label"} and is_one_of(loss, OF_LOGITS)
    return (SCORES["accuracy"],) if kind == "labels" or has_logits else ()


def check_scores(scores: Sequence[Score], outputs: Tensor, y: Tensor, loss: Loss) -> None:
    """Raise ConfigError if a score is not for such targets, fails on some outputs, or returns anything but a number."""
    kind = find_kind(outputs, y, loss)
    for score in scores:
        if score.name in FITS and kind not in FITS[score.name]:
            fit = ", ".join(name for name, kinds in FITS.items() if kind in kinds)
            advice = f"choose {fit}" if fit else "give a function of your own: scores={'my_score': function}"
            raise ConfigError(
                f"the score {score.name} does not fit the targets, which are {DESCRIBED[kind]}; {advice}"
            )
        compute_score(score, outputs, y, loss)


def compute_score(score: Score, outputs: Tensor, y: Tensor, loss: Loss) -> float:
    """Return a score of some outputs; raise ConfigError if its function fails or returns anything but a number.

    A built-in score leaves out the labels that the loss leaves out.
    """
    own = score.name not in SCORES
    if not own and are_labels(outputs, y):
        counted = find_counted(loss, y)
        outputs, y = outputs[counted], y[counted]
    try:  # a function of the user's own gets copies, so that it cannot change what the others see
        value = score.compute(*((outputs.clone(), y.clone()) if own else (outputs, y)))
    except Exception as error:
        raise ConfigError(
            f"the score {score.name} failed ({type(error).__name__}: {' '.join(str(error).split())}); correct its function of (outputs, targets)"
        ) from error
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        returned = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"the score {score.name} returns {returned}, not one number; return a float, or NaN where it is not defined"
        )
    return float(value)


def average_by_weight(weights: Mapping[str, float], values: Mapping[str, float]) -> float:
    """Return the weighted mean; weights are divided before they are multiplied, because their sum could overflow."""
    total = sum(weights[client] for client in values)
    return sum(weights[client] / total * value for client, value in values.items())


def compute_accuracy(outputs: Tensor, y: Tensor) -> float:
    """Return the share of labels that are right: the largest output, or for targets 0 and 1 a logit above 0 where the target is 1."""
    return float((predict(outputs, y) == (y if are_labels(outputs, y) else y > 0.5)).double().mean())


def predict(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the labels that outputs predict for targets that are labels, else which logits are above 0, in the targets' shape."""
    return outputs.argmax(dim=1) if are_labels(outputs, y) else outputs.reshape(y.shape) > 0


def compute_auroc(outputs: Tensor, y: Tensor) -> float:
    """Return the area under the ROC curve, the mean over classes (each against the rest) or over labels.

    Classes and labels that all or none of the examples have are left out; NaN if no other is left.
    """
    from sklearn.metrics import roc_auc_score

    if not bool(torch.isfinite(outputs).all()):
        return math.nan
    if not are_labels(outputs, y):
        ranks, truths = outputs.reshape(len(y), -1), y.reshape(len(y), -1) > 0.5
    elif outputs.shape[1] == 2:
        ranks, truths = (outputs[:, 1] - outputs[:, 0])[:, None], (y == 1)[:, None]
    else:
        ranks, truths = outputs.double().softmax(dim=1), y[:, None] == torch.arange(outputs.shape[1])
    areas = [
        float(roc_auc_score(truth.numpy(), rank.numpy()))
        for rank, truth in zip(ranks.T, truths.T, strict=True)
        if bool(truth.any()) and not bool(truth.all())
    ]
    return sum(areas) / len(areas) if areas else math.nan


def compute_f1(outputs: Tensor, y: Tensor) -> float:
    """Return 2 TP / (2 TP + FP + FN) of class 1 of two; else its mean over classes, or over labels.

    Classes and labels that no example has and no output predicts are left out; NaN if no other is left.
    """
    found = predict(outputs, y)
    if not are_labels(outputs, y):
        found, truth = found.reshape(len(y), -1), y.reshape(len(y), -1) > 0.5
    else:
        classes = torch.tensor([1]) if outputs.shape[1] == 2 else torch.arange(outputs.shape[1])
        found, truth = found[:, None] == classes, y[:, None] == classes
    right, named = (found & truth).sum(dim=0).double(), (found.sum(dim=0) + truth.sum(dim=0)).double()
    return float((2 * right / named).nanmean())


def compute_rmse(outputs: Tensor, y: Tensor) -> float:
    """Return the root of the mean squared difference between outputs and targets."""
    return float((outputs.reshape(y.shape).double() - y.double()).square().mean().sqrt())


def compute_mae(outputs: Tensor, y: Tensor) -> float:
    """Return the mean size of the difference between outputs and targets."""
    return float((outputs.reshape(y.shape).double() - y.double()).abs().mean())


SCORES: dict[str, Score] = {}
for _score in (
    Score("accuracy", compute_accuracy), Score("auroc", compute_auroc), Score("f1", compute_f1),
    Score("rmse", compute_rmse, "low"), Score("mae", compute_mae, "low"),
):  # fmt: skip
    SCORES[_score.name] = _score
FITS: dict[str, tuple[Kind, ...]] = {
    **dict.fromkeys(("accuracy", "auroc", "f1"), ("labels", "binary", "multi-label")),
    **dict.fromkeys(("rmse", "mae"), ("numbers",)),
}
DESCRIBED: dict[Kind | None, str] = {
    "labels": "labels", "binary": "0 or 1", "multi-label": "several labels of 0 or 1", "numbers": "numbers",
    None: "of another kind",
}  # fmt: skip


def are_labels(outputs: Tensor, y: Tensor) -> bool:
    """Return whether targets are labels of the classes that outputs [n, k] score."""
    return y.dim() == 1 and not y.is_floating_point() and outputs.dim() == 2 and outputs.shape[1] > 1


def is_one_of(loss: Loss, known: Sequence[Any]) -> bool:
    """Return whether a loss, or the function inside a `functools.partial`, is one of these functions or classes."""
    inner = loss.func if isinstance(loss, functools.partial) else loss
    return inner in known or type(inner) in known
