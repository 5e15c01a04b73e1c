"""Attackers as they are: what they find is pinned here."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def small_attackers():
    """Leave the attackers as they are."""
