"""Run folders: the files of a run, read and written without torch.

A run folder holds ``config.toml`` (the settings), ``rounds.jsonl`` (one line for each round), ``state.safetensors``
(the server's state, see `feduhb.runs.checkpoint`) and ``result.json`` (written last). ``retired.json`` is the tombstone
of a run that was deleted, see `feduhb.runs.retire`.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import importlib.metadata
import json
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from feduhb.errors import RunFolderError, StorageError
from feduhb.stopping import StopReason

HISTORY = "history"  # the folder of the history in a run folder
WORK = "audit-work"  # the folder for the runs that an audit makes, deleted at its end
NAMES, LEFT_OUT, REQUEST = "names.json", "left_out.json", "request.json"  # files of a Flower strategy


@dataclass(frozen=True, slots=True)
class Round:
    """The record of one round, counted from 0. Seconds are wall clock, bytes are payload.

    ``moved`` is ‖w[t+1] - w[t]‖. ``threshold`` is the movement below which the stop rule would have ended the run
    here; None if the rule does not apply.
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

    def __str__(self) -> str:
        """Return one line for progress output."""
        parts = [f"loss {self.scores['test_loss']:.3f}"] if "test_loss" in self.scores else []
        if "test_accuracy" in self.scores:
            parts.append(f"accuracy {self.scores['test_accuracy']:.1%}")
        parts.append(f"moved {self.moved:.3g}")
        if self.stopped:
            parts.append("stopped")
        elif self.threshold is not None:
            parts.append(f"stops below {self.threshold:.3g}")
        return "  ".join(parts)

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Round:
        """Return the round that `to_json` wrote."""
        values = json.loads(line)
        stopped = values["stopped"] and StopReason(**values["stopped"])
        clients = {key: tuple(values[key]) for key in ("asked", "answered")}
        return cls(**{**values, **clients, "stopped": stopped})


def explain_end(rounds: Sequence[Round]) -> str:
    """Return why a finished run ended: the stop rule's reason, or its last scheduled round."""
    if not rounds:
        return "no round was run"
    last = rounds[-1]
    return str(last.stopped) if last.stopped else f"all {len(rounds)} scheduled rounds were run"


@contextlib.contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Raise StorageError instead of OSError."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        what = "the disk is full" if full else (error.strerror or str(error))
        raise StorageError(
            f"cannot write {path}: {what}; {'free some space' if full else 'fix that'} and resume: what was finished is kept"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file, whole or not at all. Processes that write into the same folder wait for each other."""
    update_atomically(path, lambda _: data)


def update_atomically(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace a file by what ``change`` returns for its content, which is empty if there is no such file."""
    with disk_errors(path), _lock_for_writing(path.parent):
        data = change(path.read_bytes() if path.exists() else b"")
        place_atomically(path, lambda temporary: temporary.write_bytes(data))


def place_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` with a temporary file, then rename it to ``path``. File and folder are synced to the disk."""
    temporary = path.with_name(f".{path.name}.tmp")
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
def _lock_for_writing(folder: Path) -> Generator[None]:
    """Hold the lock of a folder while a file in it is replaced, and delete the lock file afterwards."""
    from filelock import FileLock  # slow to import, and reports do not need it

    if not folder.is_dir():  # filelock would create it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    lock = folder / ".writing.lock"
    with FileLock(lock, poll_interval=0.01):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder to the disk, so that a rename in it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def hold_lock(path: Path, *, patience: float = 0.0) -> Generator[bool]:
    """Hold a lock file until the block ends; yield False if another process holds it for ``patience`` seconds.

    If a process is killed, its lock is released.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=patience, poll_interval=0.02)
    try:
        yield lock.is_locked
    finally:
        lock.release()


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run."""

    path: Path
    STATE: ClassVar[str] = "state.safetensors"

    @property
    def config_path(self) -> Path:
        """The file with the settings of the run."""
        return self.path / "config.toml"

    @property
    def rounds_path(self) -> Path:
        """The file with one line for each round."""
        return self.path / "rounds.jsonl"

    @property
    def state_path(self) -> Path:
        """The last checkpoint."""
        return self.path / self.STATE

    @property
    def result_path(self) -> Path:
        """The file that is written when the run ends."""
        return self.path / "result.json"

    @property
    def tombstone_path(self) -> Path:
        """The file that a retired run leaves."""
        return self.path / "retired.json"

    def exists(self) -> bool:
        """Whether the folder holds a run, finished or not, or the tombstone of one."""
        return self.config_path.exists() or self.tombstone_path.exists()

    def is_finished(self) -> bool:
        """Whether the run has ended."""
        return self.result_path.exists()

    @contextlib.contextmanager
    def claim(
        self, who: str = "process", advice: str = "choose another --out", *, patience: float = 0.0
    ) -> Generator[None]:
        """Lock this folder until the block ends; raise RunFolderError if another process holds it for ``patience`` seconds."""
        with hold_lock(self.path / ".lock", patience=patience) as mine:
            if not mine:
                raise RunFolderError(f"another {who} is writing {self.path}; wait for it, or {advice}")
            yield

    def is_replayed(self) -> bool:
        """Whether all rounds are done, so that the run needs no history any more."""
        return self.is_finished() or self._prepared_path.exists()

    def create(self, config: str) -> None:
        """Start a run: make the folder and its config.toml."""
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config_path, config.encode())

    def tombstone(self) -> dict[str, Any] | None:
        """Return the content of retired.json; None if nobody began to retire this run."""
        try:
            found = dict(json.loads(self.tombstone_path.read_text(encoding="utf-8")))
            _ = found["finished"], found["config_sha256"], found["replaced_by"]["run"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError, OSError):
            raise RunFolderError(f"{self.tombstone_path} is damaged; restore a backup") from None
        return found

    def config(self) -> dict[str, Any]:
        """Return the content of config.toml; raise RunFolderError if the run was retired."""
        if (found := self.tombstone()) is not None:
            raise RunFolderError(explain_retirement(self.path, found))
        try:
            return tomllib.loads(self.config_path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise RunFolderError(
                f"{self.path} is not a run folder: it has no config.toml; make one with feduhb train CONFIG.toml --out {self.path}"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise RunFolderError(f"{self.config_path} cannot be read: {error}; restore a backup") from None

    def rounds(self) -> list[Round]:
        """Return every complete round, without a last line that a crash cut short."""
        if not self.rounds_path.exists():
            return []
        try:
            lines = self.rounds_path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
        except OSError as error:
            raise RunFolderError(f"{self.rounds_path} cannot be read: {error}; restore a backup") from None
        found: list[Round] = []
        for number, line in enumerate(lines):
            try:
                found.append(Round.from_json(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                raise RunFolderError(
                    f"{self.rounds_path} line {number + 1} is damaged; delete the run and start again"
                ) from None
        return found

    def append(self, record: Round) -> None:
        """Add one round and flush it to the disk."""
        with disk_errors(self.rounds_path), self.rounds_path.open("a", encoding="utf-8") as file:
            file.write(record.to_json() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rewrite_rounds(self, rounds: Sequence[Round]) -> None:
        """Replace the recorded rounds, as a resumed run does to drop rounds after its checkpoint."""
        write_atomically(self.rounds_path, "".join(r.to_json() + "\n" for r in rounds).encode())

    def result(self) -> dict[str, Any]:
        """Return the content of result.json."""
        try:
            return json.loads(self.result_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunFolderError(f"{self.path} has not finished; continue it with --resume") from None
        except (ValueError, OSError):
            raise RunFolderError(f"{self.result_path} is damaged; delete it and use --resume") from None

    def prepare(self, result: Mapping[str, Any]) -> None:
        """Write the result under a hidden name. `publish` then marks the run as finished."""
        write_atomically(self._prepared_path, (json.dumps(result, indent=2) + "\n").encode())

    def publish(self) -> None:
        """Rename the prepared result to result.json."""
        with disk_errors(self.result_path), _lock_for_writing(self.path):
            self._prepared_path.replace(self.result_path)
            sync_folder(self.path)

    @property
    def _prepared_path(self) -> Path:
        return self.path / ".result.json"


def explain_retirement(folder: Path, tombstone: Mapping[str, Any]) -> str:
    """Return why a run that was retired cannot be opened, and what to do."""
    if tombstone["finished"] is None:
        return f"retiring {folder} was interrupted; finish it: feduhb retire {folder}"
    new = Path(os.path.normpath(folder / tombstone["replaced_by"]["run"]))
    return f"{folder} was retired on {tombstone['finished'][:10]}, see its retired.json; use {new}, which replaced it"


def versions() -> dict[str, str]:
    """Return the versions of feduhb, torch and Python."""
    try:
        own = importlib.metadata.version("feduhb")
    except importlib.metadata.PackageNotFoundError:
        own = "run from source"
    torch = sys.modules.get("torch")  # already imported by code that computes
    made_by = str(getattr(torch, "__version__", ""))
    return {"feduhb": own, "torch": made_by, "python": platform.python_version()}


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
