"""Jobs that another process can import."""

from __future__ import annotations

import os
import signal

from feduhb.errors import DataError


def doubled(number: int) -> tuple[int, int]:
    """Give twice a number, and who worked it out."""
    print("chatter")  # noqa: T201 (must not get in the way of the answer)
    return 2 * number, os.getpid()


def refused(number: int) -> int:
    """Refuse in our own words."""
    raise DataError(f"no {number} here")


def killed(number: int) -> int:
    """Die as if the machine had run out of memory; never in the process of the tests."""
    assert "PYTEST_CURRENT_TEST" not in os.environ or os.getppid() == number
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def killed_if_odd(number: int) -> int:
    """Die at every other number."""
    if number % 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number
