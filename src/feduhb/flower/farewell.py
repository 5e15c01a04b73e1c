"""Those who are forgotten whole are told to leave, as soon as they are seen; nobody waits for them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flwr.app import Message, MetricRecord, RecordDict

from feduhb.core.types import ClientId
from feduhb.flower.identity import Roster
from feduhb.flower.post import collected, post
from feduhb.flower.wire import DELETED, LEAVE, METRICS

log = logging.getLogger("flwr.feduhb")


class Farewell:
    """Whom a run has told to leave, and what came of it.

    Args:
        timeout: seconds that a message may wait for its client.
    """

    def __init__(self, roster: Roster, timeout: float) -> None:
        self.answered: dict[ClientId, str] = {}  # what each said, in words
        self._roster = roster
        self._timeout = timeout
        self._waiting: dict[str, ClientId] = {}

    def look(self, leavers: Mapping[ClientId, int]) -> None:
        """Read what has come, and tell those who are connected now and were not told yet."""
        self._read()
        told = {*self._waiting.values(), *self.answered}
        messages = {
            client: Message(RecordDict(), node, LEAVE, ttl=self._timeout)
            for client, node in leavers.items()
            if client not in told
        }
        self._waiting.update(post(self._roster.grid, messages))

    def close(self, expected: tuple[ClientId, ...]) -> None:
        """Read once more, and warn of those who gave no answer or were never there to be told."""
        self._read()
        for client in sorted(self._waiting.values()):
            log.warning(
                "%s was told to leave and has not answered; what it keeps may still be there",
                self._roster.called(client),
            )
        for client in sorted({*expected} - {*self.answered} - {*self._waiting.values()}):
            log.warning(
                "%s was not connected in this run and could not be told to leave; what it keeps may still be there",
                self._roster.called(client),
            )

    def _read(self) -> None:
        replies, failed = collected(self._roster.grid, self._waiting)
        said = {**failed, **{client: _deleted(reply.content) for client, reply in replies.items()}}
        for client, words in said.items():
            self.answered[client] = words
            level = logging.WARNING if client in failed else logging.INFO
            log.log(level, "%s was told to leave: %s", self._roster.called(client), words)


def _deleted(content: RecordDict) -> str:
    metrics = content.get(METRICS)
    count = metrics.get(DELETED) if isinstance(metrics, MetricRecord) else None
    if not isinstance(count, int):
        return "it does not say how many files it has deleted"
    return f"it has deleted {count} file{'' if count == 1 else 's'}"
