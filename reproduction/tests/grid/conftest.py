"""Small trainings, and small attackers."""

from __future__ import annotations

import pytest

from feduhb.audit.attacks import misr
from quiet import no_waiting_for_the_disk, one_thread

__all__ = ["few_trees", "no_waiting_for_the_disk", "one_thread"]


@pytest.fixture(scope="module", autouse=True)
def few_trees():
    """What attackers find is not judged here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(misr, "TREES", {**misr.TREES, "max_iter": 5, "max_bins": 8})
        yield
