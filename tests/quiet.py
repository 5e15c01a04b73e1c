"""Fixtures for tests that neither cut the power nor train anything large; import them in a folder's conftest."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    """The kernel keeps what a killed process wrote, so fsync proves nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """On a busy machine two threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_others():
    """Where a test holds a run's lock itself, nobody will free it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feduhb.runs.lineage.PATIENCE", 0.0)
        yield
