"""The cache: where downloaded data sets lie. Only what has its SHA-256 gets its name there, or out of it."""

from __future__ import annotations

import contextlib
import os
import tarfile
import zlib
from collections.abc import Callable, Generator, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from feduhb.data.download import FailedError, download, say, watched
from feduhb.data.published import Published
from feduhb.errors import ConfigError, DataError

LARGEST_MEMBER = 1 << 26  # bytes; a batch of CIFAR-10 is 30,730,000
UNREADABLE = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError)  # what a damaged archive ends in


def cache_folder() -> Path:
    """Give FEDUHB_CACHE, else feduhb in XDG_CACHE_HOME, else ~/.cache/feduhb."""
    if given := os.environ.get("FEDUHB_CACHE"):
        return Path(given)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "feduhb"
    except RuntimeError:
        raise DataError(
            "there is no home folder to keep data sets in; name a folder with FEDUHB_CACHE"
        ) from None


def cached(published: Published) -> dict[str, bytes]:
    """Give what is in the files of a data set, by name, fetched first where they are missing or damaged."""
    place = cache_folder() / published.name
    found = _intact(published, place)
    if len(found) < len(published.files):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with _alone(place):
                _complete(published, place)
        except OSError as error:
            raise DataError(
                f"{place} cannot be written ({error.strerror}); name another folder for downloads with FEDUHB_CACHE, "
                f"or one that holds {published.listed} with --data or FEDUHB_DATA"
            ) from None
        found = _intact(published, place)
    if lost := [name for name in published.files if name not in found]:
        raise DataError(f"{place / lost[0]} was changed while it was read; try again")
    return found


def source(published: Published) -> str:
    """Give the address before a file's name: the published one, or NAME/ under FEDUHB_MIRROR."""
    mirror = os.environ.get("FEDUHB_MIRROR")
    if not mirror:
        return published.url
    try:
        parts = urlsplit(mirror)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"FEDUHB_MIRROR is {mirror!r}; give an http or https address, under which {published.name}/ lies"
        )
    return f"{mirror.rstrip('/')}/{published.name}/"


def _intact(published: Published, place: Path) -> dict[str, bytes]:
    """Read the files that are there and right."""
    found: dict[str, bytes] = {}
    for name, digest in published.files.items():
        with contextlib.suppress(OSError):
            content = (place / name).read_bytes()
            if sha256(content).hexdigest() == digest:
                found[name] = content
    return found


@contextlib.contextmanager
def _alone(place: Path) -> Generator[None]:
    """Let one process at a time fetch into a folder. The lock goes with its process, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (place / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that fetches into {place}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _complete(published: Published, place: Path) -> None:
    """Fetch what is missing still, now that nobody else does; what is damaged goes."""
    right = _intact(published, place)
    missing = [name for name in published.files if name not in right]
    for name in missing:
        (place / name).unlink(missing_ok=True)
    if missing:
        say(f"fetching {published.title} from {source(published)} into {place}")
    if published.archive is None:
        for name in missing:
            _fetch(published, name, place, lambda part, name=name: _take(part, place / name, published))
    elif missing:
        _fetch(published, published.archive, place, lambda part: _unpack(part, missing, published))


def _fetch(published: Published, name: str, place: Path, accept: Callable[[Path], bool]) -> None:
    """Download a file and hand it over. A part from an earlier start that ends up wrong is fetched once more, from its first byte."""
    url, part = source(published) + name, place / f"{name}.part"
    resumed = part.exists()
    try:
        with watched(name) as tell:
            download(url, part, tell)
    except FailedError as failed:
        raise DataError(
            f"{published.name} is not complete in {place} and cannot be fetched from {url} ({failed}); put {published.listed} there, "
            "or into a folder that you name with --data or FEDUHB_DATA"
        ) from None
    right = accept(part)
    part.unlink(missing_ok=True)
    if right:
        return
    if not resumed:
        raise DataError(
            f"{url} gives no original {published.title}: the SHA-256 is another, and nothing of it is kept; try again, name another "
            f"source with FEDUHB_MIRROR, or put {published.listed} into {place}"
        )
    _fetch(published, name, place, accept)


def _take(part: Path, target: Path, published: Published) -> bool:
    if sha256(part.read_bytes()).hexdigest() != published.files[target.name]:
        return False
    part.replace(target)
    return True


def _unpack(archive: Path, names: Sequence[str], published: Published) -> bool:
    """Write those files next to the archive, if it has them all and right. Paths in it are not followed."""
    found = _members(archive, names, published)
    if len(found) < len(names):
        return False
    for name, content in found.items():
        part = archive.with_name(f"{name}.part")
        part.write_bytes(content)
        part.replace(archive.with_name(name))
    return True


def _members(archive: Path, names: Sequence[str], published: Published) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with contextlib.suppress(*UNREADABLE), tarfile.open(archive, "r:gz") as opened:
        for member in opened:
            name = PurePosixPath(member.name).name
            if name not in names or not member.isreg() or member.size > LARGEST_MEMBER:
                continue
            file = opened.extractfile(member)
            content = file.read() if file else b""
            if sha256(content).hexdigest() == published.files[name]:
                found[name] = content
    return found
