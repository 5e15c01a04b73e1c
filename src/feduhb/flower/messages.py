"""Send messages over a grid and collect the replies; tell forgotten clients to delete what they keep."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from feduhb.core.types import ClientId
from feduhb.flower.wire import DELETED, LEAVE, METRICS, MalformedError, check_records, read_metrics, to_line

log = logging.getLogger("flwr.feduhb")
PAUSE = 0.25  # seconds between two looks for replies, or for clients
MOST_FILES = 10**9  # a larger number of deleted files is not a report
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def exchange(
    grid: Grid,
    messages: Mapping[K, Message],
    timeout: float,
    read: Callable[[RecordDict], V],
    *,
    suffices: Callable[[V], bool] = lambda _: False,
) -> tuple[dict[K, V], dict[K, str]]:
    """Send messages and wait for the replies; return what was read from each, and the reason for each that gave nothing.

    Replies are matched by the id of the message that they answer. The sender in a reply is not used: an error reply
    names the SuperLink's node id instead of the client's. A reply is read and dropped before the next one is pulled, so
    that what does not belong into it does not stay in memory.

    Args:
        read: takes the content of a reply and returns what is kept of it, or raises MalformedError.
        suffices: whether what one client replied is enough, so that the other replies need not be awaited.
    """
    waiting = send(grid, messages)
    failed = {key: "the message could not be delivered" for key in messages if key not in waiting.values()}
    found: dict[K, V] = {}
    end = time.monotonic() + timeout
    while waiting and time.monotonic() < end:
        arrived, lost = collect(grid, waiting, read)
        found.update(arrived)
        failed.update(lost)
        if any(map(suffices, arrived.values())):
            break
        if waiting:
            time.sleep(PAUSE)
    return found, {**failed, **dict.fromkeys(waiting.values(), f"no answer within {timeout:g} s")}


def send(grid: Grid, messages: Mapping[K, Message]) -> dict[str, K]:
    """Send messages one by one; return the key of each by its message id, without those that the grid refused."""
    sent: dict[str, K] = {}
    for key, message in messages.items():
        ids = list(grid.push_messages([message]))
        if ids and ids[0]:
            sent[ids[0]] = key
    return sent


def collect(
    grid: Grid, waiting: dict[str, K], read: Callable[[RecordDict], V]
) -> tuple[dict[K, V], dict[K, str]]:
    """Return what was read from the replies that have arrived, and why others failed; remove both from ``waiting``.

    Replies are pulled one by one, because the SuperLink deletes what it hands out: in a larger pull, one reply that
    cannot be read would cost the others.
    """
    found: dict[K, V] = {}
    failed: dict[K, str] = {}
    for number, key in list(waiting.items()):
        try:
            pulled = grid.pull_messages([number])
            reply = next((r for r in pulled if r.metadata.reply_to_message_id == number), None)
            del pulled
        except Exception as error:
            failed[key] = f"its answer cannot be read ({to_line(error) or type(error).__name__})"
        else:
            if reply is None:
                continue
            if reply.has_error():
                failed[key] = f"it failed: {to_line(reply.error.reason)}"
            else:
                try:
                    found[key] = read(reply.content)
                except MalformedError as error:
                    failed[key] = f"it answered with {error}"
            del reply
        del waiting[number]
    return found, failed


@dataclass
class Farewell:
    """Asks leavers to delete what they have stored, and logs their answers. A run never waits for these answers.

    Args:
        format_client: returns the name of a client id for the log.
        timeout: seconds that a message may wait for its client.
    """

    grid: Grid
    format_client: Callable[[ClientId], str]
    timeout: float
    _answered: set[ClientId] = field(default_factory=set)
    _waiting: dict[str, ClientId] = field(default_factory=dict)

    def tell(self, leavers: Mapping[ClientId, int]) -> None:
        """Collect answers, and send the message to every connected leaver (node ids) that has not received it."""
        self._collect()
        messages = {
            client: Message(RecordDict(), node, LEAVE, ttl=self.timeout)
            for client, node in leavers.items()
            if client not in {*self._waiting.values(), *self._answered}
        }
        self._waiting.update(send(self.grid, messages))

    def close(self, expected: Collection[ClientId]) -> None:
        """Collect answers a last time; warn about clients that did not answer or, if expected, never connected."""
        self._collect()
        silent = {*self._waiting.values()}
        for client in sorted(silent):
            self._warn(client, "was told to leave and has not answered")
        for client in sorted({*expected} - self._answered - silent):
            self._warn(client, "was not connected in this run and could not be told to leave")

    def _warn(self, client: ClientId, what: str) -> None:
        name = self.format_client(client)
        log.warning("%s %s; its cache may still exist: ask its operator to delete it", name, what)

    def _collect(self) -> None:
        replies, failed = collect(self.grid, self._waiting, _describe_deletion)
        for client, reason in failed.items():
            self._warn(client, f"was told to leave: {reason}")
        for client, answer in replies.items():
            log.info("%s was told to leave: %s", self.format_client(client), answer)
        self._answered |= {*replies, *failed}


def _describe_deletion(content: RecordDict) -> str:
    check_records(content, METRICS)
    count = read_metrics(content).get(DELETED)
    if not isinstance(count, int) or not 0 <= count < MOST_FILES:
        return "it does not report how many files it deleted"
    return f"it has deleted {count} file{'' if count == 1 else 's'}"
