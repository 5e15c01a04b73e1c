"""MISR as in the paper: the share of the forgotten data that an attacker of the original model calls members."""

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
from feduhb.core.checks import check_whole
from feduhb.core.inputs import join_inputs
from feduhb.core.seeds import generator, seed_for
from feduhb.data.federation import Federation
from feduhb.data.request import Request
from feduhb.engines.scoring import compute_outputs
from feduhb.errors import DataError

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
REGRESSION: dict[str, Any] = {"max_iter": 1000, "class_weight": "balanced"}
Rows = NDArray[np.float64]  # [n, k]
Turns = NDArray[np.int64]  # [n]


def measure_misr(models: Models, federation: Federation, request: Request, notes: list[str]) -> Misr | None:
    """Return MISR on the real data; None, with a note, if there is too little data."""
    gone = join_inputs([examples.all()[0] for examples in federation.forgotten(request).values()])
    test = federation.test.all()[0]
    modules = {name: run.model() for name, run in models.items()}
    logits = {
        n: (compute_outputs(module, gone), compute_outputs(module, test)) for n, module in modules.items()
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
        folds: the number of folds of the forgotten and of the test examples.

    Members are the forgotten data. Others are equally many test examples, or all if there are fewer. Both sides have the
    same weight. Differs from the paper: the attackers are cross-fitted. Each example is classified by an attacker that
    was fitted without it, because otherwise the attacker could have memorized the example.
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
    """For each fold, fit on the other folds of the original model, and classify the fold under every model."""
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
