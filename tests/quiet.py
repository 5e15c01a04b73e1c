"""Fixtures that save time; import them in a folder's conftest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from feduhb.audit import apart
from killing import Commands


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Run commands in processes of their own that need not import torch again."""
    with Commands() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory):
    """Audits work in a folder of the tests, and not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUHB_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    """The kernel keeps what a killed process wrote, so fsync proves nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(apart, "START", f"import os; os.fsync = lambda _: None; {apart.START}")
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


@contextlib.contextmanager
def save_blank_figures() -> Generator[None]:
    """Save an empty figure in place of every other: to lay out and draw its texts takes most of a report's time."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def save_blank(_: Figure, file: Any, **options: Any) -> None:
        save(Figure((1, 1)), file, **options)

    with mock.patch.object(Figure, "savefig", save_blank):
        yield


@pytest.fixture
def blank_figures() -> Iterator[None]:
    """Where files of figures are only looked for; tests/report looks into them."""
    with save_blank_figures():
        yield
