"""The order of the tests, and fixtures for all of them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from quiet import blank_figures, commands, no_waiting_for_the_disk, one_thread, own_state

__all__ = ["blank_figures", "commands", "no_waiting_for_the_disk", "one_thread", "own_state"]


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
