"""A federation whose data stays with the clients: `feduhb.train` and `feduhb.unlearn` over a Flower grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from feduhb.core.flat import ModelSource
from feduhb.core.types import ClientId, Engine, Local, Loss
from feduhb.data.federation import Examples, Federation, Pair
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import DataError, RequestError
from feduhb.flower.engine import FlowerEngine, check_limits
from feduhb.flower.roster import Forgotten, Roster
from feduhb.flower.server import Options
from feduhb.flower.wire import fresh_arrays


@dataclass(frozen=True, slots=True)
class Elsewhere(Examples):
    """The place of a client's examples, which only the client has. Reading it raises an error."""

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Raise DataError."""
        self._refuse()

    def all(self) -> tuple[Tensor, Tensor]:
        """Raise DataError."""
        self._refuse()

    @property
    def targets(self) -> Tensor:
        """Raise DataError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DataError(
            "the clients' examples are not here but with the clients; what needs them, such as a membership attack, must run there"
        )


class Remote(Federation):
    """A `feduhb.Federation` of the clients of a Flower grid, made by `connected`.

    The server knows their ids, the test set and the model. Requests are kept and sent to the clients, which drop their rows
    or, if they are forgotten whole, their cache.
    """

    is_remote: ClassVar[bool] = True

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
        """Return the engine of a run over this federation, or over what remains of it: ``engine=federation.engine``."""
        options, forgot = self.options, federation.forgot if isinstance(federation, Remote) else None
        return FlowerEngine(
            self.roster.grid, fresh_arrays(self.model, self.seed), local, seed=self.seed,
            forget=Forgotten.of(forgot, self.roster.names),
            min_replies=options.min_replies, timeout=options.timeout, max_norm=options.max_norm,
            max_examples=options.max_examples, tell_leavers=options.tell_leavers, roster=self.roster,
        )  # fmt: skip

    def without(self, forget: Forget) -> Remote:
        """Return the federation that remains: whole clients leave it, rows and classes are dropped by the clients."""
        request = self.roster.resolve(as_request(forget), self.clients)
        clients = {client: e for client, e in self.clients.items() if client not in request.clients}
        if not clients:
            raise RequestError(
                "nobody would remain to retrain on; leave at least one client, or delete the model instead"
            )
        return self.replace(
            clients=clients, forgot=request if self.forgot is None else self.forgot.merge(request)
        )

    def forgotten(self, forget: Forget) -> dict[ClientId, Examples]:
        """Return the clients that a request touches: any may hold a forgotten class. Raise RequestError for a key that nobody has."""
        request = self.roster.resolve(as_request(forget), self.clients)
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
        """Return for each client what it was told to drop; only the clients know what they hold."""
        return {client: f"remote, {self._describe_dropped(client)}" for client in sorted(self.clients)}

    def _describe_dropped(self, client: ClientId) -> str:
        rows = {} if self.forgot is None else {c: some for c, some in self.forgot.rows.items() if c == client}
        classes = () if self.forgot is None else self.forgot.classes
        count = f"{sum(map(len, rows.values()))} rows forgotten"
        return f"{count}: {Request(rows=rows, classes=classes)}" if rows or classes else count

    def replace(self, **changes: Any) -> Remote:
        """Return a federation like this one but for some arguments."""
        kept = ("clients", "test", "model", "seed", "loss", "about", "roster", "options", "forgot")
        made = Remote(**{**{key: getattr(self, key) for key in kept}, **changes})
        made.share_draw(self)
        return made


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
    """Return the federation of the clients of a grid, for `feduhb.train` and `feduhb.unlearn`.

        hospitals = connected(grid, test=(x, y), model=net, seed=1, min_clients=3)
        trained   = feduhb.train(hospitals, rounds=40, engine=hospitals.engine, out="/srv/runs/first")
        unlearned = feduhb.unlearn(trained, ["hospital-1"], out="/srv/runs/without-1")

    Args:
        test: the server's own (x, y) to score models on.
        model, seed, loss: as for `feduhb.Federation`; clients train with the loss of their own app.
        forget: what earlier requests took away, which no later run may bring back.
        min_clients: how many must be connected before it is made; all that are connected then take part.
        partitions, min_replies, timeout, max_norm, max_examples, tell_leavers: as for the strategies.
    """
    options = Options(
        seed=seed, partitions=partitions, min_clients=min_clients, min_replies=min_replies, timeout=timeout, max_norm=max_norm,
        max_examples=max_examples, tell_leavers=tell_leavers,
    )  # fmt: skip
    check_limits(min_replies, timeout, max_norm, max_examples)
    roster = Roster(grid, partitions, timeout=timeout)
    here = roster.wait(Forgotten(), min_clients)
    held = test if isinstance(test, Examples) else Examples.of(*test)
    place = Elsewhere(held.x, held.y, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    found = Remote(
        dict.fromkeys(here, place), held, model, seed=seed, loss=loss, roster=roster, options=options
    )
    return found if forget is None else found.without(forget)
