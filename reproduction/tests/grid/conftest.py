"""Small trainings, and small attackers."""

from __future__ import annotations

import pytest

from quiet import (
    commands,
    forked_python,
    forked_workers,
    no_waiting_for_the_disk,
    one_thread,
    own_state,
    save_blank_figures,
    server_of_commands,
    small_attackers,
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
]


@pytest.fixture(scope="module", autouse=True)
def blank_figures():
    """Files of figures are only looked for here; the tests of the paper look into them."""
    with save_blank_figures():
        yield
