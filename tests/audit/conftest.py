"""Small trainings: neither the disk nor a second thread is waited for."""

from __future__ import annotations

import os

import pytest
import torch

from feduhb.evaluate import misr
from feduhb.experiment import attacks


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
def small_attackers():
    """Fewer draws of the bootstrap and fewer trees: verdicts here are far from any edge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacks, "DRAWS", 400)
        patch.setattr(misr, "TREES", {**misr.TREES, "max_iter": 5, "max_bins": 8})
        yield
