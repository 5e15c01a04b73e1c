"""From the name of a data set to a federation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from feduhb.core.flat import ModelSource
from feduhb.core.seeds import generator
from feduhb.core.types import ClientId
from feduhb.data.backdoor import Backdoor
from feduhb.data.canaries import Canaries, plant
from feduhb.data.federation import Examples, Federation
from feduhb.data.partition import partition as share_out
from feduhb.data.sources import Dataset, dataset_named
from feduhb.errors import ConfigError, RequestError
from feduhb.experiment.settings import FederationSettings
from feduhb.models import model_named

DEFAULT_MODEL = {"digits": "mlp"}


def load(
    name: str = "mnist-5k",
    *,
    clients: int = 20,
    partition: str = "iid",
    per_client: int | None = None,
    held_out: float = 0.25,
    backdoor: Backdoor | Sequence[ClientId] | None = None,
    canaries: Canaries | Sequence[ClientId] | None = None,
    model: str | ModelSource | None = None,
    seed: int = 0,
    data: str | Path | None = None,
) -> Federation:
    """Load a data set and share it out among clients c00, c01, ...

    Args:
        name: "mnist-5k" or "digits", which come with the installation; "mnist" or "cifar10" from files, downloaded where there are none.
        partition: "iid", "dirichlet:A" or "shards:K".
        per_client: images of each client, the held-out part included; None shares out all.
        held_out: share of every client's images that is never trained on.
        backdoor: clients whose data carries a trigger, or a `Backdoor` with settings of its own.
        canaries: clients of whose examples a quarter gets a wrong label, so that an audit can catch a model that
            remembers them, or `Canaries` with a share of its own.
        model: "cnn" (the paper's), "mlp", "softmax", a module or factory of your own, or None for the data set's.
        seed: of the partition and of every run over this federation.
        data: the folder with the files of "mnist" or "cifar10"; else FEDUHB_DATA, else a cache that they are downloaded into.
    """
    if isinstance(backdoor, str):
        backdoor = [backdoor]
    if isinstance(canaries, str):
        canaries = [canaries]
    planted = backdoor if backdoor is None or isinstance(backdoor, Backdoor) else Backdoor(tuple(backdoor))
    marked = canaries if canaries is None or isinstance(canaries, Canaries) else Canaries(tuple(canaries))
    settings = FederationSettings(
        data=name, clients=clients, partition=partition, per_client=per_client, held_out=held_out,
        model=model if isinstance(model, str) else None, backdoor=planted, canaries=marked,
    )  # fmt: skip
    own = None if isinstance(model, str) else model
    return build_federation(settings, seed, Path(data) if data else None, own)


def build_federation(
    settings: FederationSettings, seed: int, folder: Path | None = None, own: ModelSource | None = None
) -> Federation:
    """Make the federation that a config describes; a module of the user's own leaves it without a description."""
    source = dataset_named(settings.data, folder)
    if settings.backdoor and not 0 <= settings.backdoor.target < source.classes:
        raise ConfigError(
            f"the backdoor's target is {settings.backdoor.target}; give a class of {settings.data}, 0 to {source.classes - 1}"
        )
    name = settings.model or DEFAULT_MODEL.get(settings.data, "cnn")
    model = model_named(name, source.x.shape[1:], source.classes) if own is None else own
    shares = share_out(
        source.y, settings.partition, settings.clients, per_client=settings.per_client, seed=seed
    )
    trained: dict[ClientId, Examples] = {}
    held: dict[ClientId, Examples] = {}
    for client, rows in shares.items():
        order = rows[torch.randperm(len(rows), generator=generator(seed, "held out", client))]
        count = min(
            len(rows) - 1, math.floor(len(rows) * settings.held_out + 1e-9)
        )  # 0.29 of 100 is 29, rounding or not
        trained[client] = _examples(
            source, order[count:].sort().values, settings.backdoor, seed, client, "trained"
        )
        held[client] = _examples(
            source, order[:count].sort().values, settings.backdoor, seed, client, "held out"
        )
    if settings.backdoor and (unknown := [c for c in settings.backdoor.clients if c not in shares]):
        raise RequestError(
            f"the backdoor names client {unknown[0]!r}, who is not in this federation of {len(shares)}; use ids such as c00"
        )
    federation = Federation(
        trained, (source.test_x, source.test_y), model,
        seed=seed, held_out=held, backdoor=settings.backdoor, about=settings if own is None else None,
    )  # fmt: skip
    return plant(federation, settings.canaries) if settings.canaries else federation


def _examples(
    source: Dataset, rows: Tensor, backdoor: Backdoor | None, seed: int, client: ClientId, part: str
) -> Examples:
    if backdoor is None or client not in backdoor.clients:
        return Examples.of(source.x, source.y, rows)
    return Examples.of(*backdoor.poison(source.x[rows], source.y[rows], seed, client, part))
