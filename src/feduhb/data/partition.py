"""Partition a data set among clients: iid, by Dirichlet proportions, or with a few classes for each client."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from feduhb.core.checks import check_whole
from feduhb.core.seeds import seed_for
from feduhb.core.types import ClientId
from feduhb.errors import ConfigError, DataError

MOST_DRAWS = 10_000
Shares = list[np.ndarray]  # the rows of each client
Rng = np.random.Generator
# A function of the labels, the number of clients, the examples for each client (None: share out all), and a generator
Partition = Callable[[np.ndarray, int, int | None, Rng], Shares]


def make_client_ids(count: int) -> list[ClientId]:
    """Return c00, c01, ... with as many digits as the last id needs, but at least two."""
    width = max(2, len(str(count - 1)))
    return [f"c{i:0{width}d}" for i in range(count)]


def partition_rows(
    y: Tensor, spec: str, clients: int, *, per_client: int | None = None, seed: int = 0
) -> dict[ClientId, Tensor]:
    """Return the rows of each client in a data set with labels ``y`` [N].

    Args:
        spec: "iid"; "dirichlet:A" (the smaller A, the fewer classes a client has; drawn again until every
            client has examples); "shards:K" (K classes for each client).
        per_client: the number of examples for each client; None shares out all.
    """
    share = parse_partition(spec)
    check_whole("clients", clients)
    if per_client is not None:
        check_whole("per_client", per_client)
    need = clients * (per_client or 1)
    if need > len(y):
        raise DataError(
            f"{clients} clients with {per_client or 1} examples each need {need} examples, but the data set has {len(y)}; lower clients or per_client"
        )
    shares = share(y.numpy(), clients, per_client, np.random.default_rng(seed_for(seed, "partition")))
    sorted_rows = (torch.from_numpy(np.sort(rows)) for rows in shares)
    return dict(zip(make_client_ids(clients), sorted_rows, strict=True))


def parse_partition(spec: str) -> Partition:
    """Return the function for a partition's name."""
    kind, _, value = spec.partition(":")
    if spec == "iid":
        return _share_iid
    if kind not in ("dirichlet", "shards"):
        raise ConfigError(f"there is no partition {spec!r}; write iid, dirichlet:0.5 or shards:2")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"partition {spec!r} needs a positive number; write dirichlet:0.5 or shards:2")
    return functools.partial(_share_dirichlet if kind == "dirichlet" else _share_shards, number)


def _share_iid(y: np.ndarray, clients: int, per_client: int | None, rng: Rng) -> Shares:
    order = rng.permutation(len(y))
    return np.array_split(order if per_client is None else order[: clients * per_client], clients)


def _shuffle_classes(y: np.ndarray, rng: Rng) -> dict[int, np.ndarray]:
    """Return the rows of each class, shuffled."""
    return {int(k): rng.permutation(np.flatnonzero(y == k)) for k in np.unique(y)}


def _share_dirichlet(alpha: float, y: np.ndarray, clients: int, per_client: int | None, rng: Rng) -> Shares:
    """Divide the examples of each class among the clients in Dirichlet(alpha) proportions."""
    if per_client is not None:
        return _mix_classes(alpha, y, clients, per_client, rng)
    for _ in range(MOST_DRAWS):
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for rows in _shuffle_classes(y, rng).values():
            cuts = (np.cumsum(rng.dirichlet([alpha] * clients))[:-1] * len(rows)).round().astype(int)
            for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                part.append(piece)
        shares = [np.concatenate(part) for part in parts]
        if min(len(share) for share in shares) > 0:
            return shares
    raise DataError(
        f"dirichlet:{alpha:g} leaves a client without examples; use a larger number, fewer clients, or per_client"
    )


def _mix_classes(alpha: float, y: np.ndarray, clients: int, size: int, rng: Rng) -> Shares:
    """Return ``size`` rows for each client, with its classes in Dirichlet(alpha) proportions of its own.

    Rows of a class that has none left are replaced by rows of the class with the most rows.
    """
    pools = _shuffle_classes(y, rng)
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


def _share_shards(classes: float, y: np.ndarray, clients: int, per_client: int | None, rng: Rng) -> Shares:
    pools = _shuffle_classes(y, rng)
    each = int(classes)
    if each != classes or each > len(pools):
        raise ConfigError(
            f"shards:{classes:g} cannot give each client {classes:g} classes; write a whole number from 1 to {len(pools)}"
        )
    if per_client is not None and per_client < each:
        raise ConfigError(f"per_client is {per_client}; give at least {each} for shards:{each}")
    names = rng.permutation(list(pools))
    seats = rng.permutation(clients)
    held = [[int(names[(seat * each + j) % len(names)]) for j in range(each)] for seat in seats]
    used = [k for k in pools if any(k in mine for mine in held)]
    pieces = {k: iter(_cut_class(pools[k], k, held, per_client, each)) for k in used}
    return [np.concatenate([next(pieces[k]) for k in mine]) for mine in held]


def _cut_class(
    rows: np.ndarray, k: int, held: list[list[int]], per_client: int | None, each: int
) -> list[np.ndarray]:
    """Divide the examples of one class among the clients that hold it: evenly, or by per_client."""
    holders = [mine for mine in held if k in mine]
    if per_client is None:
        pieces = np.array_split(rows, len(holders))
        if not len(pieces[-1]):
            raise DataError(
                f"class {k} has {len(rows)} examples for {len(holders)} clients; use fewer clients or classes"
            )
        return pieces
    quotas = [per_client // each + (mine.index(k) < per_client % each) for mine in holders]
    if sum(quotas) > len(rows):
        raise DataError(
            f"per_client = {per_client} needs {sum(quotas)} examples of class {k}, but there are {len(rows)}; lower per_client"
        )
    return np.split(rows[: sum(quotas)], np.cumsum(quotas)[:-1])
