"""Sharing a data set out among clients, seeded: iid, Dirichlet, or a few classes each."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from feduhb.core.seeds import seed_for
from feduhb.core.types import ClientId
from feduhb.errors import ConfigError, DataError

TRIES = 10_000
Share = list[np.ndarray]


def client_names(count: int) -> list[ClientId]:
    """Give c00, c01, ... with as many digits as the last one needs, two at least."""
    width = max(2, len(str(count - 1)))
    return [f"c{i:0{width}d}" for i in range(count)]


def partition(
    y: Tensor, spec: str, clients: int, *, per_client: int | None = None, seed: int = 0
) -> dict[ClientId, Tensor]:
    """Give each client its rows of a data set with labels ``y`` [N].

    Args:
        spec: "iid"; "dirichlet:A" (smaller A: fewer classes a client; redrawn until nobody is empty);
            "shards:K" (K classes a client).
        per_client: examples for everyone, the same number; None shares out all there are.
    """
    maker = read_partition(spec)
    if clients < 1:
        raise ConfigError(f"clients is {clients}; give 1 or more")
    if per_client is not None and per_client < 1:
        raise ConfigError(f"per_client is {per_client}; give 1 or more")
    need = clients * (per_client or 1)
    if need > len(y):
        raise DataError(
            f"{clients} clients with {per_client or 1} examples each need {need}, but the data set has {len(y)}; ask for fewer"
        )
    labels = y.numpy()
    rng = np.random.default_rng(seed_for(seed, "partition"))
    shares = maker(labels, clients, per_client, rng)
    return {
        name: torch.from_numpy(np.sort(rows))
        for name, rows in zip(client_names(clients), shares, strict=True)
    }


def read_partition(spec: str) -> Callable[..., Share]:
    """Give the function that a partition's name stands for."""
    kind, _, value = spec.partition(":")
    makers: dict[str, Callable[[], Callable[..., Share]]] = {
        "iid": lambda: _iid,
        "dirichlet": lambda: _dirichlet(_number(spec, value)),
        "shards": lambda: _shards(_number(spec, value)),
    }
    if kind not in makers or (kind == "iid" and spec != "iid"):
        raise ConfigError(f"there is no partition {spec!r}; write iid, dirichlet:0.5 or shards:2")
    return makers[kind]()


def _number(spec: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"partition {spec!r} needs a positive number; write dirichlet:0.5 or shards:2")
    return number


def _iid(labels: np.ndarray, clients: int, per_client: int | None, rng: np.random.Generator) -> Share:
    order = rng.permutation(len(labels))
    return np.array_split(order if per_client is None else order[: clients * per_client], clients)


def _pools(labels: np.ndarray, rng: np.random.Generator) -> dict[int, np.ndarray]:
    """The rows of each class, shuffled."""
    return {int(k): rng.permutation(np.flatnonzero(labels == k)) for k in np.unique(labels)}


def _dirichlet(alpha: float) -> Callable[..., Share]:
    def unequal(labels: np.ndarray, clients: int, rng: np.random.Generator) -> Share:
        """Each class is cut among the clients in Dirichlet(A) proportions."""
        for _ in range(TRIES):
            parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
            for rows in _pools(labels, rng).values():
                cuts = (np.cumsum(rng.dirichlet([alpha] * clients))[:-1] * len(rows)).round().astype(int)
                for part, piece in zip(parts, np.split(rows, cuts), strict=True):
                    part.append(piece)
            shares = [np.concatenate(part) for part in parts]
            if min(len(share) for share in shares) > 0:
                return shares
        raise DataError(
            f"dirichlet:{alpha:g} left a client empty in {TRIES} draws; use a larger A, fewer clients, or per_client"
        )

    def equal(labels: np.ndarray, clients: int, size: int, rng: np.random.Generator) -> Share:
        """Each client's classes follow a Dirichlet(A) draw of its own; where a class has run out, the fullest fills in."""
        pools = _pools(labels, rng)
        shares: Share = []
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

    def share(labels: np.ndarray, clients: int, per_client: int | None, rng: np.random.Generator) -> Share:
        return (
            unequal(labels, clients, rng) if per_client is None else equal(labels, clients, per_client, rng)
        )

    return share


def _shards(classes: float) -> Callable[..., Share]:
    def share(labels: np.ndarray, clients: int, per_client: int | None, rng: np.random.Generator) -> Share:
        pools = _pools(labels, rng)
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
            k: iter(_cut(rows, k, held, per_client, each))
            for k, rows in pools.items()
            if any(k in h for h in held)
        }
        return [np.concatenate([next(pieces[k]) for k in mine]) for mine in held]

    return share


def _cut(
    rows: np.ndarray, k: int, held: list[list[int]], per_client: int | None, each: int
) -> list[np.ndarray]:
    """Cut one class among the clients that hold it: evenly, or by each one's equal quota."""
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
