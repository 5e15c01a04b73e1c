"""A data set that comes as one archive: its expected files and nothing else get out of it."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from data.serving import digests, left_behind
from data.wording import refused
from feduhb.data.files import CIFAR10, read_cached_files
from feduhb.errors import DataError

BATCHES = {"a.bin": bytes(range(256)) * 300, "b.bin": b"b" * 50_000}
PACKED = replace(CIFAR10, name="packed", title="PACKED", files=digests(BATCHES), archive="all.tar.gz")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


Member = tuple[str, bytes]


def tar(*members: Member | tarfile.TarInfo) -> bytes:
    """Pack members in the order given; a `TarInfo` goes in as it is."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return packed.getvalue()


WHOLE = tar(*(("batches/" + name, body) for name, body in BATCHES.items()))


def test_an_archive_is_unpacked_and_goes(mirror, packed):
    shelf = mirror({"/packed/all.tar.gz": WHOLE})
    assert read_cached_files(PACKED) == BATCHES
    assert shelf.asked == [("/packed/all.tar.gz", None)]
    assert left_behind(packed) == set(BATCHES)
    assert read_cached_files(PACKED) == BATCHES
    assert len(shelf.asked) == 1


def test_an_archive_that_broke_off_goes_on(mirror, packed):
    packed.mkdir(parents=True)
    (packed / "all.tar.gz.part").write_bytes(WHOLE[:200])
    shelf = mirror({"/packed/all.tar.gz": WHOLE})
    assert read_cached_files(PACKED) == BATCHES
    assert shelf.asked == [("/packed/all.tar.gz", "bytes=200-")]


def test_a_damaged_batch_is_fetched_again_and_the_others_stay(mirror, packed):
    shelf = mirror({"/packed/all.tar.gz": WHOLE})
    read_cached_files(PACKED)
    kept = (packed / "b.bin").stat().st_mtime_ns
    (packed / "a.bin").write_bytes(b"damaged")
    assert read_cached_files(PACKED) == BATCHES
    assert len(shelf.asked) == 2
    assert (packed / "b.bin").stat().st_mtime_ns == kept


@pytest.mark.parametrize(
    "archive",
    [
        b"not an archive",
        b"",
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:300] + bytes([WHOLE[300] ^ 255]) + WHOLE[301:],
        tar(("batches/a.bin", BATCHES["a.bin"])),
        tar(("batches/a.bin", BATCHES["a.bin"]), ("batches/b.bin", b"other")),
    ],
    ids=["no archive", "nothing", "half", "a flipped byte", "one of two", "one is another"],
)
def test_a_wrong_archive_leaves_nothing(archive, mirror, packed):
    mirror({"/packed/all.tar.gz": archive})
    with refused(DataError, "/packed/all.tar.gz is not the original PACKED"):
        read_cached_files(PACKED)
    assert left_behind(packed) == set()


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_paths_of_an_archive_are_not_followed(mirror, packed, tmp_path):
    """A member under an evil path is taken by its last name, or not at all; nothing else is written anywhere."""
    evil = tar(
        ("../../escaped", b"!"), (str(tmp_path / "absolute"), b"!"), ("extra.bin", b"!"), link("a.bin", "/etc/hostname"),
        ("../../../a.bin", BATCHES["a.bin"]), (str(tmp_path / "b.bin"), BATCHES["b.bin"]),
    )  # fmt: skip
    mirror({"/packed/all.tar.gz": evil})
    assert read_cached_files(PACKED) == BATCHES
    assert left_behind(packed) == set(BATCHES)
    assert not (packed / "a.bin").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}


def test_a_huge_member_is_not_read(mirror, packed, monkeypatch):
    monkeypatch.setattr("feduhb.data.files.LARGEST_MEMBER", 60_000)
    mirror({"/packed/all.tar.gz": WHOLE})
    with refused(DataError, "is not the original PACKED"):
        read_cached_files(PACKED)
    assert left_behind(packed) == set()
