"""One file over HTTP from a server on the loopback: whole, in pieces, and not at all."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from data.serving import Shelf, nobody, serving
from feduhb.data import download as module
from feduhb.data.download import ATTEMPTS, CHUNK, DownloadError, download, show_progress

BODY = bytes(i * i % 251 for i in range(4 * CHUNK + 17))
THIRD = len(BODY) // 3


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def fetch(shelf: Shelf, part: Path, path: str = "/file") -> list[tuple[int, int | None]]:
    told: list[tuple[int, int | None]] = []
    download(shelf.url + path, part, lambda done, total: told.append((done, total)))
    return told


def test_whole(part):
    with serving({"/file": BODY}) as shelf:
        told = fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert shelf.asked == [("/file", None)]
    assert told[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) == 5


def test_an_empty_file(part):
    with serving({"/file": b""}) as shelf:
        assert fetch(shelf, part) == []
    assert part.read_bytes() == b""


def test_it_goes_on_behind_what_is_there(part):
    part.write_bytes(BODY[:THIRD])
    with serving({"/file": BODY}) as shelf:
        told = fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert shelf.asked == [("/file", f"bytes={THIRD}-")]
    assert told[0][0] > THIRD
    assert told[-1] == (len(BODY), len(BODY))


def test_what_is_there_is_kept_and_not_fetched_again(part):
    part.write_bytes(b"x" * THIRD)
    with serving({"/file": BODY}) as shelf:
        fetch(shelf, part)
    assert part.read_bytes() == b"x" * THIRD + BODY[THIRD:]


def test_a_server_without_ranges_starts_over(part):
    part.write_bytes(b"x" * THIRD)
    with serving({"/file": BODY}, ranges=False) as shelf:
        fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert shelf.asked == [("/file", f"bytes={THIRD}-")]


def test_a_longer_rest_goes_when_a_server_starts_over(part):
    part.write_bytes(b"x" * (2 * len(BODY)))
    with serving({"/file": BODY}, ranges=False) as shelf:
        fetch(shelf, part)
    assert part.read_bytes() == BODY


def test_a_connection_that_breaks_off_is_taken_up(part):
    with serving({"/file": BODY}, cuts=[THIRD, 1]) as shelf:
        fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert shelf.asked == [("/file", None), ("/file", f"bytes={THIRD}-"), ("/file", f"bytes={THIRD + 1}-")]


def test_a_connection_that_breaks_off_without_ranges(part):
    with serving({"/file": BODY}, ranges=False, cuts=[THIRD, 2 * THIRD]) as shelf:
        fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert len(shelf.asked) == 3


def test_it_gives_up_and_keeps_what_came(part):
    with serving({"/file": BODY}, cuts=[1000] * ATTEMPTS) as shelf:
        words = f"broke off after {1000 * ATTEMPTS:,} of {len(BODY):,} bytes, {ATTEMPTS} times; start again to continue"
        with pytest.raises(DownloadError, match=words):
            fetch(shelf, part)
        assert len(shelf.asked) == ATTEMPTS
        assert part.read_bytes() == BODY[: 1000 * ATTEMPTS]
        fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert shelf.asked[-1] == ("/file", f"bytes={1000 * ATTEMPTS}-")


def test_an_answer_cut_before_its_first_byte(part):
    with serving({"/file": BODY}, cuts=[0]) as shelf:
        fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert shelf.asked == [("/file", None)] * 2


def test_a_person_who_interrupts_loses_nothing(part):
    def interrupt(done: int, total: int | None) -> None:  # noqa: ARG001
        if done >= 2 * CHUNK:
            raise KeyboardInterrupt

    with serving({"/file": BODY}) as shelf:
        with pytest.raises(KeyboardInterrupt):
            download(shelf.url + "/file", part, interrupt)
        assert part.read_bytes() == BODY[: 2 * CHUNK]
        fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert shelf.asked[1] == ("/file", f"bytes={2 * CHUNK}-")


def test_nothing_more_to_come(part):
    part.write_bytes(BODY)
    with serving({"/file": BODY}) as shelf:
        assert fetch(shelf, part) == []
    assert part.read_bytes() == BODY


def test_a_part_from_somewhere_else_is_not_put_behind(part):
    """A server that begins at another byte than it was asked for: all of it again, without a range."""
    part.write_bytes(BODY[:THIRD])
    with serving({"/file": BODY}, begins=THIRD + 5) as shelf:
        fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert shelf.asked == [("/file", f"bytes={THIRD}-"), ("/file", None)]


def test_a_whole_answer_is_whole_whatever_its_headers_say(part):
    part.write_bytes(b"x" * THIRD)
    with serving({"/file": BODY}, ranges=False, begins=THIRD) as shelf:
        fetch(shelf, part)
    assert part.read_bytes() == BODY


def test_a_server_that_does_not_say_how_long(part):
    with serving({"/file": BODY}, sized=False) as shelf:
        told = fetch(shelf, part)
    assert part.read_bytes() == BODY
    assert told[-1] == (len(BODY), None)


def test_not_found(part):
    with serving({}) as shelf, pytest.raises(DownloadError, match=r"^HTTP 404 Not Found$"):
        fetch(shelf, part)
    assert len(shelf.asked) == 1
    assert not part.exists()


def test_not_found_keeps_what_came_before(part):
    part.write_bytes(BODY[:THIRD])
    with serving({}) as shelf, pytest.raises(DownloadError, match="404"):
        fetch(shelf, part)
    assert part.read_bytes() == BODY[:THIRD]


def test_nobody_there(part):
    with nobody() as url, pytest.raises(DownloadError, match=r"^Connection refused$"):
        download(f"{url}/file", part, lambda *_: None)
    assert not part.exists()


def test_a_redirect_is_followed_with_its_range(part):
    part.write_bytes(BODY[:THIRD])
    with serving({"/file": BODY}) as shelf:
        shelf.moved["/old"] = f"{shelf.url}/file"
        fetch(shelf, part, "/old")
    assert part.read_bytes() == BODY
    assert shelf.asked == [("/old", f"bytes={THIRD}-"), ("/file", f"bytes={THIRD}-")]


@pytest.mark.parametrize("kind", ["file", "ftp", "data"])
def test_a_redirect_to_something_else_is_not(kind, part, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of this machine")
    target = {"file": secret.as_uri(), "ftp": "ftp://127.0.0.1/x", "data": "data:,x"}[kind]
    with serving({}, moved={"/file": target}) as shelf, pytest.raises(DownloadError):
        fetch(shelf, part)
    assert not part.exists()


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "ftp://127.0.0.1/x",
        "data:,x",
        "http://127.0.0.1:x/y",
        "http:///x",
        "http://ü\n/",
    ],
)
def test_other_addresses_are_refused(url, part):
    with pytest.raises(DownloadError):
        download(url, part, lambda *_: None)
    assert not part.exists()


def test_an_endless_file_does_not_fill_the_disk(part, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 2 * CHUNK)
    with serving({"/file": BODY}) as shelf, pytest.raises(DownloadError, match="more than 131,072 bytes"):
        fetch(shelf, part)
    assert not part.exists()
    assert len(shelf.asked) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_it_come(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with show_progress("images.gz") as tell:
        for done in (60_000, 100_000, 110_000, 2_000_000):
            tell(done, 2_000_000)
    lines = ("0.1 of 2.0 MB", "2.0 of 2.0 MB")
    assert screen.getvalue() == "".join(f"\rimages.gz  {line}" for line in lines) + "\n"


def test_a_terminal_without_a_length(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with show_progress("images.gz") as tell:
        tell(3_000_000, None)
    assert screen.getvalue() == "\rimages.gz  3.0 MB\n"


def test_the_line_ends_when_it_fails(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())

    def fail() -> None:
        with show_progress("images.gz") as tell:
            tell(3_000_000, None)
            raise DownloadError

    with pytest.raises(DownloadError):
        fail()
    assert screen.getvalue() == "\rimages.gz  3.0 MB\n"


def test_a_file_sees_nothing(capsys):
    with show_progress("images.gz") as tell:
        tell(1_000_000, 2_000_000)
    assert capsys.readouterr() == ("", "")
