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
from feduhb.records import RunFolder, write_atomically

FILE = "later.json"


def note(run: Path, later: Path) -> None:
    """Write into a run's folder which run serves a request that was made of it; a folder that cannot be written stays as it is."""
    known = _names(run)
    name = Path(os.path.relpath(later.resolve(), run.resolve())).as_posix()
    with contextlib.suppress(FeduhbError):
        if name not in known:
            write_atomically(run / FILE, (json.dumps([*known, name], indent=1) + "\n").encode())


def brings_back(run: Run, asked: Request) -> str | None:
    """Say whom a request would bring back, whom a later run has forgotten; None where nobody."""
    total = asked if run.forgot is None else run.forgot.merged(asked)
    for later, forgot in _later(run):
        if (back := forgot.beyond(total)) is not None:
            return (
                f"{later} came from {run.folder} and has forgotten {forgot}; a request made of {run.folder} again would bring {back} back: "
                f"make it of {later}, or name them too: {total.merged(back)}"
            )
    return None


def _later(run: Run) -> Iterator[tuple[Path, Request]]:
    if run.folder is None:
        return
    for name in _names(run.folder):
        folder = Path(os.path.normpath(run.folder / name))
        with contextlib.suppress(FeduhbError, KeyError, TypeError):  # deleted, or no run any more
            yield folder, Request.parse(RunFolder(folder).config()["unlearn"]["forget"])


def _names(folder: Path) -> list[str]:
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return [str(name) for name in found]
    except (OSError, ValueError, TypeError):
        return []
