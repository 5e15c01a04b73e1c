"""What a run leaves behind: its rounds, why it stopped, and the folder they live in.

A run folder holds ``config.toml`` (how to make it again), ``rounds.jsonl`` (one line a round),
``state.safetensors`` (the server's state, see `feduhb.run.checkpoint`) and ``result.json`` (written last).
Nothing here imports torch, so reports and ledgers can read runs without it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from feduhb.errors import RunFolderError, StorageError


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a run ended before its last scheduled round, in words and in numbers."""

    text: str
    movement: float
    threshold: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round. Seconds are wall clock, bytes are payload, movement is ‖w[t+1] - w[t]‖.

    ``round`` counts from 0; ``threshold`` is the movement under which the stop rule would have ended
    the run here (None where the rule does not speak yet, or never speaks).
    """

    round: int
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    moved: float
    threshold: float | None = None
    stopped: StopReason | None = None
    client_epochs: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    scores: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write as one line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Round:
        """Read back what `to_json` wrote."""
        values = json.loads(line)
        stopped = values.pop("stopped")
        return cls(
            asked=tuple(values.pop("asked")),
            answered=tuple(values.pop("answered")),
            stopped=StopReason(**stopped) if stopped else None,
            **values,
        )


def why_ended(rounds: Sequence[Round]) -> str:
    """Say in words why a finished run ended: the stop rule's reason, or its last scheduled round."""
    if not rounds:
        return "no round was run"
    last = rounds[-1]
    return str(last.stopped) if last.stopped else f"all {len(rounds)} scheduled rounds were run"


@contextlib.contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Turn the operating system's refusal to write into our words: what, where, what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        what = "the disk is full" if full else (error.strerror or str(error))
        raise StorageError(
            f"cannot write {path}: {what}; {'free some space' if full else 'fix that'} and go on: what was finished is kept"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file whole or not at all; of several who do so at once, each waits for the one before."""
    update_atomically(path, lambda _: data)


def update_atomically(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace a file by what ``change`` makes of it (of nothing, where it is not there); nobody else replaces it meanwhile."""
    with disk_errors(path), _held(_beside(path)):
        data = change(path.read_bytes() if path.exists() else b"")
        place_atomically(path, lambda temporary: _put(temporary, data))


def _beside(path: Path) -> Path:
    """Name the temporary file of a file."""
    return path.with_name(f".{path.name}.tmp")


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)


def place_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file and put it in a file's place: fsync, rename, fsync of the folder."""
    temporary = _beside(path)
    with disk_errors(path):
        try:
            write(temporary)
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextlib.contextmanager
def _held(path: Path) -> Generator[None]:
    """Open a file and lock it, waiting for whoever has it; again where that one moved it away meanwhile."""
    while True:
        with path.open("ab") as file:
            locked(file, wait=True)
            if _at(path, file):
                yield
                return


def _at(path: Path, file: IO[bytes]) -> bool:
    """Whether an open file is the one of that name still."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def locked(file: IO[bytes], *, wait: bool = False) -> bool:
    """Lock an open file for this process; False where another has it. Where the system knows no locks, everybody has it."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run, read and written without torch."""

    path: Path
    STATE: ClassVar[str] = "state.safetensors"

    @property
    def config_path(self) -> Path:
        """How the run was made."""
        return self.path / "config.toml"

    @property
    def rounds_path(self) -> Path:
        """One line a round."""
        return self.path / "rounds.jsonl"

    @property
    def state_path(self) -> Path:
        """The server's state after the last finished round."""
        return self.path / self.STATE

    @property
    def result_path(self) -> Path:
        """Written once the run has ended."""
        return self.path / "result.json"

    def exists(self) -> bool:
        """Whether a run was ever begun here."""
        return self.config_path.exists()

    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.result_path.exists()

    def lock_file(self) -> IO[bytes]:
        """Open the file whose lock says that somebody writes here."""
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            return (self.path / ".lock").open("wb")

    def create(self, config: str) -> None:
        """Begin a run: the folder and its config.toml."""
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config_path, config.encode())

    def config(self) -> dict[str, Any]:
        """Read config.toml."""
        try:
            return tomllib.loads(self.config_path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise RunFolderError(
                f"{self.path} is not a run folder: it has no config.toml; make one with feduhb train CONFIG.toml --out {self.path}"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise RunFolderError(
                f"{self.config_path} cannot be read: {error}; restore it from a backup"
            ) from None

    def rounds(self) -> list[Round]:
        """Read every complete round; a last line cut short by a crash is left out."""
        if not self.rounds_path.exists():
            return []
        try:
            lines = self.rounds_path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        except OSError as error:
            raise RunFolderError(
                f"{self.rounds_path} cannot be read: {error.strerror}; restore it from a backup"
            ) from None
        found: list[Round] = []
        for number, line in enumerate(lines):
            try:
                found.append(Round.from_json(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise RunFolderError(
                    f"{self.rounds_path} line {number + 1} is damaged; delete {self.path} and run again"
                ) from None
        return found

    def append(self, record: Round) -> None:
        """Add one round and see it onto the disk."""
        with disk_errors(self.rounds_path), self.rounds_path.open("a", encoding="utf-8") as file:
            file.write(record.to_json() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep(self, rounds: Sequence[Round]) -> None:
        """Replace the recorded rounds by these: what a resumed run does with rounds past its checkpoint."""
        write_atomically(self.rounds_path, "".join(r.to_json() + "\n" for r in rounds).encode())

    def result(self) -> dict[str, Any]:
        """Read result.json."""
        try:
            return json.loads(self.result_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunFolderError(
                f"the run in {self.path} has not finished; go on with it by --resume"
            ) from None
        except (ValueError, OSError):
            raise RunFolderError(
                f"{self.result_path} is damaged; delete it and finish the run with --resume"
            ) from None

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write result.json: the run has ended."""
        write_atomically(self.result_path, (json.dumps(result, indent=2) + "\n").encode())
