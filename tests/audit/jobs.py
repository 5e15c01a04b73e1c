"""Jobs that another process can import."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from feduhb.errors import DataError


def double(number: int) -> tuple[int, int]:
    """Return twice a number, and the process that computed it."""
    print("chatter")  # noqa: T201 (must not get in the way of the answer)
    return 2 * number, os.getpid()


def refuse(number: int) -> int:
    """Raise one of our errors."""
    raise DataError(f"no {number} here")


def die(number: int) -> int:
    """End as if the machine had run out of memory; never in the process of the tests."""
    assert "PYTEST_CURRENT_TEST" not in os.environ or os.getppid() == number
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_if_odd(number: int) -> int:
    """End at every odd number."""
    if number % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def wait_forever(pipe: str) -> None:
    """Write into a named pipe, then wait to be killed."""
    Path(pipe).write_text("at work")
    while True:
        signal.pause()


def use_pipe(job: tuple[str, str]) -> str:
    """Read from a named pipe, which waits until another job writes into it; or write; or do neither."""
    pipe, what = job
    if what == "read":
        return Path(pipe).read_text()
    if what == "write":
        Path(pipe).write_text("written")
    return what
