"""A run whose place another has taken: to serve a request from it again would bring back whom that one has forgotten."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from feduhb.data.request import Request
from feduhb.errors import FeduhbError
from feduhb.experiment.runs import Run
from feduhb.records import RunFolder, update_atomically

FILE = "later.json"


def note(run: Run, later: Path) -> None:
    """Write into a run's folder, and into those of the runs it came from, which run serves a request that was made of it.

    A folder that cannot be written stays as it is.
    """
    before = [one.path for one in run.earlier if one.there]
    for folder in before if run.folder is None else [run.folder, *before]:
        name = Path(os.path.relpath(later.resolve(), folder.resolve())).as_posix()
        with contextlib.suppress(FeduhbError):
            update_atomically(folder / FILE, lambda old, name=name: _with(old, name))


def brings_back(run: Run, asked: Request) -> str | None:
    """Say whom a request would bring back, whom a later run has forgotten; None where nobody."""
    total = asked if run.forgot is None else run.forgot.merged(asked)
    for later, forgot in _later(run):
        if (back := forgot.beyond(total)) is not None:
            return (
                f"{later} came from {run.folder} and has forgotten {forgot}; a request made of {run.folder} again would bring {back} back: "
                f"make it of {later}, or name them too: {total.merged(back)}. To try things out use feduhb compare; if {later} was a mistake, delete it"
            )
    return None


def _later(run: Run) -> Iterator[tuple[Path, Request]]:
    if run.folder is None:
        return
    for name in _names(run.folder):
        folder = _short((run.folder.resolve() / name).resolve())
        with contextlib.suppress(FeduhbError, KeyError, TypeError):  # deleted, or no run any more
            yield folder, Request.parse(RunFolder(folder).config()["unlearn"]["forget"])


def _names(folder: Path) -> list[str]:
    try:
        return _read((folder / FILE).read_bytes())
    except OSError:
        return []


def _read(told: bytes) -> list[str]:
    try:
        return [str(name) for name in json.loads(told)]
    except (ValueError, TypeError):
        return []


def _with(told: bytes, name: str) -> bytes:
    return (json.dumps([*dict.fromkeys([*_read(told), name])], indent=1) + "\n").encode()


def _short(path: Path) -> Path:
    """Name a path from where we are, where that is above it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
