"""LiRA: is this output likelier from models that were trained on the example, or from models that were not?

Both are learnt from K shadow federations, in each of which an example was inside or not by the fall of a coin. Online
attack of Carlini et al. 2022, "Membership inference attacks from first principles".
"""

from __future__ import annotations

import torch
from torch import Tensor

from feduhb.errors import DataError

FLOOR = 1e-6  # of the variance over all shadows and examples: the least that a pooled variance may be
TINY = 1e-12


def likelihood_ratios(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Give log N(φ; μ_in, s_in) - log N(φ; μ_out, s_out) for each of a client's examples, [n] in float64.

    Args:
        target: [n] confidences φ of the examples under the attacked model.
        shadows: [K, n] φ under each shadow model.
        inside: [K, n] whether that shadow was trained on that example.

    Means are each example's own, variances are pooled over examples, for shadows are few. An example that was never
    inside (or never outside) borrows the mean shift μ_in - μ_out of the others.
    """
    target, shadows = target.double(), shadows.double()
    _check(target, shadows, inside)
    (mu_in, left_in), (mu_out, left_out) = (_means(shadows, seen) for seen in (inside, ~inside))
    shift = _shift(mu_in, mu_out)
    mu_in, mu_out = (
        torch.where(mu_in.isnan(), mu_out + shift, mu_in),
        torch.where(mu_out.isnan(), mu_in - shift, mu_out),
    )
    s_in, s_out = _variances(shadows, left_in, left_out)
    return _log_normal(target, mu_in, s_in) - _log_normal(target, mu_out, s_out)


def self_test(shadows: Tensor, inside: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Attack each shadow the client took part in with all the others: the scores of its inside and outside examples.

    It says what the attack can do where the truth is known; a shadow is never attacked with itself.
    """
    found = []
    for k in inside.any(dim=1).nonzero().flatten().tolist():
        rest = torch.arange(len(shadows)) != k
        scores = likelihood_ratios(shadows[k], shadows[rest], inside[rest])
        found.append((scores[inside[k]], scores[~inside[k]]))
    return found


def _check(target: Tensor, shadows: Tensor, inside: Tensor) -> None:
    if target.dim() != 1 or shadows.dim() != 2 or shadows.shape[1:] != target.shape:
        raise DataError(
            f"confidences {list(target.shape)} do not match the shadows' {list(shadows.shape)}; give [n] and [K, n]"
        )
    if inside.shape != shadows.shape or inside.dtype != torch.bool:
        raise DataError(
            f"membership is {inside.dtype} {list(inside.shape)}; give a truth value for each of {list(shadows.shape)}"
        )
    if not bool(target.isfinite().all() and shadows.isfinite().all()):
        raise DataError(
            "some confidences are not finite: the attacked model or a shadow has diverged; look at their test loss"
        )
    for seen, where in ((inside, "inside"), (~inside, "outside")):
        if not bool(seen.any()):
            raise DataError(
                f"no example was ever {where} a shadow's training data, so there is nothing to compare; train more shadows"
            )


def _means(shadows: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Give each example's mean over the shadows that count, NaN where none does [n], and what is left over [K, n], NaN elsewhere."""
    counted = torch.where(seen, shadows, torch.nan)
    mean = counted.nanmean(dim=0)
    return mean, counted - mean


def _shift(mu_in: Tensor, mu_out: Tensor) -> Tensor:
    """Give the mean of μ_in - μ_out over the examples that have both; of all where none has."""
    apart = mu_in - mu_out
    return mu_in.nanmean() - mu_out.nanmean() if bool(apart.isnan().all()) else apart.nanmean()


def _variances(shadows: Tensor, left_in: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Pool each side's variance over examples; a side on which none was seen twice takes the other's."""
    least = FLOOR * shadows.var(correction=0) + TINY
    s_in, s_out = (_pooled(left) for left in (left_in, left_out))
    both = torch.where(s_in.isnan(), s_out, s_in), torch.where(s_out.isnan(), s_in, s_out)
    s_in, s_out = (side.nan_to_num(nan=0.0).clamp_min(least) for side in both)
    return s_in, s_out


def _pooled(left: Tensor) -> Tensor:
    """Give Σ left² over its degrees of freedom, one fewer than the shadows of each example; NaN where there is none."""
    free = (left.isfinite().sum(dim=0) - 1).clamp_min(0).sum()
    return left.square().nansum() / free


def _log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -((x - mean).square() / variance + variance.log()) / 2  # but for a constant that cancels
