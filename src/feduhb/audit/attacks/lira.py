"""LiRA: is an output more likely from models that were trained on the example, or from models that were not?

Both distributions come from K shadow federations, each of which trained on a random half of the examples. This is the
online attack of Carlini et al. 2022, "Membership inference attacks from first principles".
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.audit.attacks.membership import AttackSetup, Candidates, compute_confidences, judge, load_model
from feduhb.audit.result import UNLEARNED, Attack
from feduhb.audit.statistics import Scores, compute_roc
from feduhb.audit.verdict import Finding
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples
from feduhb.errors import DataError
from feduhb.runs.run import Run

FLOOR = 1e-6  # least pooled variance, as a share of the variance over all shadows and examples
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Shadows:
    """The confidence of each shadow model in each candidate, and whether it was trained on it."""

    candidates: Candidates
    confidences: Mapping[ClientId, Tensor]  # [K, n] logit-scaled
    inside: Mapping[ClientId, Tensor]  # [K, n] bool

    def attack(self, target: Mapping[ClientId, Tensor], *, canaries: bool = False) -> list[Scores]:
        """Return the scores of a model from its confidences [n] in each client's candidates, or in the canaries alone.

        Leave out clients without members or without others, and clients whose examples no shadow was trained on.
        """
        found: list[Scores] = []
        for client, confidences in self.confidences.items():
            chosen = self._choose(client, canaries)
            first = int(chosen[: len(self.candidates.members[client])].sum())
            if not 0 < first < int(chosen.sum()) or not self.inside[client][:, chosen].any():
                continue
            ratios = compute_likelihood_ratios(
                target[client][chosen], confidences[:, chosen], self.inside[client][:, chosen]
            )
            found.append(Scores(ratios[:first], ratios[first:]))
        return found

    def test(self, *, canaries: bool = False) -> list[Scores]:
        """Return the scores of each shadow, attacked with the other shadows; there the truth is known."""
        found: list[Scores] = []
        for client, confidences in self.confidences.items():
            chosen = self._choose(client, canaries)
            with contextlib.suppress(DataError):  # the other shadows saw none of the client's examples
                pairs = attack_shadows(confidences[:, chosen], self.inside[client][:, chosen])
                found += [Scores(*pair) for pair in pairs if len(pair[0]) and len(pair[1])]
        return found

    def _choose(self, client: ClientId, canaries: bool) -> Tensor:
        marked = self.candidates.mark_canaries(client)
        return marked if canaries else torch.ones_like(marked)


def attack_by_lira(
    setup: AttackSetup, shadows: Mapping[str, Shadows], margin: float
) -> list[tuple[Attack, Finding]]:
    """Attack by shadow models: all candidates, and the canaries alone. Skip a group if the shadows saw too few of it.

    Args:
        shadows: the shadows for each model: of its own method for an exact audited run, else of FedAvg.
    """
    confidences = {name: compute_all_confidences(run, setup.candidates) for name, run in setup.models.items()}
    found: list[tuple[Attack, Finding]] = []
    for canaries in [False, True] if setup.candidates.canaries.members else [False]:
        strata = {name: shadows[name].attack(confidences[name], canaries=canaries) for name in confidences}
        if all(strata.values()):
            tested = shadows[UNLEARNED].test(canaries=canaries)
            self_test = compute_roc(tested) if tested else None
            found.append(judge(setup, "LiRA", strata, margin, canaries=canaries, self_test=self_test))
    return found


def compute_all_confidences(run: Run, candidates: Candidates) -> dict[ClientId, Tensor]:
    """Return a model's confidence in every client's candidates [n]."""
    model, loss = load_model(run), run.federation.loss
    return {c: compute_confidences(model, Examples.of(*candidates.all(c)), loss) for c in candidates.members}


def compute_likelihood_ratios(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Return log N(φ; μ_in, s_in) - log N(φ; μ_out, s_out) for each of a client's examples, [n] in float64.

    Args:
        target: [n] confidences φ of the examples under the attacked model.
        shadows: [K, n] φ under each shadow model.
        inside: [K, n] whether that shadow was trained on that example.

    Each example has its own means; variances are pooled over examples, because there are few shadows. An example that
    was never inside (or never outside) takes the mean shift μ_in - μ_out of the others.
    """
    target, shadows = target.double(), shadows.double()
    _check(target, shadows, inside)
    (mu_in, left_in), (mu_out, left_out) = (_compute_means(shadows, seen) for seen in (inside, ~inside))
    apart = mu_in - mu_out  # NaN for examples that have only one of the two
    shift = mu_in.nanmean() - mu_out.nanmean() if bool(apart.isnan().all()) else apart.nanmean()
    known = mu_in, mu_out
    mu_in = torch.where(known[0].isnan(), known[1] + shift, known[0])
    mu_out = torch.where(known[1].isnan(), known[0] - shift, known[1])
    s_in, s_out = _compute_variances(shadows, left_in, left_out)
    return _log_normal(target, mu_in, s_in) - _log_normal(target, mu_out, s_out)


def attack_shadows(shadows: Tensor, inside: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Attack each shadow in which the client took part with all other shadows; return the scores inside and outside."""
    found = []
    for k in inside.any(dim=1).nonzero().flatten().tolist():
        rest = torch.arange(len(shadows)) != k
        scores = compute_likelihood_ratios(shadows[k], shadows[rest], inside[rest])
        found.append((scores[inside[k]], scores[~inside[k]]))
    return found


def _check(target: Tensor, shadows: Tensor, inside: Tensor) -> None:
    if not bool(target.isfinite().all() and shadows.isfinite().all()):
        raise DataError(
            "some confidences are not finite: the attacked model or a shadow's model has diverged; look at their test loss"
        )
    for seen, where in ((inside, "inside"), (~inside, "outside")):
        if not bool(seen.any()):
            raise DataError(
                f"LiRA needs examples {where} the training data of some shadow federation, but there are none; use more shadows"
            )


def _compute_means(shadows: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return each example's mean over the shadows in ``seen`` [n] and the residuals [K, n]; NaN where there are none."""
    counted = torch.where(seen, shadows, torch.nan)
    mean = counted.nanmean(dim=0)
    return mean, counted - mean


def _compute_variances(shadows: Tensor, left_in: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pooled variance of each side; a side without any example seen twice takes that of the other side."""
    least = FLOOR * shadows.var(correction=0) + TINY
    s_in, s_out = (_pool_variance(left) for left in (left_in, left_out))
    both = torch.where(s_in.isnan(), s_out, s_in), torch.where(s_out.isnan(), s_in, s_out)
    s_in, s_out = (side.nan_to_num(nan=0.0).clamp_min(least) for side in both)
    return s_in, s_out


def _pool_variance(left: Tensor) -> Tensor:
    """Return Σ left² / degrees of freedom, which are the shadows of each example minus one; NaN if there are none."""
    free = (left.isfinite().sum(dim=0) - 1).clamp_min(0).sum()
    return left.square().nansum() / free


def _log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -((x - mean).square() / variance + variance.log()) / 2  # without a constant that cancels
