"""Which files of runs others may read: none that hold updates, weights or audits, and no folder of a run."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from hardening.kills import Scenario
from hardening.tally import Finding


def list_open(place: Path) -> list[str]:
    """Return the folders of runs, and the files with updates, weights or audits, that others may enter, read or write.

    Paths that differ in numbers only are listed once.
    """
    found: dict[str, None] = {}
    for path in sorted(place.rglob("*")):
        is_run = path.is_dir() and any((path / name).exists() for name in ("config.toml", "retired.json"))
        is_private = path.is_file() and (path.suffix == ".safetensors" or path.name.startswith("audit"))
        mode = stat.S_IMODE(path.lstat().st_mode)
        if (is_run or is_private) and mode & 0o077:
            found[f"{re.sub('[0-9]{5}', 'N', str(path.relative_to(place)))} has mode {mode:o}"] = None
    return list(found)


def check(scenario: Scenario, place: Path) -> list[Finding]:
    """Look at the folders that the command of a scenario left, with the umask 022."""
    said = list_open(place / scenario.name)
    return [Finding("mode", " ".join(scenario.command), scenario.name, one) for one in said]
