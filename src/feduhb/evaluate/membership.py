"""The loss attack: what a model was trained on, it gets right more easily."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from feduhb.core.types import ClientId, Loss
from feduhb.data.federation import Examples
from feduhb.evaluate.accuracy import outputs
from feduhb.evaluate.roc import Scores


def losses(model: nn.Module, examples: Examples, loss: Loss) -> Tensor:
    """Give each example's loss, [n] in float64. A mean over a batch of one is that example's own."""
    x, y = examples.all()
    return _losses(outputs(model, x), y, loss) if len(examples) else torch.zeros(0, dtype=torch.float64)


def confidences(model: nn.Module, examples: Examples, loss: Loss) -> Tensor:
    """Give φ = log(p_y / (1 - p_y)), [n] in float64, where targets are labels; else minus the loss.

    It is computed as z_y - log Σ_{k ≠ y} exp z_k from the outputs z, so that nothing is lost as p_y nears 1.
    Its distribution over models is close to normal, which the loss's is not. Reference: Carlini et al. 2022.
    """
    if not len(examples):
        return torch.zeros(0, dtype=torch.float64)
    x, y = examples.all()
    given = outputs(model, x)
    labels = y.dim() == 1 and not y.is_floating_point() and given.dim() == 2 and given.shape[1] > 1
    if not labels:
        return -_losses(given, y, loss)
    z, own = given.double(), y.long()[:, None]
    return z.gather(1, own).squeeze(1) - z.scatter(1, own, -torch.inf).logsumexp(dim=1)


def loss_scores(
    model: nn.Module,
    members: Mapping[ClientId, Examples],
    others: Mapping[ClientId, Examples],
    loss: Loss,
) -> list[Scores]:
    """Score each client's members and held-out examples by minus their loss; clients that lack either are left out.

    Reference: Yeom et al. 2018.
    """
    both = [client for client in members if len(members[client]) and len(others.get(client, ()))]
    return [
        Scores(-losses(model, members[client], loss), -losses(model, others[client], loss)) for client in both
    ]


def _losses(given: Tensor, y: Tensor, loss: Loss) -> Tensor:
    if loss is cross_entropy and given.dim() == 2:
        return cross_entropy(given.double(), y.double() if y.is_floating_point() else y, reduction="none")
    return torch.stack([loss(given[i : i + 1], y[i : i + 1]) for i in range(len(given))]).double()
