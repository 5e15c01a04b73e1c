"""Fixtures that save time; import them in a folder's conftest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from forking import Forks, reach_server
from killing import Commands

if TYPE_CHECKING:
    from torch import nn


@pytest.fixture(scope="session")
def server_of_commands() -> Iterator[str]:
    """The address of a fork server that has imported torch and the command line."""
    with reach_server("commands") as address:
        yield address


@pytest.fixture(scope="session")
def forked_python(server_of_commands: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that need not import torch again."""
    program = tmp_path_factory.mktemp("bin") / "python"
    Forks(server_of_commands).write_program(program, "forking:run_python")
    return program


@pytest.fixture(scope="session")
def commands(server_of_commands: str, forked_python: Path) -> Commands:
    """Run commands in processes of their own that need not import torch again."""
    return Commands(server_of_commands, os.environ, forked_python)


@pytest.fixture(scope="module", autouse=True)
def forked_workers(forked_python: Path):
    """Let the processes that audits and grids start be forked; tests of those processes use real ones."""
    from feduhb.audit import apart
    from feduhb.runs import workers

    def start_process(code: str, folder: str | None = None) -> subprocess.Popen[bytes]:
        with mock.patch.object(workers.sys, "executable", str(forked_python)):
            return start(code, folder)

    start = workers.start_process
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "start_process", start_process)
        patch.setattr(apart, "start_process", start_process)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory):
    """Audits work in a folder of the tests, and not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUHB_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    """The kernel keeps what a killed process wrote, so fsync proves nothing here."""
    from feduhb.audit import apart

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(apart, "START", f"import os; os.fsync = lambda _: None; {apart.START}")
        yield


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """On a busy machine two threads wait for each other longer than they work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FEW_TREES: dict[str, Any] = {  # of the attackers of MISR
    "max_iter": 5,
    "max_bins": 8,
    "class_weight": None,  # weights make the bins take longest, and both classes have equally many examples anyway
}


@pytest.fixture(scope="module", autouse=True)
def small_attackers():
    """MISR is no verdict, and verdicts in tests are far from any edge: fewer trees will do."""
    from feduhb.audit.attacks import misr

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(misr, "TREES", {**misr.TREES, **FEW_TREES})
        yield


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_others():
    """Where a test holds a run's lock itself, nobody will free it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feduhb.runs.lineage.PATIENCE", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_made_once():
    """Typer makes all commands anew whenever one is run; they are the same, and making them takes a tenth of a second."""
    from typer.main import get_command

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture(scope="module", autouse=True)
def trials_made_once():
    """A client tries its model on its data at every message; a model that passed need not be tried on these data again."""
    from feduhb.core import trial
    from feduhb.core.inputs import list_tensors
    from feduhb.data import federation

    def check_once(module: nn.Module, loss: Any, examples: trial.Rows, augment: Any = None) -> None:
        x, y = examples.batch(trial._choose_rows(module, examples))
        data = tuple((part.dtype, part.shape, part.numpy().tobytes()) for part in (*list_tensors(x), y))
        tried = (str(module), *map(type, module.modules()), loss, augment, data)
        if tried not in passed:
            trial.check_fit(module, loss, examples, augment)
            passed.add(tried)

    passed: set[tuple[Any, ...]] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federation, "check_fit", check_once)
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


@pytest.fixture
def terminal():
    """Let programs start with a terminal's Ctrl-C, even where the tests run in the background and ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
