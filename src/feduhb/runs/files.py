"""Files of run folders: written privately and never through a link, read as typed values.

A run folder may have passed through other hands. So a link in it is replaced and never written through, a file that is
read must be a regular one, and its content is checked against a type before it is used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import operator
import os
import shutil
import stat
from collections.abc import Callable, Generator
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from annotated_types import Interval, Predicate

from feduhb.errors import RunFolderError, StorageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
Count = Annotated[int, Interval(ge=0, lt=2**63)]  # of rounds, bytes and the like, in a file
Number = Annotated[float, Predicate(math.isfinite)]
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700  # for what holds updates, weights or audits
HEADER_SIZE = 8  # bytes in front of a safetensors file that hold the length of its header
MOST_HEADER = 100_000_000  # bytes, the limit of safetensors itself
# Windows has neither links without privileges nor pipes among files.
_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)


@contextlib.contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Raise StorageError instead of OSError."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        what = "the disk is full" if full else (error.strerror or str(error))
        if error.errno == errno.ELOOP:
            what = f"{error.filename or path} is a link"
        raise StorageError(
            f"cannot write {path}: {what}; {'free some space' if full else 'fix that'} and resume: what was finished is kept"
        ) from error


@contextlib.contextmanager
def reading_errors(path: Path) -> Generator[None]:
    """Raise RunFolderError instead of OSError."""
    try:
        yield
    except OSError as error:
        what = error.strerror or error
        raise RunFolderError(f"{path} cannot be read: {what}; check its permissions") from None


def write_atomically(path: Path, data: bytes, *, private: bool = True) -> None:
    """Replace a file, whole or not at all. Processes that write into the same folder wait for each other.

    Args:
        private: only the user may read the file; otherwise the umask decides.
    """
    update_atomically(path, lambda _: data, private=private)


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a value as JSON, which people can read."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


def update_atomically(path: Path, change: Callable[[bytes], bytes], *, private: bool = True) -> None:
    """Replace a file by what ``change`` returns for its content, which is empty if there is no such file."""
    with disk_errors(path), lock_folder(path.parent):
        data = change(read_bytes(path) if path.exists() else b"")
        place_atomically(path, lambda temporary: write_new(temporary, data, private=private))


def place_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` with the name of a temporary file, then rename that to ``path``. Both are synced to the disk.

    There is no file or link of that name when ``write`` is called.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(path):
        temporary.unlink(missing_ok=True)
        try:
            write(temporary)
            with open_private(temporary, os.O_RDWR) as file:
                os.fsync(file)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_new(path: Path, data: bytes, *, private: bool = True) -> None:
    """Write a file that must not exist yet."""
    with open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, private=private) as handle:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]


def append_line(path: Path, line: str) -> None:
    """Add a line to a file and flush it to the disk."""
    with (
        disk_errors(path),
        open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as handle,
        os.fdopen(os.dup(handle), "a", encoding="utf-8") as file,
    ):
        file.write(f"{line}\n")
        file.flush()
        os.fsync(handle)


@contextlib.contextmanager
def open_private(path: Path, flags: int, *, private: bool = True) -> Generator[int]:
    """Open a file that is not a link, for this user alone; yield its descriptor."""
    handle = os.open(path, flags | _NO_LINK | _NO_WAIT, PRIVATE_FILE if private else 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


def make_private_folder(path: Path) -> None:
    """Make a folder that only this user may enter, unless it is there; raise StorageError for a link."""
    with disk_errors(path):
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, if it is there. What a link points to stays."""
    with disk_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)  # unlinks links, and does not follow them
        else:
            path.unlink(missing_ok=True)


def measure_files(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder. Links are not followed, and files may vanish meanwhile."""
    is_folder = path.is_dir() and not path.is_symlink()
    places = os.walk(path) if is_folder else [(path.parent, [], [path.name])]
    total = 0
    for file in (Path(place, name) for place, _, names in places for name in names):
        with contextlib.suppress(FileNotFoundError):
            about = file.lstat()
            total += about.st_size if stat.S_ISREG(about.st_mode) else 0
    return total


@contextlib.contextmanager
def lock_folder(folder: Path, name: str = ".writing.lock") -> Generator[None]:
    """Hold a lock of a folder, by default while a file in it is replaced, and delete the lock file afterwards."""
    from filelock import FileLock  # slow to import, and reports do not need it

    if not folder.is_dir():  # filelock would create it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    lock = folder / name
    with open_private(lock, os.O_RDWR | os.O_CREAT):  # filelock waits forever where no file can be made
        pass
    with FileLock(lock, mode=PRIVATE_FILE, poll_interval=0.01):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a lock file that stays locks nothing
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

    lock = FileLock(path, mode=PRIVATE_FILE)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=patience, poll_interval=0.02)
    try:
        yield lock.is_locked
    finally:
        lock.release()


def resolve(path: Path) -> Path:
    """Return a path without links; raise RunFolderError for a text that cannot be a path."""
    try:
        return Path(os.path.realpath(path))  # Path.resolve raises an error for a link to itself
    except ValueError:
        raise RunFolderError(f"{str(path)!r} is not a path; restore the file that names it") from None


def check_regular(path: Path) -> None:
    """Raise OSError unless a path is a regular file: reading a pipe could wait forever."""
    _check_mode(path.stat().st_mode, path)


def _check_mode(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


@contextlib.contextmanager
def open_regular(path: Path) -> Generator[BufferedReader]:
    """Open a regular file to read; raise OSError for anything else."""
    handle = os.open(path, os.O_RDONLY | _NO_WAIT)
    try:
        _check_mode(os.fstat(handle).st_mode, path)
        with open(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file."""
    with open_regular(path) as file:
        return file.read()


def read_json(path: Path, kind: type[T], advice: str) -> T:
    """Return the content of a JSON file as a value of a type; raise RunFolderError if it is not one.

    Raise FileNotFoundError or NotADirectoryError if there is no such file.

    Args:
        kind: a dataclass, a TypedDict, or any other type that pydantic knows.
        advice: what to do about a damaged file.
    """
    return parse_json(read_file(path, advice), kind, str(path), advice)


def find_json(path: Path, kind: type[T], advice: str) -> T | None:
    """Return the same as `read_json`; None if there is no such file."""
    try:
        return read_json(path, kind, advice)
    except (FileNotFoundError, NotADirectoryError):
        return None


def parse_json(content: bytes, kind: type[T], what: str, advice: str) -> T:
    """Return JSON as a value of a type; raise RunFolderError, which names ``what`` and the wrong part, if it is not one."""
    with _naming(what, advice):
        return make_adapter(kind).validate_json(content, strict=True)


def check_shape(value: Any, kind: type, what: str, advice: str) -> None:
    """Raise RunFolderError, which names ``what`` and the wrong part, if a value is not of a type."""
    with _naming(what, advice):
        make_adapter(kind).validate_python(value, strict=True)


@contextlib.contextmanager
def _naming(what: str, advice: str) -> Generator[None]:
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        raise RunFolderError(f"{what} is damaged; {advice} ({describe(error)})") from None


def read_text(path: Path, advice: str) -> str:
    """Return the text of a file; raise RunFolderError if it cannot be read or is not UTF-8."""
    try:
        return read_file(path, advice).decode()
    except UnicodeDecodeError:
        raise RunFolderError(f"{path} is damaged; {advice} (it is not UTF-8)") from None


def read_file(path: Path, advice: str) -> bytes:
    """Return the content of a regular file; raise RunFolderError if it cannot be read, but an OSError if there is none."""
    try:
        return read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}; {advice}") from None


@cache
def make_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what reads values as a type and checks them; made once for each type, because making it takes long."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def describe(error: ValidationError) -> str:
    """Return the first wrong part of a value, such as "rounds is missing"."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "json_invalid":
        return "it is not complete JSON"
    if first["type"] == "missing":
        return f"{where} is missing"
    return f"{where or 'it'} is {ascii(first['input'])[:40]}"


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of a value as JSON with sorted keys and without spaces."""
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def digest_tensor(path: Path, name: str) -> str | None:
    """Return the SHA-256 of the bytes of a tensor in a safetensors file, without torch.

    Return None if the file has no such tensor; raise OSError or ValueError if it is not a safetensors file.
    """
    with open_regular(path) as file:
        size = int.from_bytes(file.read(HEADER_SIZE), "little")
        if size > MOST_HEADER:
            raise ValueError(f"{path} is not a safetensors file")
        try:
            header = json.loads(file.read(size))
            if name not in header:
                return None
            begin, end = map(operator.index, header[name]["data_offsets"])
        except (TypeError, KeyError, RecursionError):
            raise ValueError(f"{path} is not a safetensors file") from None
        if not 0 <= begin <= end < 2**63:
            raise ValueError(f"{path} is not a safetensors file")
        total = hashlib.sha256()
        file.seek(HEADER_SIZE + size + begin)
        left = end - begin
        while left and (part := file.read(min(left, 1 << 20))):
            total.update(part)
            left -= len(part)
        return total.hexdigest()
