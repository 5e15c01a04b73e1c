"""Canaries: examples with a wrong label, which a model can know only if it was trained on them."""

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

    A model that generalises well treats a leaver's examples like all others, so an attack that fails on it
    shows nothing. The label of a canary can only be memorised: a model that was trained on it can be caught.
    The same share of the held-out examples is mislabelled too, for comparison.
    """

    clients: tuple[ClientId, ...]
    share: float = 0.25

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    def __post_init__(self) -> None:
        if not self.clients:
            raise ConfigError("canaries need clients that carry them; name some, such as c00,c01")
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"the canaries' share is {self.share}; give the share of examples to mislabel, such as 0.25"
            )


def plant_canaries(federation: Federation, canaries: Canaries, among: Forget | None = None) -> Federation:
    """Return a federation in which some examples of these clients are canaries.

    Examples that carry the federation's backdoor do not become canaries.

    Args:
        among: a request; only examples that it forgets become canaries.
    """
    if unknown := [client for client in canaries.clients if client not in federation.clients]:
        raise RequestError(
            f"the canaries name client {unknown[0]!r}, who is not in this federation of {len(federation.clients)}; "
            "use ids such as c00"
        )
    labels = _list_labels(federation)
    request = None if among is None else as_request(among)

    def plant(client: ClientId, examples: Examples, part: str) -> Examples:
        allowed = torch.ones(len(examples), dtype=torch.bool)
        if request is not None and part == "trained":
            allowed = request.mask(client, examples.keys, examples.targets)
        return _mislabel(federation, examples, allowed, canaries.share, labels, (client, part))

    return federation.replace(
        clients=_replace_examples(federation.clients, canaries, plant, "trained"),
        held_out=_replace_examples(federation.held_out, canaries, plant, "held out"),
    )


def _replace_examples(
    everyone: dict[ClientId, Examples],
    canaries: Canaries,
    plant: Callable[[ClientId, Examples, str], Examples],
    part: str,
) -> dict[ClientId, Examples]:
    return {c: plant(c, e, part) if c in canaries.clients else e for c, e in everyone.items()}


def _mislabel(
    federation: Federation,
    examples: Examples,
    allowed: Tensor,
    share: float,
    labels: Tensor,
    address: tuple[str, str],
) -> Examples:
    """Return the examples with wrong labels on a share of the allowed rows that do not carry the trigger."""
    x, y = examples.all()
    free = allowed & ~federation.backdoor.detect(x) if federation.backdoor and len(x) else allowed
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


def _list_labels(federation: Federation) -> Tensor:
    """Return the sorted labels of a federation."""
    everybody = (*federation.clients.values(), *federation.held_out.values(), federation.test)
    targets = [e.targets for e in everybody if len(e)]
    if any(t.dim() != 1 or t.is_floating_point() for t in targets):
        raise ConfigError(
            "canaries are wrong labels, and these targets are not labels; train without canaries"
        )
    labels = torch.unique(torch.cat(targets))
    if len(labels) < 2:
        raise ConfigError(f"canaries need a wrong label, but all examples have label {int(labels[0])}")
    return labels
