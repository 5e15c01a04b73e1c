"""Does a method begin at the fresh model that it is given?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from feduhb.audit.result import Check
from feduhb.core.flat import flatten
from feduhb.core.seeds import seed_for
from feduhb.runs.run import Run

BEGINNING = "Given two draws of a fresh model"


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
