"""The training that shall forget: where it began, and the history that it kept."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from feduhb.core.types import ClientId, Method
from feduhb.data.request import Request
from feduhb.errors import HistoryError, RequestError, RunFolderError
from feduhb.flower import folder as files
from feduhb.history import DiskHistory
from feduhb.methods.replaying import bound, replays
from feduhb.records import RunFolder

log = logging.getLogger("flwr.feduhb")


@dataclass(frozen=True, slots=True)
class Past:
    """A training's folder and what is asked of it; without a folder there is nothing to see to."""

    folder: RunFolder | None
    request: Request | None

    @classmethod
    def of(cls, trained: str | Path | None, request: Request | None, start: Tensor) -> Past:
        """Open a training's folder, and see that this run begins where it began."""
        if trained is None:
            return cls(None, request)
        folder = RunFolder(Path(trained))
        if folder.config().get("flower", {}).get("start") != files.digest(start):
            raise RunFolderError(
                f"these initial arrays are not the ones that the training in {folder.path} began with, and nothing of what it learned may "
                "flow in; draw them again: feduhb.flower.fresh_arrays(model, seed) with the training's seed"
            )
        return cls(folder, request)

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
        history.check(files.owner(self.folder.config()), start.numel(), len(self.folder.rounds()))
        gone = set() if self.request is None else {*self.request.clients}
        return bound(method, history, sorted(_everyone(history) - gone))

    def erase(self) -> None:
        """Delete the history from the leavers' first round on; all of it where a class is forgotten, whoever held it."""
        if self.folder is None or self.request is None:
            return
        history = self._history(self.folder)
        holders = _everyone(history) if self.request.classes else set()
        freed = history.forget([*self.request.clients, *self.request.rows, *holders])
        if freed:
            log.info("erased %s bytes of history in %s", freed, history.folder)

    def _history(self, folder: RunFolder) -> DiskHistory:
        return DiskHistory(folder.path / files.HISTORY)


def _everyone(history: DiskHistory) -> set[ClientId]:
    return {client for t in history.rounds for client in history.clients(t)}
