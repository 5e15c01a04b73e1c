"""Downloads into the cache: downloaded once, always verified, resumed after a break, safe with two processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from data.serving import digests, left_behind
from data.wording import refused
from feduhb.data.files import (
    CIFAR10,
    MNIST,
    PUBLISHED,
    PublishedFiles,
    find_cache_folder,
    find_source_url,
    read_cached_files,
    read_files,
)
from feduhb.errors import ConfigError, DataError

PIECES = {"one.gz": b"first" * 30_000, "two.gz": b"second" * 20_000}
SERVED = {f"/loose/{name}": body for name, body in PIECES.items()}


LOOSE = replace(MNIST, name="loose", title="LOOSE", files=digests(PIECES))

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def loose(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "loose"


def test_fetched_once_and_read_without_a_server(mirror, loose, monkeypatch):
    shelf = mirror(SERVED)
    assert read_cached_files(LOOSE) == PIECES
    assert shelf.asked == [("/loose/one.gz", None), ("/loose/two.gz", None)]
    assert left_behind(loose) == set(PIECES)
    monkeypatch.setenv("FEDUHB_MIRROR", "http://127.0.0.1:1")
    assert read_cached_files(LOOSE) == PIECES
    assert len(shelf.asked) == 2


def test_the_data_set_comes_from_the_cache_by_its_name(mirror, monkeypatch):
    mirror({f"/mnist/{name}": body for name, body in PIECES.items()})
    monkeypatch.setitem(PUBLISHED, "mnist", replace(MNIST, files=digests(PIECES)))
    assert read_files("mnist") == list(PIECES.values())


def test_what_is_there_already_is_not_written_to(mirror, loose):
    """As on a disk that cannot be written: not even a lock is taken."""
    shelf = mirror(SERVED)
    loose.mkdir(parents=True)
    for name, body in PIECES.items():
        (loose / name).write_bytes(body)
    assert read_cached_files(LOOSE) == PIECES
    assert {path.name for path in loose.iterdir()} == set(PIECES)
    assert shelf.asked == []


def test_only_what_is_missing_is_fetched(mirror, loose):
    shelf = mirror(SERVED)
    loose.mkdir(parents=True)
    (loose / "one.gz").write_bytes(PIECES["one.gz"])
    assert read_cached_files(LOOSE) == PIECES
    assert shelf.paths == ["/loose/two.gz"]


@pytest.mark.parametrize(
    "damage",
    [b"", PIECES["two.gz"][:-1], b"x" + PIECES["two.gz"][1:], PIECES["one.gz"]],
    ids=["empty", "truncated", "changed", "another"],
)
def test_a_damaged_file_in_the_cache_is_fetched_again(damage, mirror, loose):
    shelf = mirror(SERVED)
    read_cached_files(LOOSE)
    (loose / "two.gz").write_bytes(damage)
    assert read_cached_files(LOOSE) == PIECES
    assert shelf.paths[2:] == ["/loose/two.gz"]


def test_a_damaged_file_in_the_cache_is_not_used_offline(mirror, loose, monkeypatch):
    mirror(SERVED)
    read_cached_files(LOOSE)
    (loose / "two.gz").write_bytes(b"damaged")
    monkeypatch.setenv("FEDUHB_MIRROR", "http://127.0.0.1:1")
    with refused(
        DataError, f"loose is not complete in {loose} and cannot be downloaded from http://127.0.0.1:1"
    ):
        read_cached_files(LOOSE)
    assert left_behind(loose) == {"one.gz"}


def test_offline_with_nothing_there(loose):
    with refused(
        DataError,
        f"loose is not complete in {loose} and cannot be downloaded from http://127.0.0.1:",
        "/loose/one.gz (Connection refused)",
        "put one.gz, two.gz there, or into a folder that you name with --data or FEDUHB_DATA",
    ):
        read_cached_files(LOOSE)
    assert left_behind(loose) == set()


def test_one_file_of_two_is_not_on_the_server(mirror, loose):
    mirror({"/loose/one.gz": PIECES["one.gz"]})
    with refused(DataError, "/loose/two.gz (HTTP 404 Not Found); put one.gz, two.gz there"):
        read_cached_files(LOOSE)
    assert left_behind(loose) == {"one.gz"}


def test_corrupt_bytes_from_the_server_are_not_kept(mirror, loose):
    shelf = mirror({"/loose/one.gz": b"x" + PIECES["one.gz"][1:], "/loose/two.gz": PIECES["two.gz"]})
    with refused(
        DataError,
        f"{shelf.url}/loose/one.gz is not the original LOOSE (its SHA-256 differs), and nothing of it was kept; try again",
        f"name another source with FEDUHB_MIRROR, or put one.gz, two.gz into {loose}",
    ):
        read_cached_files(LOOSE)
    assert left_behind(loose) == set()
    assert shelf.paths == ["/loose/one.gz"]


def test_a_truncated_download_has_no_name_of_its_own_until_it_is_whole(mirror, loose):
    shelf = mirror(SERVED, cuts=[70_000, 10, 10, 10])
    with refused(DataError, "the connection broke off after 70,030 of 150,000 bytes, 4 times"):
        read_cached_files(LOOSE)
    assert left_behind(loose) == {"one.gz.part"}
    assert read_cached_files(LOOSE) == PIECES
    assert shelf.asked[4] == ("/loose/one.gz", "bytes=70030-")
    assert left_behind(loose) == set(PIECES)


def test_a_whole_part_is_taken_as_it_is(mirror, loose):
    shelf = mirror(SERVED)
    loose.mkdir(parents=True)
    (loose / "one.gz.part").write_bytes(PIECES["one.gz"])
    assert read_cached_files(LOOSE) == PIECES
    assert shelf.asked[0] == ("/loose/one.gz", "bytes=150000-")
    assert shelf.paths == ["/loose/one.gz", "/loose/two.gz"]


@pytest.mark.parametrize("rest", [b"x" * 1000, b"x" * 200_000], ids=["shorter", "longer"])
def test_a_rest_of_something_else_is_dropped(rest, mirror, loose):
    """Shorter or longer than the file: once from there, then from the first byte."""
    shelf = mirror(SERVED)
    loose.mkdir(parents=True)
    (loose / "one.gz.part").write_bytes(rest)
    assert read_cached_files(LOOSE) == PIECES
    assert shelf.asked[:2] == [("/loose/one.gz", f"bytes={len(rest)}-"), ("/loose/one.gz", None)]
    assert left_behind(loose) == set(PIECES)


def test_one_line_says_what_happens_where_no_terminal_is(mirror, loose, capsys):
    shelf = mirror(SERVED)
    read_cached_files(LOOSE)
    assert capsys.readouterr() == ("", f"feduhb: downloading LOOSE from {shelf.url}/loose/ into {loose}\n")
    read_cached_files(LOOSE)
    assert capsys.readouterr() == ("", "")


PROCESS = """
import sys
from dataclasses import replace
from feduhb.data.files import MNIST, read_cached_files
read_cached_files(replace(MNIST, name="loose", title="LOOSE", files=dict(pair.split("=") for pair in sys.argv[1:])))
assert "torch" not in sys.modules
"""


def process() -> subprocess.Popen[str]:
    pairs = [f"{name}={digest}" for name, digest in LOOSE.files.items()]
    return subprocess.Popen([sys.executable, "-c", PROCESS, *pairs], stderr=subprocess.PIPE, text=True)


def test_two_processes_at_once_fetch_once(mirror, loose):
    """The second waits until the first is done, and then finds everything there."""
    gate = threading.Event()
    shelf = mirror(SERVED, gate=gate)
    with process() as first:
        assert shelf.reached.wait(60)
        with process() as second:
            assert second.stderr is not None
            assert (
                second.stderr.readline()
                == f"feduhb: waiting for another process that downloads into {loose}\n"
            )
            gate.set()
            assert (first.wait(60), second.wait(60)) == (0, 0)
            assert second.stderr.read() == ""
    assert shelf.paths == ["/loose/one.gz", "/loose/two.gz"]
    assert {name: (loose / name).read_bytes() for name in PIECES} == PIECES


def test_a_killed_process_holds_nobody_up(mirror, loose):
    gate = threading.Event()
    shelf = mirror(SERVED, gate=gate)
    with process() as first:
        assert shelf.reached.wait(60)
        first.kill()
    gate.set()
    assert read_cached_files(LOOSE) == PIECES
    assert left_behind(loose) == set(PIECES)


@pytest.mark.parametrize("name", [None, ""])
def test_the_published_address_without_a_mirror(name, monkeypatch):
    monkeypatch.delenv("FEDUHB_MIRROR")
    if name is not None:
        monkeypatch.setenv("FEDUHB_MIRROR", name)
    assert find_source_url(MNIST) == "https://ossci-datasets.s3.amazonaws.com/mnist/"
    assert (
        find_source_url(CIFAR10) + (CIFAR10.archive or "")
        == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    )


@pytest.mark.parametrize("base", ["https://here.example/data", "https://here.example/data/"])
def test_a_mirror_has_a_folder_for_each(base, monkeypatch):
    monkeypatch.setenv("FEDUHB_MIRROR", base)
    assert find_source_url(MNIST) == "https://here.example/data/mnist/"
    assert find_source_url(CIFAR10) == "https://here.example/data/cifar10/"


@pytest.mark.parametrize(
    "base", ["ftp://here.example", "file:///data", "/data", "here.example", "http://", "http://["]
)
def test_a_mirror_that_is_none(base, monkeypatch):
    monkeypatch.setenv("FEDUHB_MIRROR", base)
    with refused(
        ConfigError,
        f"FEDUHB_MIRROR is {base!r}; give the http or https address that holds loose/",
    ):
        read_cached_files(LOOSE)


def test_where_the_cache_is(monkeypatch, tmp_path):
    assert find_cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("FEDUHB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_cache_folder() == tmp_path / "xdg" / "feduhb"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative"):  # the specification says to ignore these
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert find_cache_folder() == tmp_path / ".cache" / "feduhb"


def test_no_home(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError

    for name in ("FEDUHB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with refused(DataError, "there is no home folder for downloads; name a folder with FEDUHB_CACHE"):
        find_cache_folder()


def test_a_cache_that_cannot_be(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDUHB_CACHE", str(tmp_path / "file"))
    with refused(
        DataError,
        f"{tmp_path / 'file' / 'loose'} cannot be written (Not a directory); name another folder for downloads with FEDUHB_CACHE",
        "or one that holds one.gz, two.gz with --data or FEDUHB_DATA",
    ):
        read_cached_files(LOOSE)


def test_a_folder_in_place_of_a_file(mirror, loose):
    mirror(SERVED)
    (loose / "one.gz").mkdir(parents=True)
    with refused(DataError, f"{loose} cannot be written ("):
        read_cached_files(LOOSE)


@pytest.mark.parametrize("published", PUBLISHED.values(), ids=list(PUBLISHED))
def test_the_tables(published: PublishedFiles):
    assert published.url.startswith("https://")
    assert published.url.endswith("/")
    assert all(
        len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in published.files.values()
    )
    assert len(set(published.files.values())) == len(published.files)


def test_a_file_that_vanishes_meanwhile(mirror, loose, monkeypatch):
    mirror(SERVED)
    monkeypatch.setattr("feduhb.data.files._download_missing", lambda *_: None)
    with refused(DataError, f"{loose / 'one.gz'} was changed while it was read; try again"):
        read_cached_files(LOOSE)
