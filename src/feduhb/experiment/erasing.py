"""What an erasure deletes of histories: of the run that shall forget, and of every run that it came from."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from feduhb.core.types import ClientId
from feduhb.data.request import Request
from feduhb.errors import RequestError
from feduhb.experiment.runs import HISTORY, Run
from feduhb.history import DiskHistory, Earlier
from feduhb.history.earlier import lost
from feduhb.records import RunFolder


@dataclass(frozen=True, slots=True)
class Erasure:
    """Histories with those who leave each, looked up before anything is touched; and runs that could not be found."""

    histories: Sequence[tuple[DiskHistory, Sequence[ClientId]]] = ()
    missing: Sequence[Earlier] = ()

    def delete(self) -> None:
        """Delete every history from its leavers' first round on."""
        for history, leavers in self.histories:
            history.forget(leavers)

    def close(self) -> None:
        """Delete what is left, as after a crash, and say what could not be found."""
        self.delete()
        for one in self.missing:
            sys.stderr.write(f"feduhb: {lost(one)}\n")


def erasure(run: Run, request: Request) -> Erasure:
    """Look for all that a request must reach: the run's own history, and those of the runs that it came from."""
    missing = [one for one in run.earlier if not one.there]
    return Erasure(tuple(_reached(run, request)), missing)


def _reached(run: Run, request: Request) -> Iterator[tuple[DiskHistory, Sequence[ClientId]]]:
    leavers = tuple(run.federation.forgotten(request))
    if run.folder is not None and (run.folder / HISTORY).is_dir():
        yield DiskHistory(run.folder / HISTORY), leavers
    total = request if run.forgot is None else run.forgot.merged(request)
    for one in run.earlier:
        if one.there and (one.path / HISTORY).is_dir():
            found = RunFolder(one.path).config().get("unlearn", {}).get("forget")
            later = total.beyond(Request.parse(found) if found else None)
            if later is not None:
                history = DiskHistory(one.path / HISTORY)
                yield history, (*leavers, *later.clients, *later.rows, *_holders(run, later, history))


def _holders(run: Run, request: Request, history: DiskHistory) -> Collection[ClientId]:
    """Name those who held a class that is forgotten; everyone where its examples are deleted and nobody can say."""
    if not request.classes:
        return ()
    try:
        return run.original.forgotten(Request(classes=request.classes))
    except RequestError:
        return history.everyone()
