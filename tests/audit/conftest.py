"""Small trainings, and small attackers."""

from __future__ import annotations

import pytest

from feduhb.audit.attacks import membership, misr
from quiet import no_waiting_for_the_disk, one_thread

__all__ = ["no_waiting_for_the_disk", "one_thread", "small_attackers"]


@pytest.fixture(scope="module", autouse=True)
def small_attackers():
    """Fewer draws of the bootstrap and fewer trees: verdicts here are far from any edge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(membership, "DRAWS", 400)
        patch.setattr(misr, "TREES", {**misr.TREES, "max_iter": 5, "max_bins": 8})
        yield
