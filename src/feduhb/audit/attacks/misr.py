"""MISR as in the paper: the share of the forgotten data that an attacker of the original model still calls member."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feduhb.audit.attacks.membership import Models
from feduhb.audit.result import ORIGINAL, Misr, MisrRates
from feduhb.core.seeds import generator, seed_for
from feduhb.data.federation import Federation
from feduhb.data.request import Request
from feduhb.engines.scoring import compute_outputs
from feduhb.errors import ConfigError, DataError

SAYS = (
    "MISR is a recall: the share of the forgotten data that an attacker fitted on the original model calls member. Chance is "
    "its rate on test data, not 0.5, and labels that are commoner among the leavers than in the test data move it, so that a "
    "model retrained without the leavers can score far from either; it is no verdict."
)
TREES: dict[str, Any] = {
    "max_iter": 60,
    "max_leaf_nodes": 15,
    "max_bins": 63,
    "early_stopping": False,
    "class_weight": "balanced",
}
REGRESSION: dict[str, Any] = {"max_iter": 1000, "class_weight": "balanced"}
Rows = NDArray[np.float64]  # [n, k]
Turns = NDArray[np.int64]  # [n]


def measure_misr(models: Models, federation: Federation, request: Request, notes: list[str]) -> Misr | None:
    """Return MISR on the real data; None, and a note, where there is too little of it."""
    gone = torch.cat([examples.all()[0] for examples in federation.forgotten(request).values()])
    test = federation.test.all()[0]
    modules = {name: run.model() for name, run in models.items()}
    logits = {
        name: (compute_outputs(module, gone), compute_outputs(module, test))
        for name, module in modules.items()
    }
    try:
        return Misr(compute_misr(logits, seed=federation.seed), SAYS)
    except DataError as error:
        notes.append(f"MISR was not measured: {error}.")
        return None


def compute_misr(
    logits: Mapping[str, tuple[Tensor, Tensor]], *, seed: int, folds: int = 5
) -> dict[str, dict[str, MisrRates]]:
    """Return how often attackers fitted on the original model's logits call examples members, by attacker and by model.

    Args:
        logits: by model, "original" among them, the outputs on the forgotten data [m, k] and on test data [n, k],
            the same examples in the same order for every model.
        seed: of the folds, of the sample of test data and of the attackers.
        folds: of both the forgotten and the test examples.

    Members are the forgotten data, others as many test examples, or all of them where they are fewer; both sides
    weigh the same. Differs from the paper: the attackers are cross-fitted, that is, each example is shown only to an
    attacker that was fitted without it, for one that has seen its row would know it by heart.
    """
    rows = _check(logits, folds)
    forgotten, test = rows[ORIGINAL]
    turn_in, turn_out = _draw_order(len(forgotten), seed, "forgotten"), _draw_order(len(test), seed, "test")
    folded = turn_in % folds, turn_out % folds, turn_out < len(forgotten)
    with _single_threaded():
        return {name: _cross_fit(attacker, rows, *folded) for name, attacker in _make_attackers(seed).items()}


def _cross_fit(
    attacker: Any,
    rows: Mapping[str, tuple[Rows, Rows]],
    fold_in: Turns,
    fold_out: Turns,
    sampled: NDArray[np.bool_],
) -> dict[str, MisrRates]:
    """Fit on all folds of the original but one and predict that one under every model, for each fold in turn."""
    forgotten, test = rows[ORIGINAL]
    called = {model: (np.zeros(len(forgotten)), np.zeros(len(test))) for model in rows}
    for fold in range(int(fold_in.max()) + 1):
        mine_in, mine_out = fold_in == fold, fold_out == fold
        members, others = forgotten[~mine_in], test[sampled & ~mine_out]
        truth = np.repeat([1, 0], [len(members), len(others)])
        attacker.fit(np.concatenate([members, others]), truth)
        for model, (x_in, x_out) in rows.items():
            called[model][0][mine_in] = attacker.predict(x_in[mine_in])
            called[model][1][mine_out] = attacker.predict(x_out[mine_out])
    return {model: MisrRates(float(a.mean()), float(b.mean())) for model, (a, b) in called.items()}


def _make_attackers(seed: int) -> dict[str, Any]:
    """Return the classifiers: trees as in the paper, and a logistic regression as a check. Every fit starts anew."""
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
    """Hold sklearn to one thread: sums then have one order, and threads do not wait for each other on a busy machine.

    A regression that has not quite converged is an attacker too, and says nothing about it.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _draw_order(count: int, seed: int, what: str) -> Turns:
    """Return each example's place in a random order. Modulo the folds it is its fold: even in every first part."""
    return torch.randperm(count, generator=generator(seed, "misr", what)).numpy()


def _check(logits: Mapping[str, tuple[Tensor, Tensor]], folds: int) -> dict[str, tuple[Rows, Rows]]:
    if folds < 2:
        raise ConfigError(f"folds is {folds}; give 2 or more, such as 5")
    if ORIGINAL not in logits:
        raise DataError(
            f"the attacker learns from the model {ORIGINAL!r}, and only {', '.join(logits) or 'nothing'} is here; add it"
        )
    shapes = [list(side.shape) for side in logits[ORIGINAL]]
    for what, shape in zip(("forgotten", "test"), shapes, strict=True):
        if len(shape) != 2:
            raise DataError(
                f"outputs on the {what} data are {shape}; give one row of logits an example, [n, k]"
            )
        if shape[0] < 2 * folds:
            raise DataError(
                f"{shape[0]} {what} examples are too few for {folds} folds; give at least {2 * folds}, or use fewer folds"
            )
    for model, sides in logits.items():
        if [list(side.shape) for side in sides] != shapes:
            raise DataError(
                f"the outputs of {model} and of {ORIGINAL} are on different examples; give the same to both"
            )
        if not all(bool(side.isfinite().all()) for side in sides):
            raise DataError(f"some outputs of {model} are not finite: it has diverged; look at its test loss")
    return {model: (_to_rows(x_in), _to_rows(x_out)) for model, (x_in, x_out) in logits.items()}


def _to_rows(logits: Tensor) -> Rows:
    return logits.detach().double().cpu().numpy()
