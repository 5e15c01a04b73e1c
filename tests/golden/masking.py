"""The rules for what is pinned: numbers, ids, enums and keys are kept; prose, clocks, machines and paths are masked.

`mask` applies these rules, by the name of a key first and by the value after:

=====================  =============================================================
key or value           what is kept
=====================  =============================================================
a key of PROSE         that there is text, where there is; numbers as they are
a key of CLOCKS        that there is a time
a key of MACHINE       the keys below it
``made_by``            everything before the version of torch
``written``            the names of the files
a digest of a config   that there is one: a new setting changes it
an absolute path       its last part
more than three words  that there is text (not below a key of WORDS)
a float                nine significant digits
everything else        as it is
=====================  =============================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

PROSE = {"message", "says", "reasons", "notes", "stopped", "why", "text", "failed"}
CLOCKS = {"seconds", "begun", "finished"}
MACHINE = {"versions", "made", "threads", "flwr"}
WORDS = {"on", "word", "verdict", "attack"}  # the values of these keys are enums, however long
# In lineage.json (its checksum depends on them), in result.json, and in the run.json of a history.
CONFIG_DIGESTS = {"came_from", "config", "run", "sha256"}
DIGITS = 9
DIGEST = re.compile(r"[0-9a-f]{64}")
# A digest, or a name that ends with one.
INEXACT = re.compile(r"(\w+-)?([0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{8})")


def mask(value: Any, key: str = "") -> Any:
    """Return what is pinned of a JSON value that stands under ``key``."""
    if value is None:
        return None
    if key in PROSE and _is_prose(value):
        return "(text)"
    if key in CLOCKS or key.endswith("_seconds") or key.startswith("seconds_"):
        return "(time)"
    if key in MACHINE:
        return dict.fromkeys(value, "(machine)") if isinstance(value, Mapping) else "(machine)"
    if key == "written":
        return {Path(name).name: True for name in value}
    if isinstance(value, Mapping):
        return {str(inner): mask(found, str(inner)) for inner, found in value.items()}
    if isinstance(value, list | tuple):
        return [mask(found, key) for found in value]
    return _mask_text(value, key) if isinstance(value, str) else round_number(value)


def _is_prose(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(map(_is_prose, value)))


def _mask_text(value: str, key: str) -> str:
    if key == "made_by":
        return value.partition(", torch")[0]
    if key in CONFIG_DIGESTS and is_digest(value):
        return "(digest of a config)"
    if Path(value).is_absolute():
        return Path(value).name
    return "(text)" if key not in WORDS and len(value.split()) > 3 else value


def round_number(value: Any) -> Any:
    """Return a float with nine significant digits, and any other value as it is."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def is_digest(value: object) -> bool:
    """Return whether a value is a SHA-256 digest."""
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def list_differences(old: Any, new: Any, where: str = "", *, exact: bool = True) -> list[str]:
    """Return where ``new`` lacks or changes something of ``old``, one line each; keys that are only in ``new`` are fine.

    Args:
        exact: compare digests and floats too. They depend on the version of torch and on the processor.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: list[str] = []
        for key, value in old.items():
            place = f"{where}.{key}" if where else str(key)
            if key not in new:
                found.append(f"{place}: {shorten(value)} is missing")
            else:
                found += list_differences(value, new[key], place, exact=exact)
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, (a, b) in pairs for line in list_differences(a, b, f"{where}[{i}]", exact=exact)]
    if not exact and _is_inexact(old) and _is_inexact(new):
        return []
    same = old == new and isinstance(old, bool) == isinstance(new, bool)
    return [] if same else [f"{where}: {shorten(old)} became {shorten(new)}"]


def digest_bits(old: Any, new: Any) -> str:
    """Return a digest of those values of ``new`` that ``old`` has, with all their bits."""
    return sha256(json.dumps(_select(old, new), sort_keys=True).encode()).hexdigest()[:16]


def _select(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {key: _select(value, new[key]) for key, value in old.items() if key in new}
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [_select(a, b) for a, b in zip(old, new, strict=True)]
    return new


def _is_inexact(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, str) and INEXACT.fullmatch(value) is not None)


def shorten(value: Any, most: int = 120) -> str:
    """Return a value's text, cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."
