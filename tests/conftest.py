"""The order of the tests, and fixtures for all of them."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from forking import share_servers
from quiet import (
    blank_figures,
    commands,
    forked_python,
    forked_workers,
    no_waiting_for_the_disk,
    one_thread,
    own_state,
    server_of_commands,
    small_attackers,
    terminal,
)

__all__ = [
    "blank_figures",
    "commands",
    "forked_python",
    "forked_workers",
    "no_waiting_for_the_disk",
    "one_thread",
    "own_state",
    "server_of_commands",
    "small_attackers",
    "terminal",
]


def pytest_configure(config: pytest.Config) -> None:
    """Keep fork servers that all workers share, if there will be workers."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        kept = ExitStack()
        kept.enter_context(share_servers())
        config.add_cleanup(kept.close)


PROCESSES = {"browser", "commands"}  # fixtures that start a process; a test that uses one counts as slow


@pytest.hookimpl(tryfirst=True)  # before the marks choose among the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with deployments first and files with slow tests next, so that no worker is left with a long one."""
    marks: dict[Path, set[str]] = defaultdict(set)
    for item in items:
        if PROCESSES & {*getattr(item, "fixturenames", ())}:
            item.add_marker("slow")
        marks[item.path] |= {mark.name for mark in item.iter_markers()}
    items.sort(key=lambda item: ("deployment" not in marks[item.path], "slow" not in marks[item.path]))
