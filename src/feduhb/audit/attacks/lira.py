"""LiRA: is this output likelier from models that were trained on the example, or from models that were not?

Both are learnt from K shadow federations, in each of which an example was inside or not by the fall of a coin. Online
attack of Carlini et al. 2022, "Membership inference attacks from first principles".
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.audit.attacks.loss import compute_confidences
from feduhb.audit.attacks.membership import AttackSetup, Candidates, compute_attack_roc, judge
from feduhb.audit.result import UNLEARNED, Attack
from feduhb.audit.statistics import Scores
from feduhb.audit.verdict import Finding
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples
from feduhb.errors import DataError
from feduhb.runs.run import Run

FLOOR = 1e-6  # of the variance over all shadows and examples: the least that a pooled variance may be
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Shadows:
    """The confidence of each shadow model in each candidate, and whether it was trained on it."""

    candidates: Candidates
    confidences: Mapping[ClientId, Tensor]  # [K, n] logit-scaled
    inside: Mapping[ClientId, Tensor]  # [K, n] bool

    def attack(self, target: Mapping[ClientId, Tensor], *, canaries: bool = False) -> list[Scores]:
        """Return the scores of a model from its confidences [n] in every client's candidates, or in the canaries alone.

        Clients without members or others are left out, and those none of whose examples was ever inside a shadow.
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
        """Return the scores of each shadow attacked with the others, where the truth is known."""
        found: list[Scores] = []
        for client, confidences in self.confidences.items():
            chosen = self._choose(client, canaries)
            with contextlib.suppress(DataError):  # without one of its shadows nothing of the client is inside
                pairs = attack_shadows(confidences[:, chosen], self.inside[client][:, chosen])
                found += [Scores(*pair) for pair in pairs if len(pair[0]) and len(pair[1])]
        return found

    def _choose(self, client: ClientId, canaries: bool) -> Tensor:
        marked = self.candidates.mark_canaries(client)
        return marked if canaries else torch.ones_like(marked)


def attack_by_lira(
    setup: AttackSetup, shadows: Mapping[str, Shadows], margin: float, seed: int
) -> list[tuple[Attack, Finding]]:
    """Attack with shadow models: all candidates, and the canaries; leaving out a group if too few of its examples were in any shadow's training data.

    Args:
        shadows: by model: those of the audited run's own method for it, those of FedAvg for the controls.
    """
    confidences = {name: compute_all_confidences(run, setup.candidates) for name, run in setup.models.items()}
    found: list[tuple[Attack, Finding]] = []
    for canaries in [False, True] if setup.candidates.canaries.members else [False]:
        strata = {name: shadows[name].attack(confidences[name], canaries=canaries) for name in confidences}
        if all(strata.values()):
            tested = shadows[UNLEARNED].test(canaries=canaries)
            rocs = {name: compute_attack_roc(scores, seed) for name, scores in strata.items()}
            self_test = compute_attack_roc(tested, seed) if tested else None
            found.append(judge(setup, "LiRA", rocs, margin, canaries=canaries, self_test=self_test))
    return found


def compute_all_confidences(run: Run, candidates: Candidates) -> dict[ClientId, Tensor]:
    """Return a model's confidence in every client's candidates [n]."""
    model, loss = run.model(), run.federation.loss
    return {c: compute_confidences(model, Examples.of(*candidates.all(c)), loss) for c in candidates.members}


def compute_likelihood_ratios(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Return log N(φ; μ_in, s_in) - log N(φ; μ_out, s_out) for each of a client's examples, [n] in float64.

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


def attack_shadows(shadows: Tensor, inside: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the scores of inside and outside examples, of each shadow the client took part in attacked with all others.

    It shows what the attack can do where the truth is known; a shadow is never attacked with itself.
    """
    found = []
    for k in inside.any(dim=1).nonzero().flatten().tolist():
        rest = torch.arange(len(shadows)) != k
        scores = compute_likelihood_ratios(shadows[k], shadows[rest], inside[rest])
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
    """Return each example's mean over the shadows that count, NaN where none does [n], and what is left over [K, n], NaN elsewhere."""
    counted = torch.where(seen, shadows, torch.nan)
    mean = counted.nanmean(dim=0)
    return mean, counted - mean


def _shift(mu_in: Tensor, mu_out: Tensor) -> Tensor:
    """Return the mean of μ_in - μ_out over the examples that have both; of all where none has."""
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
    """Return Σ left² over its degrees of freedom, one fewer than the shadows of each example; NaN where there is none."""
    free = (left.isfinite().sum(dim=0) - 1).clamp_min(0).sum()
    return left.square().nansum() / free


def _log_normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -((x - mean).square() / variance + variance.log()) / 2  # but for a constant that cancels
