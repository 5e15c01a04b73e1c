"""Methods that reach for what they should not have. Fresh processes import them from here."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import feduhb
from feduhb.methods.feduhb import HeavyBall
from feduhb.runs.checkpoint import load_params


class Mine(feduhb.FedUHB):
    """An honest method of the user's own."""

    __slots__ = ()
    name: ClassVar[str] = "mine"


@dataclass(frozen=True, slots=True)
class Reads(feduhb.FedUHB):
    """Begins at the old weights, which it reads from a file."""

    path: str = ""

    name: ClassVar[str] = "reads"

    def init(self, params: Tensor) -> HeavyBall:
        """Return the old weights."""
        old = load_params(Path(self.path)) if Path(self.path).exists() else _read(self.path)
        return HeavyBall(old.to(params), previous=params)


def _read(path: str) -> Tensor:
    raise FileNotFoundError(f"no old weights in {Path(path).name}")


class Holds(feduhb.FedUHB):
    """Begins at old weights that somebody has put into its class, and afresh if nobody has."""

    name: ClassVar[str] = "holds"
    old: ClassVar[Tensor | None] = None

    def init(self, params: Tensor) -> HeavyBall:
        """Return the old weights."""
        return HeavyBall(params if self.old is None else self.old, previous=params)


@dataclass(frozen=True, slots=True)
class Forgets(feduhb.FedUHB):
    """Changes a setting that it is made with."""

    name: ClassVar[str] = "forgets"

    def __post_init__(self) -> None:
        object.__setattr__(self, "momentum", self.momentum / 2)


@dataclass(frozen=True, slots=True)
class Dies(feduhb.FedUHB):
    """Ends its process while there is a file, as if the machine had run out of memory."""

    path: str = ""

    name: ClassVar[str] = "dies"

    def init(self, params: Tensor) -> HeavyBall:
        """Do not return if there is the file."""
        assert "PYTEST_CURRENT_TEST" in os.environ
        if Path(self.path).is_file():
            os.kill(os.getpid(), signal.SIGKILL)
        return HeavyBall(params, previous=params)


@dataclass(frozen=True, slots=True)
class Waits(feduhb.FedUHB):
    """Writes the numbers of its process and of the one before it into a file, and waits for ever."""

    path: str = ""

    name: ClassVar[str] = "waits"

    def init(self, params: Tensor) -> HeavyBall:  # noqa: ARG002
        """Do not return."""
        Path(self.path).write_text(f"{os.getpid()} {os.getppid()}")
        while True:
            signal.pause()


@dataclass(frozen=True, slots=True)
class Spies(feduhb.FedUHB):
    """Tries every way to a file, and ends with an error that says what it found."""

    path: str = ""
    port: int = 0

    name: ClassVar[str] = "spies"

    def init(self, params: Tensor) -> HeavyBall:  # noqa: ARG002
        """Raise RuntimeError with the findings."""
        raise RuntimeError(json.dumps(self._look()))

    def _look(self) -> dict[str, Any]:
        file, parent = Path(self.path), os.getppid()
        found: dict[str, Any] = {"is there": file.exists()}
        mounted = ctypes.CDLL(None, use_errno=True).umount2(str(file.parent).encode(), 2)
        found["is there once unmounted"] = mounted == 0 and file.exists()
        found["by the parent's root"] = _exists(Path(f"/proc/{parent}/root{file}"))
        found["by the parent's folder"] = _exists(Path(f"/proc/{parent}/cwd{file}"))
        found["above the kept folder"] = (file.parent / "work" / ".." / file.name).exists()
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
            found["network"] = True
        except OSError:
            found["network"] = False
        return {
            **found,
            "threads": torch.get_num_threads(),
            "dtype": str(torch.get_default_dtype()),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "process": os.getpid(),
            "folder": str(Path.cwd()),
            "word": os.environ.get("WORD"),
        }


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
