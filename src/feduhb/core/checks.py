"""Numbers that users give, checked before anything is done with them."""

from __future__ import annotations

import math
import operator
from typing import Any

from feduhb.errors import ConfigError


def whole(name: str, value: Any, least: int | None = 1) -> None:
    """Refuse what is no whole number, or one under ``least``; true and false are none."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        more = "" if least is None else f", {least} or more"
        raise ConfigError(f"{name} is {value!r}; give a whole number{more}")
    if least is not None and found < least:
        raise ConfigError(f"{name} is {found}; give {least} or more")


def finite(value: Any) -> bool:
    """Whether this is a number, and neither infinite nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
