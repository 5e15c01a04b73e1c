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
from feduhb.flower.forgetting import forgotten_in
from feduhb.flower.identity import is_key_id
from feduhb.history import DiskHistory
from feduhb.methods.replaying import bound, replays
from feduhb.records import RunFolder
from feduhb.run.folder import identity, weights_digest

log = logging.getLogger("flwr.feduhb")


@dataclass(frozen=True, slots=True)
class Past:
    """A training's folder and what is asked of it, beyond what it forgot itself; without a folder there is nothing to see to."""

    folder: RunFolder | None
    request: Request | None

    @classmethod
    def of(cls, folder: RunFolder | None, request: Request | None, start: Tensor) -> Past:
        """Open a training's folder, and see that this run begins where it began."""
        if folder is None:
            return cls(None, request)
        if folder.config().get("flower", {}).get("start") != weights_digest(start):
            raise RunFolderError(
                f"these initial arrays are not the ones that the training in {folder.path} began with, and nothing of what it learned may "
                "flow in; draw them again: feduhb.flower.fresh_arrays(model, seed) with the training's seed"
            )
        return cls(folder, request)

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
        history = self._history(self.folder)
        history.check(identity(self.folder.config()), start.numel(), len(self.folder.rounds()))
        gone = set() if self.request is None else {*self.request.clients}
        return bound(method, history, sorted(_everyone(history) - gone))

    def erase(self) -> None:
        """Delete the history from the leavers' first round on; all of it where a class is forgotten, whoever held it."""
        if self.folder is None or self.request is None:
            return
        history = self._history(self.folder)
        if not history.folder.exists():
            return
        with files.held(self.folder):
            holders = _everyone(history) if self.request.classes else set()
            freed = history.forget([*self.request.clients, *self.request.rows, *holders])
        if freed:
            log.info("erased %s bytes of history in %s", freed, history.folder)

    def _history(self, folder: RunFolder) -> DiskHistory:
        return DiskHistory(folder.path / files.HISTORY)


def _everyone(history: DiskHistory) -> set[ClientId]:
    return {client for t in history.rounds for client in history.clients(t)}
