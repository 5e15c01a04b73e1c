"""The order of the tests, and fixtures for all of them."""

from __future__ import annotations

import gc
import random
import secrets
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import pytest

from forking import share_servers
from quiet import (
    blank_figures,
    commands,
    commands_made_once,
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
    "commands_made_once",
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
    """Keep fork servers that all workers share, if there will be workers; let no collector look for garbage in imports."""
    gc.disable()
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        kept = ExitStack()
        kept.enter_context(share_servers())
        config.add_cleanup(kept.close)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among the modules and tests: to go through these takes a second each time."""
    gc.freeze()
    gc.enable()


DRAWS = random.Random()
secrets.randbits = DRAWS.getrandbits  # from which runs over a grid draw their seeds


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed everything that a test may draw from by its name, so that it depends on no other test and on no chance."""
    import torch

    DRAWS.seed(item.nodeid)
    random.seed(item.nodeid)
    torch.manual_seed(DRAWS.getrandbits(63))


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
