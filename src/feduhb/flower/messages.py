"""Sending messages over a grid and collecting the replies; telling forgotten clients to leave."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TypeVar

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from feduhb.core.types import ClientId
from feduhb.flower.wire import DELETED, LEAVE, METRICS, to_line

log = logging.getLogger("flwr.feduhb")
PAUSE = 0.25  # seconds between two looks for replies, or for clients
K = TypeVar("K", bound=Hashable)


def exchange(
    grid: Grid, messages: Mapping[K, Message], timeout: float
) -> tuple[dict[K, Message], dict[K, str]]:
    """Send messages and wait for the replies; return them, and the reason for each message that got none.

    The sender that a reply names is not believed, because an error reply carries the link's id and not the node's:
    a reply belongs to the message that it replies to.
    """
    waiting = send(grid, messages)
    failed = {key: "the message could not be delivered" for key in messages if key not in waiting.values()}
    replies: dict[K, Message] = {}
    end = time.monotonic() + timeout
    while waiting and time.monotonic() < end:
        came, lost = collect(grid, waiting)
        replies.update(came)
        failed.update(lost)
        if waiting:
            time.sleep(PAUSE)
    return replies, {**failed, **dict.fromkeys(waiting.values(), f"no answer within {timeout:g} s")}


def send(grid: Grid, messages: Mapping[K, Message]) -> dict[str, K]:
    """Send messages one by one; return the key of each by its message id, without those that the grid refused."""
    sent: dict[str, K] = {}
    for key, message in messages.items():
        ids = list(grid.push_messages([message]))
        if ids and ids[0]:
            sent[ids[0]] = key
    return sent


def collect(grid: Grid, waiting: dict[str, K]) -> tuple[dict[K, Message], dict[K, str]]:
    """Return the replies that have arrived and the reasons of those that failed; remove both from ``waiting``.

    Replies are pulled one by one. The link forgets what it hands out, so if several were pulled at once, one that
    cannot be read would take the others along.
    """
    replies: dict[K, Message] = {}
    failed: dict[K, str] = {}
    for number, key in list(waiting.items()):
        try:
            reply = _pull(grid, number)
        except Exception as error:
            failed[waiting.pop(number)] = (
                f"its answer cannot be read ({to_line(error) or type(error).__name__})"
            )
            continue
        if reply is None:
            continue
        del waiting[number]
        if reply.has_error():
            failed[key] = f"it failed: {to_line(reply.error.reason)}"
        else:
            replies[key] = reply
    return replies, failed


def _pull(grid: Grid, number: str) -> Message | None:
    """Return the reply to one message; None if it has not arrived."""
    found = (r for r in grid.pull_messages([number]) if r.metadata.reply_to_message_id == number)
    return next(found, None)


class Farewell:
    """The clients that a run tells to leave, and what they answered. The run never waits for them.

    Args:
        format_client: of a client id, the name for the log.
        timeout: seconds that a message may wait for its client.
    """

    def __init__(self, grid: Grid, format_client: Callable[[ClientId], str], timeout: float) -> None:
        self.answered: dict[ClientId, str] = {}  # what each has answered, in words
        self._grid = grid
        self._format_client = format_client
        self._timeout = timeout
        self._waiting: dict[str, ClientId] = {}

    def tell(self, leavers: Mapping[ClientId, int]) -> None:
        """Collect answers, and tell those of these connected leavers (node ids) who were not told yet."""
        self._collect()
        told = {*self._waiting.values(), *self.answered}
        messages = {
            client: Message(RecordDict(), node, LEAVE, ttl=self._timeout)
            for client, node in leavers.items()
            if client not in told
        }
        self._waiting.update(send(self._grid, messages))

    def close(self, expected: Collection[ClientId]) -> None:
        """Collect answers once more; warn of clients that have not answered, and of expected ones that were never connected."""
        self._collect()
        silent = {*self._waiting.values()}
        for client in sorted(silent):
            log.warning(
                "%s was told to leave and has not answered; what it keeps may still be there",
                self._format_client(client),
            )
        for client in sorted({*expected} - {*self.answered} - silent):
            log.warning(
                "%s was not connected in this run and could not be told to leave; what it keeps may still be there",
                self._format_client(client),
            )

    def _collect(self) -> None:
        replies, failed = collect(self._grid, self._waiting)
        found = {**failed, **{client: _describe_deletion(reply.content) for client, reply in replies.items()}}
        for client, answer in found.items():
            self.answered[client] = answer
            level = logging.WARNING if client in failed else logging.INFO
            log.log(level, "%s was told to leave: %s", self._format_client(client), answer)


def _describe_deletion(content: RecordDict) -> str:
    metrics = content.get(METRICS)
    count = metrics.get(DELETED) if isinstance(metrics, MetricRecord) else None
    if not isinstance(count, int):
        return "it does not say how many files it has deleted"
    return f"it has deleted {count} file{'' if count == 1 else 's'}"
