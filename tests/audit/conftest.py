"""Small attackers."""

from __future__ import annotations

import pytest

from feduhb.audit.attacks import misr


@pytest.fixture(scope="module", autouse=True)
def small_attackers():
    """Fewer trees: verdicts here are far from any edge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(misr, "TREES", {**misr.TREES, "max_iter": 5, "max_bins": 8})
        yield
