"""Small trainings, and small attackers."""

from __future__ import annotations

import pytest

from feduhb.audit.attacks import misr
from grid.small import FEW_TREES
from quiet import (
    commands,
    forked_python,
    forked_workers,
    no_waiting_for_the_disk,
    one_thread,
    own_state,
    save_blank_figures,
    server_of_commands,
)

__all__ = [
    "blank_figures",
    "commands",
    "few_trees",
    "forked_python",
    "forked_workers",
    "no_waiting_for_the_disk",
    "one_thread",
    "own_state",
    "server_of_commands",
]


@pytest.fixture(scope="module", autouse=True)
def few_trees():
    """What attackers find is not judged here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(misr, "TREES", {**misr.TREES, **FEW_TREES})
        yield


@pytest.fixture(scope="module", autouse=True)
def blank_figures():
    """Files of figures are only looked for here; the tests of the paper look into them."""
    with save_blank_figures():
        yield
