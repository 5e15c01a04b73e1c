"""Canaries: examples with a wrong label among the leavers' data, which nothing but memory can tell a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.core.seeds import generator
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Forget, as_request
from feduhb.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True)
class Canaries:
    """A share of some clients' examples gets a label drawn among the wrong ones.

    A model that generalises well treats a leaver's examples like any others, so an attack that fails on it
    shows nothing. The label of a canary can only be remembered: a model that trained on it can be caught.
    As large a share of the held-out examples is mislabelled too, to compare with.
    """

    clients: tuple[ClientId, ...]
    share: float = 0.25

    def __post_init__(self) -> None:
        if not self.clients:
            raise ConfigError("canaries need clients that carry them; name some, such as c00,c01")
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"the canaries' share is {self.share}; give the share of examples to mislabel, such as 0.25"
            )


def plant(federation: Federation, canaries: Canaries, among: Forget | None = None) -> Federation:
    """Give the federation with canaries in it; ``among`` plants only into what a request takes away.

    Examples that carry the federation's backdoor are left alone. Nobody else's examples change.
    """
    if unknown := [client for client in canaries.clients if client not in federation.clients]:
        raise RequestError(
            f"the canaries name client {unknown[0]!r}, who is not in this federation of {len(federation.clients)}; "
            "use ids such as c00"
        )
    labels = _labels(federation)
    request = None if among is None else as_request(among)

    def planted(client: ClientId, examples: Examples, part: str) -> Examples:
        allowed = torch.ones(len(examples), dtype=torch.bool)
        if request is not None and part == "trained":
            allowed = request.mask(client, examples.keys, examples.targets)
        return _mislabelled(federation, examples, allowed, canaries.share, labels, (client, part))

    return federation.replace(
        clients=_changed(federation.clients, canaries, planted, "trained"),
        held_out=_changed(federation.held_out, canaries, planted, "held out"),
    )


def _changed(
    everyone: dict[ClientId, Examples],
    canaries: Canaries,
    planted: Callable[[ClientId, Examples, str], Examples],
    part: str,
) -> dict[ClientId, Examples]:
    return {c: planted(c, e, part) if c in canaries.clients else e for c, e in everyone.items()}


def _mislabelled(
    federation: Federation,
    examples: Examples,
    allowed: Tensor,
    share: float,
    labels: Tensor,
    address: tuple[str, str],
) -> Examples:
    """Draw rows among those allowed and free of the trigger, and for each a label that is not its own."""
    x, y = examples.all()
    free = allowed & ~federation.backdoor.carried(x) if federation.backdoor and len(x) else allowed
    draw = generator(federation.seed, "canaries", *address)
    order = torch.randperm(len(x), generator=draw)
    count = math.floor(share * int(allowed.sum()) + 0.5)
    chosen = order[free[order]][:count]
    places = torch.searchsorted(labels, y[chosen])
    others = torch.randint(1, len(labels), (len(chosen),), generator=draw)
    wrong = y.clone()
    wrong[chosen] = labels[(places + others) % len(labels)]
    marked = torch.zeros(len(x), dtype=torch.bool)
    marked[chosen] = True
    return Examples(x, wrong, torch.arange(len(x)), examples.keys, marked)


def _labels(federation: Federation) -> Tensor:
    """Give the sorted labels of a federation."""
    everybody = (*federation.clients.values(), *federation.held_out.values(), federation.test)
    targets = [e.targets for e in everybody if len(e)]
    if any(t.dim() != 1 or t.is_floating_point() for t in targets):
        raise ConfigError(
            "canaries are wrong labels, and these targets are no labels; train without canaries"
        )
    labels = torch.unique(torch.cat(targets))
    if len(labels) < 2:
        raise ConfigError(f"canaries need a wrong label, but all examples have label {int(labels[0])}")
    return labels
