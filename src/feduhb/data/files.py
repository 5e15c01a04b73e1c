"""The original files of published data sets, from a folder that the user names or from a cache of downloads.

Every file is verified by its SHA-256, wherever it comes from. No other content is returned or stored under its name.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from feduhb.data.download import DownloadError, download, print_notice, show_progress
from feduhb.errors import ConfigError, DataError

LARGEST_MEMBER = 1 << 26  # bytes; a batch of CIFAR-10 has 30,730,000
ARCHIVE_ERRORS = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError)  # raised by a damaged archive


@dataclass(frozen=True, slots=True)
class PublishedFiles:
    """The original files of a data set: their names, checksums and address."""

    name: str
    title: str  # for messages
    files: Mapping[str, str]  # SHA-256 by file name, in the order in which they are read
    url: str  # the address before the name of a file or of the archive
    archive: str | None = None  # a .tar.gz that holds the files; None: each file is published by itself
    unpacked: str | None = None  # the folder that unpacking the archive makes

    @property
    def file_names(self) -> str:
        """The names of the files, as text."""
        return ", ".join(self.files)


MNIST = PublishedFiles(
    "mnist",
    "MNIST",
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
CIFAR10 = PublishedFiles(
    "cifar10",
    "CIFAR-10",
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    "https://www.cs.toronto.edu/~kriz/",
    archive="cifar-10-binary.tar.gz",
    unpacked="cifar-10-batches-bin",
)
PUBLISHED = {each.name: each for each in (MNIST, CIFAR10)}


def find_named_folder(folder: Path | None = None) -> Path | None:
    """Return the folder that the user named for data: the argument, else FEDUHB_DATA, else None."""
    if folder is not None:
        return folder.absolute()
    named = os.environ.get("FEDUHB_DATA")
    return Path(named).absolute() if named else None


def find_cache_folder() -> Path:
    """Return the folder of downloads: FEDUHB_CACHE, else feduhb in XDG_CACHE_HOME, else ~/.cache/feduhb."""
    if named := os.environ.get("FEDUHB_CACHE"):
        return Path(named)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "feduhb"
    except RuntimeError:
        raise DataError("there is no home folder for downloads; name a folder with FEDUHB_CACHE") from None


def read_files(name: str, folder: Path | None = None) -> list[bytes]:
    """Return the contents of the files of a data set, in their order, each checked against its SHA-256.

    Args:
        folder: the folder to read; None reads the cache and downloads the files that are missing or damaged there.
    """
    published = PUBLISHED[name]
    if folder is None:
        found = read_cached_files(published)
        return [found[file] for file in published.files]
    for place in (folder / published.name, folder / (published.unpacked or ""), folder):
        if (place / next(iter(published.files))).exists():
            return [_read_verified(place / file, sha, published) for file, sha in published.files.items()]
    raise DataError(
        f"{folder} holds no {published.title}; put {published.file_names} there, or name another folder with --data or FEDUHB_DATA"
    )


def _read_verified(path: Path, digest: str, published: PublishedFiles) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); replace it") from None
    if sha256(content).hexdigest() != digest:
        raise DataError(
            f"{path} is damaged or not the original {published.title} file: its SHA-256 is not {digest[:16]}...; get it again"
        )
    return content


def read_cached_files(published: PublishedFiles) -> dict[str, bytes]:
    """Return the contents of the files of a data set by name; download those that are missing or damaged in the cache."""
    place = find_cache_folder() / published.name
    found = _read_intact(published, place)
    if len(found) < len(published.files):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with _lock_folder(place):
                _download_missing(published, place)
        except OSError as error:
            raise DataError(
                f"{place} cannot be written ({error.strerror}); name another folder for downloads with FEDUHB_CACHE, "
                f"or one that holds {published.file_names} with --data or FEDUHB_DATA"
            ) from None
        found = _read_intact(published, place)
    if lost := [name for name in published.files if name not in found]:
        raise DataError(f"{place / lost[0]} was changed while it was read; try again")
    return found


def find_source_url(published: PublishedFiles) -> str:
    """Return the address before a file's name: the published one, or NAME/ under FEDUHB_MIRROR."""
    mirror = os.environ.get("FEDUHB_MIRROR")
    if not mirror:
        return published.url
    is_valid = False
    with contextlib.suppress(ValueError):
        is_valid = urlsplit(mirror).scheme in ("http", "https") and bool(urlsplit(mirror).hostname)
    if not is_valid:
        raise ConfigError(
            f"FEDUHB_MIRROR is {mirror!r}; give the http or https address that holds {published.name}/"
        )
    return f"{mirror.rstrip('/')}/{published.name}/"


def _read_intact(published: PublishedFiles, place: Path) -> dict[str, bytes]:
    """Return the contents of the files that are present and have their SHA-256."""
    found: dict[str, bytes] = {}
    for name, digest in published.files.items():
        with contextlib.suppress(OSError):
            content = (place / name).read_bytes()
            if sha256(content).hexdigest() == digest:
                found[name] = content
    return found


@contextlib.contextmanager
def _lock_folder(place: Path) -> Generator[None]:
    """Hold the lock of a folder of downloads. If a process is killed, its lock is released."""
    lock = FileLock(place / ".lock")
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        print_notice(f"waiting for another process that downloads into {place}")
        held = lock.acquire()
    with held:
        yield


def _download_missing(published: PublishedFiles, place: Path) -> None:
    """Download the files that are missing; delete damaged ones first."""
    intact = _read_intact(published, place)
    missing = [name for name in published.files if name not in intact]
    for name in missing:
        (place / name).unlink(missing_ok=True)
    if missing:
        print_notice(f"downloading {published.title} from {find_source_url(published)} into {place}")
    if published.archive is None:
        for name in missing:
            _download(published, name, place, [name])
    elif missing:
        _download(published, published.archive, place, missing)


def _download(published: PublishedFiles, name: str, place: Path, wanted: Sequence[str]) -> None:
    """Download a file or an archive, and keep the wanted files if all of them have their SHA-256.

    If they do not, and a part of the download is from an earlier attempt, download it once more from its first byte.
    """
    url, part = find_source_url(published) + name, place / f"{name}.part"
    was_resumed = part.exists()
    try:
        with show_progress(name) as report:
            download(url, part, report)
    except DownloadError as error:
        raise DataError(
            f"{published.name} is not complete in {place} and cannot be downloaded from {url} ({error}); "
            f"put {published.file_names} there, or into a folder that you name with --data or FEDUHB_DATA"
        ) from None
    if name in published.files:
        content = part.read_bytes()
        found = {name: content} if sha256(content).hexdigest() == published.files[name] else {}
    else:
        found = _read_members(part, wanted, published)
    if len(found) == len(wanted):
        for file, content in found.items():
            complete = place / f"{file}.part"
            if complete != part:
                complete.write_bytes(content)
            complete.replace(place / file)
    part.unlink(missing_ok=True)
    if len(found) < len(wanted) and was_resumed:
        _download(published, name, place, wanted)
    elif len(found) < len(wanted):
        raise DataError(
            f"{url} is not the original {published.title} (its SHA-256 differs), and nothing of it was kept; try again, "
            f"name another source with FEDUHB_MIRROR, or put {published.file_names} into {place}"
        )


def _read_members(archive: Path, names: Sequence[str], published: PublishedFiles) -> dict[str, bytes]:
    """Return the members of an archive that have their SHA-256, by name, whatever their folder in the archive."""
    found: dict[str, bytes] = {}
    with contextlib.suppress(*ARCHIVE_ERRORS), tarfile.open(archive, "r:gz") as opened:
        for member in opened:
            name = PurePosixPath(member.name).name
            if name not in names or not member.isreg() or member.size > LARGEST_MEMBER:
                continue
            file = opened.extractfile(member)
            content = file.read() if file else b""
            if sha256(content).hexdigest() == published.files[name]:
                found[name] = content
    return found
