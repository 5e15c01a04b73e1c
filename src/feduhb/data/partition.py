"""Partition a data set among clients by a seeded draw: iid, Dirichlet, or a few classes for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from feduhb.core.seeds import seed_for
from feduhb.core.types import ClientId
from feduhb.errors import ConfigError, DataError

MOST_DRAWS = 10_000
Shares = list[np.ndarray]  # the rows of each client
Partition = Callable[[np.ndarray, int, int | None, np.random.Generator], Shares]
# of the labels, the number of clients, the examples for each (None: all there are), and the generator


def make_client_ids(count: int) -> list[ClientId]:
    """Return c00, c01, ... with as many digits as the last one needs, but at least two."""
    width = max(2, len(str(count - 1)))
    return [f"c{i:0{width}d}" for i in range(count)]


def partition_rows(
    y: Tensor, spec: str, clients: int, *, per_client: int | None = None, seed: int = 0
) -> dict[ClientId, Tensor]:
    """Return the rows of each client in a data set with labels ``y`` [N].

    Args:
        spec: "iid"; "dirichlet:A" (the smaller A, the fewer classes a client has; drawn again until every
            client has examples); "shards:K" (K classes for each client).
        per_client: the number of examples that every client gets; None shares out all there are.
    """
    share = parse_partition(spec)
    if clients < 1:
        raise ConfigError(f"clients is {clients}; give 1 or more")
    if per_client is not None and per_client < 1:
        raise ConfigError(f"per_client is {per_client}; give 1 or more")
    need = clients * (per_client or 1)
    if need > len(y):
        raise DataError(
            f"{clients} clients with {per_client or 1} examples each need {need}, but the data set has {len(y)}; ask for fewer"
        )
    shares = share(y.numpy(), clients, per_client, np.random.default_rng(seed_for(seed, "partition")))
    return {
        client: torch.from_numpy(np.sort(rows))
        for client, rows in zip(make_client_ids(clients), shares, strict=True)
    }


def parse_partition(spec: str) -> Partition:
    """Return the function that a partition's name stands for."""
    kind, _, value = spec.partition(":")
    if spec == "iid":
        return _share_iid
    if kind == "dirichlet":
        return functools.partial(_share_dirichlet, _parse_number(spec, value))
    if kind == "shards":
        return functools.partial(_share_shards, _parse_number(spec, value))
    raise ConfigError(f"there is no partition {spec!r}; write iid, dirichlet:0.5 or shards:2")


def _parse_number(spec: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"partition {spec!r} needs a positive number; write dirichlet:0.5 or shards:2")
    return number


def _share_iid(labels: np.ndarray, clients: int, per_client: int | None, rng: np.random.Generator) -> Shares:
    order = rng.permutation(len(labels))
    return np.array_split(order if per_client is None else order[: clients * per_client], clients)


def _shuffle_classes(labels: np.ndarray, rng: np.random.Generator) -> dict[int, np.ndarray]:
    """Return the rows of each class, shuffled."""
    return {int(k): rng.permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)}


def _share_dirichlet(
    alpha: float, labels: np.ndarray, clients: int, per_client: int | None, rng: np.random.Generator
) -> Shares:
    if per_client is None:
        return _cut_classes(alpha, labels, clients, rng)
    return _mix_classes(alpha, labels, clients, per_client, rng)


def _cut_classes(alpha: float, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Shares:
    """Cut each class among the clients in Dirichlet(alpha) proportions."""
    for _ in range(MOST_DRAWS):
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for rows in _shuffle_classes(labels, rng).values():
            cuts = (np.cumsum(rng.dirichlet([alpha] * clients))[:-1] * len(rows)).round().astype(int)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        shares = [np.concatenate(part) for part in parts]
        if min(len(share) for share in shares) > 0:
            return shares
    raise DataError(
        f"dirichlet:{alpha:g} left a client empty in {MOST_DRAWS} draws; use a larger A, fewer clients, or per_client"
    )


def _mix_classes(
    alpha: float, labels: np.ndarray, clients: int, size: int, rng: np.random.Generator
) -> Shares:
    """Give every client ``size`` rows, its classes in Dirichlet(alpha) proportions of its own.

    If a class has no rows left, rows of the class with the most rows take their place.
    """
    pools = _shuffle_classes(labels, rng)
    shares: Shares = []
    for mix in rng.dirichlet([alpha] * len(pools), size=clients):
        taken: list[np.ndarray] = []
        wanted = rng.multinomial(size, mix)
        for k, count in zip(pools, wanted, strict=True):
            taken.append(pools[k][:count])
            pools[k] = pools[k][count:]
        while (short := size - sum(map(len, taken))) > 0:
            fullest = max(pools, key=lambda k: len(pools[k]))
            taken.append(pools[fullest][:short])
            pools[fullest] = pools[fullest][short:]
        shares.append(np.concatenate(taken))
    return shares


def _share_shards(
    classes: float, labels: np.ndarray, clients: int, per_client: int | None, rng: np.random.Generator
) -> Shares:
    pools = _shuffle_classes(labels, rng)
    each = int(classes)
    if each != classes or each > len(pools):
        raise ConfigError(
            f"shards:{classes:g} asks for {classes:g} classes a client; give a whole number of 1 to {len(pools)}"
        )
    if per_client is not None and per_client < each:
        raise ConfigError(
            f"shards:{each} asks for {each} classes a client, but per_client is {per_client}; give at least {each}"
        )
    names = rng.permutation(list(pools))
    seats = rng.permutation(clients)
    held = [[int(names[(seat * each + j) % len(names)]) for j in range(each)] for seat in seats]
    pieces = {
        k: iter(_cut_class(rows, k, held, per_client, each))
        for k, rows in pools.items()
        if any(k in mine for mine in held)
    }
    return [np.concatenate([next(pieces[k]) for k in mine]) for mine in held]


def _cut_class(
    rows: np.ndarray, k: int, held: list[list[int]], per_client: int | None, each: int
) -> list[np.ndarray]:
    """Cut one class among the clients that hold it: evenly, or by the quota of each client."""
    holders = [mine for mine in held if k in mine]
    if per_client is None:
        pieces = np.array_split(rows, len(holders))
        if not len(pieces[-1]):
            raise DataError(
                f"class {k} has {len(rows)} examples for {len(holders)} clients; use fewer clients or fewer classes each"
            )
        return pieces
    quotas = [per_client // each + (mine.index(k) < per_client % each) for mine in holders]
    if sum(quotas) > len(rows):
        raise DataError(
            f"{per_client} examples for everyone need {sum(quotas)} of class {k}, but there are {len(rows)}; lower per_client"
        )
    return np.split(rows[: sum(quotas)], np.cumsum(quotas)[:-1])
