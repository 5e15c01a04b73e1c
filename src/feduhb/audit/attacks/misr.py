"""MISR as in the paper: the share of the forgotten data that an attacker of the original model calls members."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feduhb.audit.attacks.membership import TEST, Answers, Models, compute_answers
from feduhb.audit.result import ORIGINAL, Misr, MisrRates
from feduhb.core.checks import check_whole
from feduhb.core.inputs import join_inputs
from feduhb.core.seeds import generator, seed_for
from feduhb.data.federation import Federation
from feduhb.data.request import Request
from feduhb.errors import DataError
from feduhb.runs.checkpoint import digest_weights

SAYS = (
    "MISR is a recall: the share of the forgotten data that an attacker, fitted on the original model, calls members. Chance "
    "is its rate on test data, not 0.5. Labels that are more common among the leavers than in the test data shift it, so a "
    "model retrained without the leavers can be far from both. MISR is not a verdict."
)
TREES: dict[str, Any] = {
    "max_iter": 60,
    "max_leaf_nodes": 15,
    "max_bins": 63,
    "early_stopping": False,
    "class_weight": "balanced",
}
FOLDS = 5
REGRESSION: dict[str, Any] = {"max_iter": 1000, "class_weight": "balanced"}
Rows = NDArray[np.float64]  # [n, k]
Turns = NDArray[np.int64]  # [n]


class Attackers:
    """Attackers that were fitted on the outputs of one original model: for each fold, without the examples of that fold."""

    def __init__(self, forgotten: Rows, test: Rows, seed: int, folds: int) -> None:
        turn_in = _draw_order(len(forgotten), seed, "forgotten")
        turn_out = _draw_order(len(test), seed, "test")
        self.rated: dict[str, dict[str, MisrRates]] = {}  # by the digest of a model, and by attacker
        self.folds = turn_in % folds, turn_out % folds  # of each forgotten and of each test example
        sampled = turn_out < len(forgotten)
        self.fitted: dict[str, list[Any]] = {}  # by name, one for each fold
        with _single_threaded():
            for name, plain in _make_attackers(seed).items():
                self.fitted[name] = [copy.deepcopy(plain) for _ in range(folds)]
                for fold, attacker in enumerate(self.fitted[name]):
                    mine_in, mine_out = (turns == fold for turns in self.folds)
                    members, others = forgotten[~mine_in], test[sampled & ~mine_out]
                    truth = np.repeat([1, 0], [len(members), len(others)])
                    attacker.fit(np.concatenate([members, others]), truth)

    def rate_all(self, outputs: tuple[Rows, Rows]) -> dict[str, MisrRates]:
        """Return what `rate` returns for each attacker."""
        return {name: self.rate(name, outputs) for name in self.fitted}

    def rate(self, name: str, outputs: tuple[Rows, Rows]) -> MisrRates:
        """Return how often an attacker calls a model's forgotten and test examples members."""
        with _single_threaded():
            called = (
                [attacker.predict(x[fold == number]) for number, attacker in enumerate(self.fitted[name])]
                for x, fold in zip(outputs, self.folds, strict=True)
            )
            return MisrRates(*(float(np.concatenate(found).mean()) for found in called))


def measure_misr(
    models: Models,
    federation: Federation,
    request: Request,
    notes: list[str],
    known: Answers,
    fitted: dict[str, Attackers],
) -> Misr | None:
    """Return MISR on the real data; None, with a note, if there is too little data.

    Args:
        known: answers of models that were computed before.
        fitted: attackers, by the digest of the original that they were fitted on. The audits of several runs share them.
    """
    gone = join_inputs([examples.all()[0] for examples in federation.forgotten(request).values()])
    test = federation.test.all()[0]
    logits = {
        name: (compute_answers(run, "forgotten", gone, known), compute_answers(run, TEST, test, known))
        for name, run in models.items()
    }
    try:
        rows = _check(logits, FOLDS)
    except DataError as error:
        notes.append(f"MISR was not measured: {error}.")
        return None
    digests = {name: digest_weights(run.params) for name, run in models.items()}
    if (key := digests[ORIGINAL]) not in fitted:
        fitted[key] = Attackers(*rows[ORIGINAL], federation.seed, FOLDS)
    attackers = fitted[key]
    for name, outputs in rows.items():
        if digests[name] not in attackers.rated:
            attackers.rated[digests[name]] = attackers.rate_all(outputs)
    rated = {name: attackers.rated[digest] for name, digest in digests.items()}
    return Misr(_sort_by_attacker(rated), SAYS)


def compute_misr(
    logits: Mapping[str, tuple[Tensor, Tensor]], *, seed: int, folds: int = FOLDS
) -> dict[str, dict[str, MisrRates]]:
    """Return how often attackers fitted on the original model's logits call examples members, by attacker and by model.

    Args:
        logits: by model, "original" among them, the outputs on the forgotten data [m, k] and on test data [n, k],
            the same examples in the same order for every model.
        seed: of the folds, of the sample of test data and of the attackers.
        folds: the number of folds of the forgotten and of the test examples.

    Members are the forgotten data. Others are equally many test examples, or all if there are fewer. Both sides have the
    same weight. Differs from the paper: the attackers are cross-fitted. Each example is classified by an attacker that
    was fitted without it, because otherwise the attacker could have memorized the example.
    """
    rows = _check(logits, folds)
    attackers = Attackers(*rows[ORIGINAL], seed, folds)
    return _sort_by_attacker({model: attackers.rate_all(outputs) for model, outputs in rows.items()})


def _sort_by_attacker(rated: Mapping[str, Mapping[str, MisrRates]]) -> dict[str, dict[str, MisrRates]]:
    """Return rates by attacker and by model, which are given by model and by attacker."""
    return {name: {model: rates[name] for model, rates in rated.items()} for name in rated[ORIGINAL]}


def _make_attackers(seed: int) -> dict[str, Any]:
    """Return the classifiers: trees as in the paper, and a logistic regression as a check."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    drawn = seed_for(seed, "misr", "trees") % 2**32
    return {
        "boosted trees": HistGradientBoostingClassifier(**TREES, random_state=drawn),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(**REGRESSION)),
    }


@contextlib.contextmanager
def _single_threaded() -> Generator[None]:
    """Limit sklearn to one thread, so that sums have one order, and accept regressions that have not converged."""
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _draw_order(count: int, seed: int, what: str) -> Turns:
    """Return each example's place in a random order. The place modulo the number of folds is the fold."""
    return torch.randperm(count, generator=generator(seed, "misr", what)).numpy()


def _check(logits: Mapping[str, tuple[Tensor, Tensor]], folds: int) -> dict[str, tuple[Rows, Rows]]:
    check_whole("folds", folds, least=2)
    shapes = {model: [list(side.shape) for side in sides] for model, sides in logits.items()}
    wanted = shapes.get(ORIGINAL, [])
    if [len(shape) for shape in wanted] != [2, 2] or any(found != wanted for found in shapes.values()):
        raise DataError(
            f"the outputs have the shapes {shapes}; give [m, k] and [n, k] for {ORIGINAL!r}, and the same for every model"
        )
    for what, side in zip(("forgotten", "test"), logits[ORIGINAL], strict=True):
        if len(side) < 2 * folds:
            raise DataError(
                f"{len(side)} {what} examples are too few for {folds} folds; give at least {2 * folds}, or use fewer folds"
            )
    for model, sides in logits.items():
        if not all(bool(side.isfinite().all()) for side in sides):
            raise DataError(f"some outputs of {model} are not finite: it has diverged; look at its test loss")
    sides = {
        model: [side.detach().double().cpu().numpy() for side in sides] for model, sides in logits.items()
    }
    return {model: (forgotten, test) for model, (forgotten, test) in sides.items()}
