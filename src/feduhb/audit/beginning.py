"""Does a method begin at the fresh model that it is given, and is that model fresh?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from feduhb.audit.measures import compute_accuracy, compute_chance
from feduhb.audit.result import Check
from feduhb.audit.verdict import explain_uselessness
from feduhb.core.flat import flatten
from feduhb.core.fresh import DRAWS, draw_several, find_shared
from feduhb.core.seeds import seed_for
from feduhb.runs.run import Run

BEGINNING = "Given two draws of a fresh model"
GIVEN = "the model brings a start of its own, which may hold what another run learned"
UNJUDGED = "The model's parameters are too small to tell whether fresh draws of it share weights."


def check_beginning(run: Run) -> Check:
    """Return whether a run's method begins at w[0]: ``init(w0).params`` must equal w0, bit for bit.

    Two draws are tried: the run's own w[0] and another one. A method that begins elsewhere, such as at stored weights,
    can give the same weights with and without the forgotten data, so comparing those does not find it.
    """
    draws = [_begin(run, seed) for seed in (run.seed, seed_for(run.seed, "beginning"))]
    if all(begun.dtype == start.dtype and torch.equal(begun, start) for start, begun in draws):
        return Check("beginning", f"{BEGINNING}: the method begins there, bit for bit.", True, 0.0)
    apart = max(_measure_distance(start, begun) for start, begun in draws)
    says = f"{BEGINNING}: the method begins elsewhere, up to {apart:.2g} apart, so it does not start afresh."
    return Check("beginning", says, False, apart)


def explain_start(run: Run, retrain: float | None, notes: list[str]) -> str | None:
    """Return why a run's fresh model may not be fresh, or None.

    Several draws are compared, whatever the method: they must share no weights, and not all of them may do well on test
    data. A factory that returns the old model with a little noise, or with its units in another order, can pass every
    comparison of weights.

    Args:
        retrain: Retrain's test accuracy; None if targets are not labels.
        notes: get a note if the model is too small to be judged.
    """
    federation = run.federation
    shared = find_shared(draw_several(federation.model, run.seed))
    if shared.names:
        return f"Fresh draws of the model share weights in {shared}: {GIVEN}."
    if not shared.judged:
        notes.append(UNJUDGED)
    chance = compute_chance(federation)
    for draw in draw_several(federation.model, run.seed):
        accuracy = compute_accuracy(draw, [federation.test], federation)
        if retrain is None or accuracy is None or explain_uselessness(accuracy, retrain, chance) is not None:
            return None
    return f"Every one of {DRAWS} fresh draws of the model does well on test data: {GIVEN}."


def _begin(run: Run, seed: int) -> tuple[Tensor, Tensor]:
    """Return the draw of w[0] with a seed, and the parameters at which the method begins if it is given that draw."""
    start = flatten(run.federation.reseed(seed).fresh_model())
    return start, run.method.init(start.clone()).params.detach().cpu()


def _measure_distance(start: Tensor, begun: Tensor) -> float:
    """Return the largest difference of two weights; 0 if there is none that can be given as a number."""
    if start.shape != begun.shape:
        return 0.0
    apart = float((start.double() - begun.double()).abs().max())
    return apart if math.isfinite(apart) else 0.0
