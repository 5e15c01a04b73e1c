"""A federation whose data stays with the clients, for `feduhb.train` and `feduhb.unlearn` over a Flower grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from feduhb.core.flat import ModelSource
from feduhb.core.seeds import draw_seed
from feduhb.core.types import ClientId, Engine, Local, Loss
from feduhb.data.convert import read_data
from feduhb.data.federation import ARGUMENTS, Examples, Federation, Pair, Start
from feduhb.data.request import Forget, Request, as_request
from feduhb.errors import DataError, RequestError
from feduhb.flower.engine import FlowerEngine, check_waiting
from feduhb.flower.roster import NOBODY_REMAINS, Forgotten, Roster
from feduhb.flower.validation import Limits
from feduhb.flower.wire import fresh_arrays


@dataclass(frozen=True, slots=True)
class Elsewhere(Examples):
    """A placeholder for examples that only the client has. Reading it raises DataError."""

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
            "the examples are not on the server but with the clients; run what needs them, such as a membership attack, there"
        )


class Remote(Federation):
    """A `feduhb.Federation` of the clients of a Flower grid, made by `connected`.

    The server knows the client ids, the test set and the model. It sends requests to the clients, which drop the forgotten
    rows or, if they leave, delete their cache.
    """

    is_remote: ClassVar[bool] = True

    def __init__(
        self,
        clients: Mapping[ClientId, Examples | Pair],
        test: Examples | Pair,
        model: ModelSource,
        *,
        roster: Roster,
        options: Mapping[str, Any],
        forgot: Request | None = None,
        draws_seeds: bool = False,
        **known: Any,
    ) -> None:
        super().__init__(clients, test, model, **known)
        self.draws_seeds = draws_seeds
        self.roster = roster
        self.options = options
        self.forgot = forgot

    def __repr__(self) -> str:
        return f"Remote({len(self.clients)} clients with their own data, {len(self.test)} examples for testing, seed {self.seed})"

    def engine(self, federation: Federation, local: Local) -> Engine:
        """Return the engine for a run over this federation or over what remains of it; pass it as ``engine=federation.engine``."""
        forgot = federation.forgot if isinstance(federation, Remote) else None
        return FlowerEngine(
            self.roster.grid,
            fresh_arrays(self.model, federation.seed, given=self.start == "given"),
            local,
            seed=federation.seed,
            forget=Forgotten.of(forgot, self.roster.names),
            roster=self.roster,
            **self.options,
        )

    def without(self, forget: Forget) -> Remote:
        """Return the federation that remains: it lacks the forgotten clients; rows and classes are dropped by the clients."""
        request = self.roster.resolve(as_request(forget), self.clients)
        clients = {client: e for client, e in self.clients.items() if client not in request.clients}
        if not clients:
            raise RequestError(NOBODY_REMAINS)
        return self.replace(
            clients=clients, forgot=request if self.forgot is None else self.forgot.merge(request)
        )

    def forgotten(self, forget: Forget) -> dict[ClientId, Examples]:
        """Return the clients that a request affects; any client may hold a class. Raise RequestError for an unknown key."""
        request = self.roster.resolve(as_request(forget), self.clients)
        self.roster.check_keys(request, self.clients, self.forgot)
        touched = self.clients if request.classes else {*request.clients, *request.rows}
        return {client: examples for client, examples in self.clients.items() if client in touched}

    def fingerprints(self) -> dict[ClientId, str]:
        """Return for each client what it must drop, because only the client knows what data it holds."""
        return {client: f"remote, {self._describe_dropped(client)}" for client in sorted(self.clients)}

    def _describe_dropped(self, client: ClientId) -> str:
        if self.forgot is None:
            return "0 rows forgotten"
        rows = {c: some for c, some in self.forgot.rows.items() if c == client}
        count = f"{sum(map(len, rows.values()))} rows forgotten"
        classes = self.forgot.classes
        return f"{count}: {Request(rows=rows, classes=classes)}" if rows or classes else count

    def replace(self, **changes: Any) -> Remote:
        """Return a copy of this federation with some arguments changed."""
        names = (*ARGUMENTS, "roster", "options", "forgot", "draws_seeds")
        made = Remote(**{**{name: getattr(self, name) for name in names}, **changes})
        made.share_draw(self)
        return made


def connected(
    grid: Grid,
    test: Examples | Pair,
    model: ModelSource,
    *,
    seed: int | None = None,
    loss: str | Loss = nn.functional.cross_entropy,
    start: Start = "fresh",
    forget: Forget | None = None,
    partitions: Sequence[ClientId] | None = None,
    min_clients: int | None = None,
    min_replies: int | None = None,
    timeout: float = 600.0,
    max_norm: float | None = None,
    max_examples: float | None = None,
    max_share: float | None = None,
    examples: Mapping[str, float] | None = None,
    tell_leavers: bool = True,
    public: Any = None,
) -> Remote:
    """Return the federation of the clients of a grid, for `feduhb.train` and `feduhb.unlearn`.

        hospitals = connected(grid, test=(x, y), model=net, min_clients=3)
        trained   = feduhb.train(hospitals, rounds=40, engine=hospitals.engine, out="/srv/runs/first")
        unlearned = feduhb.unlearn(trained, ["hospital-1"], out="/srv/runs/without-1")

    Args:
        test: the server's own (x, y) to score models on.
        model, loss, start, public: as for `feduhb.Federation`; clients train with the loss and the augmentation of their own
            app.
        seed: the seed of all runs. None lets every run draw its own, as the strategies do; methods that read a history keep
            the training's.
        forget: what earlier requests have forgotten, so that later runs do not bring it back.
        min_clients: clients to wait for; all clients that are connected then take part.
        partitions, min_replies, timeout, max_norm, max_examples, max_share, examples, tell_leavers: as for the strategies.
    """
    check_waiting(min_replies, timeout)
    Limits(max_norm, max_examples, max_share, examples or {})
    roster = Roster(grid, partitions, timeout=timeout)
    here = roster.wait(Forgotten(), min_clients)
    held = test if isinstance(test, Examples) else Examples.of(*read_data(test))
    place = Elsewhere(held.x, held.y, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    limits = {
        "min_replies": min_replies, "timeout": timeout, "max_norm": max_norm, "max_examples": max_examples,
        "max_share": max_share, "examples": examples, "tell_leavers": tell_leavers,
    }  # fmt: skip
    found = Remote(
        dict.fromkeys(here, place), held, model, seed=draw_seed() if seed is None else seed, draws_seeds=seed is None,
        loss=loss, start=start, public=public, roster=roster, options=limits,
    )  # fmt: skip
    return found if forget is None else found.without(forget)
