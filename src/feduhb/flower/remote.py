"""A federation whose data stays where it is: experiments and the erasure desk over a Flower grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from feduhb.core.flat import ModelSource
from feduhb.core.types import ClientId, Engine, Local, Loss
from feduhb.data.federation import Examples, Federation, Pair
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import DataError, RequestError
from feduhb.flower.engine import FlowerEngine
from feduhb.flower.identity import Roster
from feduhb.flower.serving import Options, wait
from feduhb.flower.wire import fresh_arrays


@dataclass(frozen=True, slots=True)
class Elsewhere(Examples):
    """Stands for a client's examples, which are the client's alone."""

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Refuse."""
        self._refuse()

    def all(self) -> tuple[Tensor, Tensor]:
        """Refuse."""
        self._refuse()

    @property
    def targets(self) -> Tensor:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DataError(
            "the clients' examples are not here but with the clients; what needs them, such as a membership attack, must run there"
        )


class Remote(Federation):
    """A `feduhb.Federation` of the clients of a Flower grid, made by `connected`.

    The server knows their ids, the test set and the model. Requests are noted and told to the clients, who drop their rows
    or, forgotten whole, their cache.
    """

    def __init__(
        self,
        clients: Mapping[ClientId, Examples | Pair],
        test: Examples | Pair,
        model: ModelSource,
        *,
        roster: Roster,
        options: Options,
        forgot: Request | None = None,
        **known: Any,
    ) -> None:
        super().__init__(clients, test, model, **known)
        self.roster = roster
        self.options = options
        self.forgot = forgot

    def __repr__(self) -> str:
        return f"Remote({len(self.clients)} clients with their own data, {len(self.test)} examples for testing, seed {self.seed})"

    def engine(self, federation: Federation, local: Local) -> Engine:
        """Make the engine of a run over this federation, or over what remains of it: ``engine=federation.engine``."""
        options, forgot = self.options, federation.forgot if isinstance(federation, Remote) else None
        return FlowerEngine(
            self.roster.grid, fresh_arrays(self.model, self.seed), local, seed=self.seed, forget=forgot,
            min_replies=options.min_replies, timeout=options.timeout, max_norm=options.max_norm,
            max_examples=options.max_examples, tell_leavers=options.tell_leavers, roster=self.roster,
        )  # fmt: skip

    def without(self, forget: Forget) -> Remote:
        """Give the federation that remains: whole clients leave it, rows and classes are for the clients to drop."""
        request = self.roster.resolved(as_request(forget), self.clients)
        clients = {client: e for client, e in self.clients.items() if client not in request.clients}
        if not clients:
            raise RequestError(
                "nobody would remain to retrain on; leave at least one client, or delete the model instead"
            )
        return self.replace(
            clients=clients, forgot=request if self.forgot is None else self.forgot.merged(request)
        )

    def forgotten(self, forget: Forget) -> dict[ClientId, Examples]:
        """Name the clients that a request touches; where a class is forgotten that may be any. A key that nobody has is refused."""
        request = self.roster.resolved(as_request(forget), self.clients)
        before = () if self.forgot is None else (*self.forgot.clients, *self.forgot.rows)
        known = {*self.clients, *self.roster.names, *before}
        for client in (*request.clients, *request.rows):
            if client not in known:
                raise RequestError(
                    f"nobody with the key {client} took part or was ever seen here; see that it is spelled right: "
                    "feduhb.flower.key_id('its-key.pub')"
                )
        touched = self.clients if request.classes else {*request.clients, *request.rows}
        return {client: examples for client, examples in self.clients.items() if client in touched}

    def fingerprints(self) -> dict[ClientId, str]:
        """Name who takes part, and what each was told to drop; what they hold is theirs to know."""
        return {client: f"remote, {self._dropped(client)}" for client in sorted(self.clients)}

    def _dropped(self, client: ClientId) -> str:
        rows = {} if self.forgot is None else {c: some for c, some in self.forgot.rows.items() if c == client}
        classes = () if self.forgot is None else self.forgot.classes
        count = f"{sum(map(len, rows.values()))} rows forgotten"
        return f"{count}: {Request(rows=rows, classes=classes)}" if rows or classes else count

    def replace(self, **changes: Any) -> Remote:
        """Give a federation like this one but for some arguments."""
        kept = ("clients", "test", "model", "seed", "loss", "about", "roster", "options", "forgot")
        return Remote(**{**{key: getattr(self, key) for key in kept}, **changes})


def connected(
    grid: Grid,
    test: Examples | Pair,
    model: ModelSource,
    *,
    seed: int = 0,
    loss: Loss = nn.functional.cross_entropy,
    forget: Forget | None = None,
    partitions: Sequence[ClientId] | None = None,
    min_clients: int | None = None,
    min_replies: int | None = None,
    timeout: float = 600.0,
    max_norm: float | None = None,
    max_examples: float | None = None,
    tell_leavers: bool = True,
) -> Remote:
    """Take the clients of a grid for a federation, so that `feduhb.train` and `feduhb.unlearn` run on it.

        hospitals = connected(grid, test=(x, y), model=net, seed=1, min_clients=3)
        trained   = feduhb.train(hospitals, rounds=40, engine=hospitals.engine, out="/srv/runs/first")
        unlearned = feduhb.unlearn(trained, ["hospital-1"], out="/srv/runs/without-1")

    Args:
        test: the server's own (x, y) to score models on.
        model, seed, loss: as for `feduhb.Federation`; clients train with the loss of their own app.
        forget: what earlier requests took away, and no later run may bring back.
        min_clients: how many must be connected for it to be made; those who are, take part.
        partitions, min_replies, timeout, max_norm, max_examples, tell_leavers: as for the strategies.
    """
    options = Options(
        seed=seed, partitions=partitions, min_clients=min_clients, min_replies=min_replies, timeout=timeout, max_norm=max_norm,
        max_examples=max_examples, tell_leavers=tell_leavers,
    )  # fmt: skip
    scout = FlowerEngine(grid, fresh_arrays(model, seed), partitions=partitions, timeout=timeout)
    wait(scout, min_clients, timeout)
    held = test if isinstance(test, Examples) else Examples.of(*test)
    place = Elsewhere(held.x, held.y, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    clients = dict.fromkeys(scout.clients(), place)
    found = Remote(clients, held, model, seed=seed, loss=loss, roster=scout.roster, options=options)
    return found if forget is None else found.without(forget)
