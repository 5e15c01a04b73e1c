"""Messages out, answers in: who answered, and of the others why not."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

PAUSE = 0.25  # seconds between two looks for answers
K = TypeVar("K", bound=Hashable)


def exchange(
    grid: Grid, messages: Mapping[K, Message], timeout: float
) -> tuple[dict[K, Message], dict[K, str]]:
    """Send each its message and wait: the answers, and the reason of everyone who was asked and gave none.

    An error's reply carries the link's id, not the node's, so that nobody is told by whom a reply says it is from:
    it is laid beside the message that it replies to.
    """
    waiting = post(grid, messages)
    failed = {key: "the message could not be delivered" for key in messages if key not in waiting.values()}
    answers: dict[K, Message] = {}
    end = time.monotonic() + timeout
    while waiting and time.monotonic() < end:
        for reply in grid.pull_messages(list(waiting)):
            key = waiting.pop(reply.metadata.reply_to_message_id, None)
            if key is None:
                continue
            if reply.has_error():
                failed[key] = f"it failed: {' '.join(str(reply.error.reason).split())[:500]}"
            else:
                answers[key] = reply
        if waiting:
            time.sleep(PAUSE)
    return answers, {**failed, **dict.fromkeys(waiting.values(), f"no answer within {timeout:g} s")}


def post(grid: Grid, messages: Mapping[K, Message]) -> dict[str, K]:
    """Send messages one by one; give their ids. One that the grid would not take has none."""
    sent: dict[str, K] = {}
    for key, message in messages.items():
        ids = list(grid.push_messages([message]))
        if ids and ids[0]:
            sent[ids[0]] = key
    return sent
