"""The order of the tests: those that mostly wait for other programs come first, and the rest runs meanwhile."""

from __future__ import annotations

import pytest

WAITING = ("test_deployment", "test_flower_simulation")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that wait in front; the order is otherwise kept."""
    items.sort(key=lambda item: not item.path.name.startswith(WAITING))
