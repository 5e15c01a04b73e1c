"""The training that shall forget: where it began, and the history that it kept."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from feduhb.core.types import ClientId, Method
from feduhb.data.request import Request
from feduhb.errors import HistoryError, RequestError, RunFolderError
from feduhb.flower import folder as files
from feduhb.flower.forgetting import Forgotten, forgotten_in
from feduhb.flower.identity import is_key_id
from feduhb.history import DiskHistory, Earlier
from feduhb.history import earlier as chain
from feduhb.methods.replaying import bound, replays
from feduhb.records import RunFolder
from feduhb.run.folder import identity, weights_digest

log = logging.getLogger("flwr.feduhb")


@dataclass(frozen=True, slots=True)
class Past:
    """A training's folder and what is asked of it, beyond what it forgot itself; without a folder there is nothing to see to."""

    folder: RunFolder | None
    request: Request | None
    earlier: tuple[tuple[RunFolder, Request], ...] = ()  # the runs it came from, and what is asked of each

    @classmethod
    def of(cls, folder: RunFolder | None, forgotten: Forgotten, start: Tensor) -> Past:
        """Open a training's folder, and see that this run begins where it began."""
        if folder is None:
            return cls(None, forgotten.request)
        if folder.config().get("flower", {}).get("start") != weights_digest(start):
            raise RunFolderError(
                f"these initial arrays are not the ones that the training in {folder.path} began with, and nothing of what it learned may "
                "flow in; draw them again: feduhb.flower.fresh_arrays(model, seed) with the training's seed"
            )
        return cls(folder, forgotten.request, _before(folder, forgotten) if forgotten.request else ())

    def note(self, folder: RunFolder) -> None:
        """Write down beside a run which ones it came from."""
        if self.folder is not None:
            chain.note(folder.path, (Earlier.at(self.folder.path), *chain.read(self.folder.path)))

    def check(self, known: Collection[ClientId]) -> None:
        """Refuse to forget a key that neither took part in the training nor is known otherwise: it is mistyped."""
        if self.folder is None or self.request is None:
            return
        before = forgotten_in(self.folder).all
        gone = () if before is None else (*before.clients, *before.rows)
        seen = {*known, *gone, *(client for record in self.folder.rounds() for client in record.asked)}
        for client in (*self.request.clients, *self.request.rows):
            if is_key_id(client) and client not in seen:
                raise RequestError(
                    f"nobody with the key {client} took part in the training in {self.folder.path}; see that it is spelled right: "
                    "feduhb.flower.key_id('its-key.pub')"
                )

    def given_to(self, method: Method[Any], start: Tensor) -> Method[Any]:
        """Give a method that replays the history, and those of it who remain."""
        if not replays(method):
            return method
        if self.folder is None:
            raise HistoryError(
                f"{method.name} replays stored updates; say which training kept them: trained=FOLDER, its checkpoint"
            )
        if self.request is not None and (self.request.rows or self.request.classes):
            raise RequestError(
                f"{method.name} replays whole clients' updates and cannot take rows or a class out of them; use FedUHB or Retrain"
            )
        history = _history(self.folder)
        history.check(identity(self.folder.config()), start.numel(), len(self.folder.rounds()))
        gone = set() if self.request is None else {*self.request.clients}
        return bound(method, history, sorted(history.everyone() - gone))

    def erase(self) -> None:
        """Delete the history from the leavers' first round on, and so in all the runs that this training came from."""
        if self.folder is None or self.request is None:
            return
        for folder, request in ((self.folder, self.request), *self.earlier):
            _erase(folder, request)


def _before(folder: RunFolder, forgotten: Forgotten) -> tuple[tuple[RunFolder, Request], ...]:
    """Find the runs that a training came from, and what each has not forgotten itself; say which are not there any more."""
    found: list[tuple[RunFolder, Request]] = []
    for one in chain.read(folder.path):
        if not one.there:
            log.warning("%s", chain.lost(one))
            continue
        place = RunFolder(one.path)
        later = None if forgotten.all is None else forgotten.all.beyond(forgotten_in(place).all)
        if later is not None:
            found.append((place, later))
    return tuple(found)


def _erase(folder: RunFolder, request: Request) -> None:
    """Delete a history from the leavers' first round on; all of it where a class is forgotten, whoever held it."""
    history = _history(folder)
    if not history.folder.exists():
        return
    with files.held(folder):
        holders = history.everyone() if request.classes else set()
        freed = history.forget([*request.clients, *request.rows, *holders])
    if freed:
        log.info("erased %s bytes of history in %s", freed, history.folder)


def _history(folder: RunFolder) -> DiskHistory:
    return DiskHistory(folder.path / files.HISTORY)
