"""Canaries: examples with a wrong label, which a model can predict only if it was trained on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from feduhb.core.seeds import generator
from feduhb.core.types import ClientId
from feduhb.data.federation import Examples, Federation
from feduhb.data.request import Forget, as_request
from feduhb.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True)
class Canaries:
    """Wrong labels, drawn at random, for a share of some clients' examples.

    A model that generalises well treats a leaver's examples like all others, so that an attack on them finds nothing.
    The label of a canary can only be memorised, which an attack can detect. The same share of the held-out examples
    gets wrong labels too, for comparison.
    """

    clients: tuple[ClientId, ...]
    share: float = 0.25

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    def __post_init__(self) -> None:
        if not self.clients:
            raise ConfigError("canaries need clients that carry them; name some, such as c00,c01")
        if not 0 < self.share <= 1:
            raise ConfigError(f"the canaries' share is {self.share}; give a share above 0 and up to 1")


def plant_canaries(federation: Federation, canaries: Canaries, among: Forget | None = None) -> Federation:
    """Return a federation in which some examples of these clients are canaries.

    Examples that carry the federation's backdoor do not become canaries.

    Args:
        among: a request, to choose canaries only among the examples that it forgets.
    """
    if unknown := [client for client in canaries.clients if client not in federation.clients]:
        raise RequestError(
            f"the canaries name client {unknown[0]!r}, which is not in this federation of {len(federation.clients)} clients; "
            "use ids such as c00"
        )
    everyone = (*federation.clients.values(), *federation.held_out.values(), federation.test)
    targets = [examples.targets for examples in everyone if len(examples)]
    if any(t.dim() != 1 or t.is_floating_point() for t in targets):
        raise ConfigError("canaries need labels, but these targets are not labels; train without canaries")
    labels = torch.unique(torch.cat(targets))  # sorted
    if len(labels) < 2:
        raise ConfigError(f"canaries need two labels, but all are {int(labels[0])}; train without canaries")
    request = None if among is None else as_request(among)

    def plant(client: ClientId, examples: Examples, part: str) -> Examples:
        if client not in canaries.clients:
            return examples
        x, y = examples.all()
        count = len(examples)
        allowed = torch.ones(count, dtype=torch.bool)
        if request is not None and part == "trained":
            allowed = request.mask(client, examples.keys, examples.targets)
        free = allowed & ~federation.backdoor.detect(x) if federation.backdoor and count else allowed
        draw = generator(federation.seed, "canaries", client, part)
        order = torch.randperm(count, generator=draw)
        chosen = order[free[order]][: math.floor(canaries.share * int(allowed.sum()) + 0.5)]
        marked = torch.zeros(count, dtype=torch.bool)
        marked[chosen] = True
        steps = torch.randint(1, len(labels), (len(chosen),), generator=draw)  # from the right label
        wrong = y.clone()
        wrong[chosen] = labels[(torch.searchsorted(labels, y[chosen]) + steps) % len(labels)]
        planted = Examples(x, wrong, torch.arange(count), examples.keys, marked)
        if examples.plain is None:
            return planted
        return replace(planted, plain=replace(planted, x=examples.plain.all()[0]))

    return federation.replace(
        clients={c: plant(c, examples, "trained") for c, examples in federation.clients.items()},
        held_out={c: plant(c, examples, "held out") for c, examples in federation.held_out.items()},
    )
