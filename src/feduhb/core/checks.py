"""Checks of the numbers that users give."""

from __future__ import annotations

import math
import operator
import re
import sys
from numbers import Real
from typing import Any

from feduhb.errors import ConfigError

MOST = 10**9  # of anything that is counted
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(?:([kmgt])(i?))?b?", re.IGNORECASE)  # 1GiB, 500 MB, 1000000


def check_whole(name: str, value: Any, least: int | None = 1) -> None:
    """Raise ConfigError if a value is not a whole number, less than ``least``, or a count above ``MOST``.

    True and False are refused. With ``least`` None the value is not a count, and may be any whole number.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        more = "" if least is None else f", {least} or more"
        raise ConfigError(f"{name} is {value!r}; give a whole number{more}")
    if least is not None and found < least:
        raise ConfigError(f"{name} is {found}; give {least} or more")
    if least is not None and found > MOST:
        raise ConfigError(f"{name} is above {MOST:,}, which no run would ever finish; give fewer")


def parse_size(value: Any) -> int:
    """Return the number of bytes of ``keep_models``, given as such or as text: "1GiB" is 1024^3 bytes, "500MB" is 500 * 1000^2."""
    text = value.strip() if isinstance(value, str) else str(value) if type(value) is int else ""
    found = SIZE.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"keep_models is {value!r}, which is not a size; give one such as '1GiB' or '500MB', or a number of bytes"
        )
    power = " kmgt".index(found[2].lower()) if found[2] else 0
    return int(float(found[1]) * (1024 if found[3] else 1000) ** power)


def check_show(show: Any) -> None:
    """Raise ConfigError if rounds cannot be shown in this way."""
    for one in list_shows(show):
        is_word = one is None or one in ("auto", "lines")
        if not is_word and not callable(one) and not callable(getattr(one, "watch", None)):
            raise ConfigError(
                f"show is {show!r}; give 'auto', 'lines', None, a function, which gets every Round, or a list of these"
            )


def list_shows(show: Any) -> list[Any]:
    """Return the ways in which rounds are shown: one, or several in a list or tuple."""
    return [*show] if isinstance(show, list | tuple) else [show]


def wants_lines(show: Any) -> bool:
    """Return whether lines for a person are written: for "lines" always, for "auto" on a terminal."""
    wanted = list_shows(show)
    return "lines" in wanted or ("auto" in wanted and sys.stderr.isatty())


def check_stop(stop: Any) -> None:
    """Raise ConfigError for an object that is not a stop rule, such as a plain function."""
    if isinstance(stop, type) or not (callable(stop) and callable(getattr(stop, "threshold", None))):
        raise ConfigError(
            f"stop is {stop!r}, which is not a stop rule; give feduhb.dynamic_stop(0.6), feduhb.never, or an object with the two "
            "methods of feduhb.stopping.StopRule: __call__ and threshold"
        )


def name_kind(value: Any) -> str:
    """Return the type of a value with its article, such as "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_positive(name: str, value: Any, example: float) -> None:
    """Raise ConfigError if a value is not a positive number."""
    if not (is_finite(value) and value > 0):
        raise ConfigError(f"{name} is {value!r}; give a positive number, such as {example}")


def check_least(name: str, value: Any) -> None:
    """Raise ConfigError if a value is not a number of 0 or more."""
    if not (is_finite(value) and value >= 0):
        raise ConfigError(f"{name} is {value!r}; give 0 or more")


def check_decay(name: str, value: Any, example: float = 0.9) -> None:
    """Raise ConfigError if a value is not a number of at least 0 and below 1, such as a momentum."""
    if not (is_finite(value) and 0 <= value < 1):
        raise ConfigError(f"{name} is {value!r}; give at least 0 and below 1, such as {example}")


def check_share(name: str, value: Any, *, positive: bool = False) -> None:
    """Raise ConfigError if a value is not a share of rows: at least 0 and below 1."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) < 1 or (positive and not value):
        least = "above 0" if positive else "of at least 0"
        raise ConfigError(f"{name} is {value!r}; give a share {least} and below 1, such as 0.2")


def check_step(
    size: Any, epochs: Any, aggregate: Any, *, name: str = "step_size", example: float = 1.0
) -> None:
    """Raise ConfigError if a setting is invalid that all methods share whose clients train in every round.

    Args:
        size: how far the server steps.
        name: what the method calls it.
    """
    check_positive(name, size, example)
    check_whole("epochs", epochs, least=0)
    if not callable(aggregate):
        raise ConfigError(f"aggregate is {aggregate!r}; give a rule, such as feduhb.median, or leave it out")
