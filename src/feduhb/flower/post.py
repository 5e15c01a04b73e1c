"""Messages out, answers in: who answered, and of the others why not."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from feduhb.flower.wire import words

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
        came, lost = collected(grid, waiting)
        answers.update(came)
        failed.update(lost)
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


def collected(grid: Grid, waiting: dict[str, K]) -> tuple[dict[K, Message], dict[K, str]]:
    """Take what has come, and whom it is of off those waited for: the answers, and the reasons of those who failed.

    Answers are pulled one by one: the link forgets what it hands out, so that one answer that cannot be read would
    take the others of its pull along.
    """
    answers: dict[K, Message] = {}
    failed: dict[K, str] = {}
    for number, key in list(waiting.items()):
        try:
            reply = _pulled(grid, number)
        except Exception as error:
            failed[waiting.pop(number)] = (
                f"its answer cannot be read ({words(error) or type(error).__name__})"
            )
            continue
        if reply is None:
            continue
        del waiting[number]
        if reply.has_error():
            failed[key] = f"it failed: {words(reply.error.reason)}"
        else:
            answers[key] = reply
    return answers, failed


def _pulled(grid: Grid, number: str) -> Message | None:
    """Give the reply to one message, if it is there."""
    found = (r for r in grid.pull_messages([number]) if r.metadata.reply_to_message_id == number)
    return next(found, None)
