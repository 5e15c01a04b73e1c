"""The modules that a request passes, from the command to the weights on disk: few enough to hold in mind.

Run as a program it prints the path: python tests/architecture/test_path_of_a_request.py
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

EXEMPT = ("core", "methods", "engines")  # the kernel: what computes
MOST = 21
CONFIG = """
seed = 1
[federation]
data = "digits"
clients = 4
model = "softmax"
[train]
rounds = 2
epochs = 1
"""


class Tracer:
    """Notes every module of the package in which a function is called, in order."""

    def __init__(self, package: Path) -> None:
        self.package = str(package)
        self.passed: list[str] = []  # a module each time that another one is left for it

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class
        if event != "call" or not is_function or not code.co_filename.startswith(self.package):
            return
        module = code.co_filename[len(self.package) + 1 : -3].replace("/", ".").removesuffix(".__init__")
        if module not in {"", "__init__"} and not module.startswith(EXEMPT) and self.passed[-1:] != [module]:
            self.passed.append(module)

    @property
    def modules(self) -> list[str]:
        """The modules in the order in which each was first passed."""
        return list(dict.fromkeys(self.passed))


def trace(arguments: list[str]) -> Tracer:
    """Return the trace of one command, until it ends."""
    import feduhb.cli

    tracer = Tracer(Path(feduhb.__file__).parent)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        feduhb.cli.app(arguments, standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return tracer


def trace_unlearn(folder: Path, *, keep_history: bool) -> dict[str, Any]:
    """Train in a folder, then return the path of an unlearning."""
    import feduhb.cli

    (folder / "config.toml").write_text(CONFIG + f"keep_history = {str(keep_history).lower()}\n")
    train = ["train", str(folder / "config.toml"), "--out", str(folder / "run"), "--json"]
    with contextlib.redirect_stdout(io.StringIO()):
        feduhb.cli.app(train, standalone_mode=False)
        found = trace(["unlearn", str(folder / "run"), "--forget", "c00", "--rounds", "2", "--json"])
    assert (folder / "run-feduhb" / "state.safetensors").exists()
    return {"modules": found.modules, "steps": len(found.passed)}


def lines(found: dict[str, Any]) -> Iterator[str]:
    yield from (f"{number:2}  feduhb.{module}" for number, module in enumerate(found["modules"], 1))
    yield f"{len(found['modules'])} modules, {found['steps']} changes from one to another"


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """Fork processes that have imported much, but nothing of this package."""
    # Here, because the program above runs without the folder of the tests on its path.
    from forking import Forks, reach_server

    with reach_server("bare") as address:
        yield Forks(address)


@pytest.mark.parametrize(("history", "most"), [("", MOST), ("history", MOST + 1)])
def test_a_request_passes_few_modules(server: Any, tmp_path: Path, history: str, most: int) -> None:
    """In a process of its own: what other tests have loaded and cached would shorten the path.

    Where the old run kept a history to erase, ``runs.history`` is one more.
    """
    ended = server.run_script(Path(__file__), tmp_path, history)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    print("\n".join(lines(found)))  # noqa: T201 (shown where the test fails, or with pytest -s)
    assert len(found["modules"]) <= most, found["modules"]
    layers = [
        found["modules"].index(module) for module in ("cli.unlearn", "api", "runs.execute", "runs.loop")
    ]
    assert layers == sorted(layers), "the path leads from the command through the API to the loop"


if __name__ == "__main__":
    import tempfile

    given = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        path = trace_unlearn(Path(given[0] if given else scratch), keep_history="history" in given)
    sys.stdout.write(json.dumps(path) + "\n" if given else "\n".join(lines(path)) + "\n")
