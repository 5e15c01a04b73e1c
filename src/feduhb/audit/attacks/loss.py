"""The loss attack: a model has a smaller loss on the examples that it was trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from feduhb.audit.attacks.membership import AttackSetup, Candidates, compute_attack_roc, judge
from feduhb.audit.result import Attack
from feduhb.audit.statistics import Scores
from feduhb.audit.verdict import Finding
from feduhb.core.types import Loss
from feduhb.data.federation import Examples
from feduhb.engines.scoring import compute_outputs


def attack_by_loss(setup: AttackSetup, margin: float, seed: int) -> list[tuple[Attack, Finding]]:
    """Attack with a threshold on the loss: all forgotten data where it is the real data, and the canaries.

    Reference: Yeom et al. 2018.
    """
    whole, canaries = setup.candidates, setup.candidates.canaries
    found: list[tuple[Attack, Finding]] = []
    for part, is_wanted in ((whole, not setup.rehearsal), (canaries, True)):
        if is_wanted and part.members:
            strata = {n: score_losses(r.model(), part, r.federation.loss) for n, r in setup.models.items()}
            rocs = {name: compute_attack_roc(scores, seed) for name, scores in strata.items()}
            found.append(judge(setup, "loss", rocs, margin, canaries=part is canaries))
    return found


def score_losses(model: nn.Module, candidates: Candidates, loss: Loss) -> list[Scores]:
    """Return each client's members and others scored by minus their loss; clients that lack either are left out."""
    members, others = candidates.members, candidates.others
    both = [client for client in members if len(members[client]) and len(others.get(client, ()))]
    return [
        Scores(-compute_losses(model, members[client], loss), -compute_losses(model, others[client], loss))
        for client in both
    ]


def compute_losses(model: nn.Module, examples: Examples, loss: Loss) -> Tensor:
    """Return each example's loss, [n] in float64. A mean over a batch of one is that example's own."""
    x, y = examples.all()
    return (
        _losses(compute_outputs(model, x), y, loss) if len(examples) else torch.zeros(0, dtype=torch.float64)
    )


def compute_confidences(model: nn.Module, examples: Examples, loss: Loss) -> Tensor:
    """Return φ = log(p_y / (1 - p_y)), [n] in float64, where targets are labels; else minus the loss.

    It is computed as z_y - log Σ_{k ≠ y} exp z_k from the outputs z, so that nothing is lost as p_y nears 1.
    Its distribution over models is close to normal, which the loss's is not. Reference: Carlini et al. 2022.
    """
    if not len(examples):
        return torch.zeros(0, dtype=torch.float64)
    x, y = examples.all()
    given = compute_outputs(model, x)
    labels = y.dim() == 1 and not y.is_floating_point() and given.dim() == 2 and given.shape[1] > 1
    if not labels:
        return -_losses(given, y, loss)
    z, own = given.double(), y.long()[:, None]
    return z.gather(1, own).squeeze(1) - z.scatter(1, own, -torch.inf).logsumexp(dim=1)


def _losses(given: Tensor, y: Tensor, loss: Loss) -> Tensor:
    if loss is cross_entropy and given.dim() == 2:
        return cross_entropy(given.double(), y.double() if y.is_floating_point() else y, reduction="none")
    return torch.stack([loss(given[i : i + 1], y[i : i + 1]) for i in range(len(given))]).double()
