"""How far a model is from a reference, in its weights and in what it says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.errors import DataError


@dataclass(frozen=True, slots=True)
class Distance:
    """From a model w to a reference v. None of these says by itself whether anything was forgotten."""

    l2: float  # ‖w - v‖
    cosine: float  # w'v / (‖w‖ ‖v‖), 1 where they point the same way, 0 where one of them is 0
    kl: float  # mean over examples of KL(reference ‖ model) of their predictions, in nats
    disagreement: float  # share of examples with another largest output


def distance(params: Tensor, reference: Tensor, outputs: Tensor, reference_outputs: Tensor) -> Distance:
    """Compare weights [P] and outputs [n, k] on the same examples, in float64."""
    _check(params, reference, outputs, reference_outputs)
    w, v = params.double(), reference.double()
    log_q, log_p = outputs.double().log_softmax(dim=1), reference_outputs.double().log_softmax(dim=1)
    kl = (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()
    differ = outputs.argmax(dim=1) != reference_outputs.argmax(dim=1)
    return Distance(float((w - v).norm()), _cosine(w, v), max(0.0, float(kl)), float(differ.double().mean()))


def _cosine(w: Tensor, v: Tensor) -> float:
    sizes = float(w.norm()), float(v.norm())
    if not all(sizes):
        return 0.0
    return max(-1.0, min(1.0, float((w / sizes[0]) @ (v / sizes[1]))))


def _check(params: Tensor, reference: Tensor, outputs: Tensor, reference_outputs: Tensor) -> None:
    if params.dim() != 1 or params.shape != reference.shape:
        raise DataError(
            f"weights {list(params.shape)} and {list(reference.shape)} are not of one model; compare like with like"
        )
    if outputs.dim() != 2 or outputs.shape != reference_outputs.shape or not len(outputs):
        raise DataError(
            f"outputs {list(outputs.shape)} and {list(reference_outputs.shape)} cannot be compared; "
            "give both models' [n, k] on the same examples, at least one"
        )
    for what, found in (
        ("the model", (params, outputs)),
        ("the reference", (reference, reference_outputs)),
    ):
        if not all(bool(torch.isfinite(part).all()) for part in found):
            raise DataError(f"{what} has weights or outputs that are not finite: it has diverged")
