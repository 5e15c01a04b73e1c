"""What every run does with its folder: hold it, find where it stands, and name what it is made of."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import platform
from collections.abc import Generator, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from feduhb.core.aggregate import spelling
from feduhb.core.types import ClientId, Engine, Method
from feduhb.errors import CheckpointError, RunFolderError
from feduhb.records import Round, RunFolder, locked, why_ended
from feduhb.run.checkpoint import load_state, state_fields

HISTORY = "history"  # the folder of a run's history, in the run's own
SUMMED = ("client_epochs", "bytes_down", "bytes_up", "client_seconds", "server_seconds", "evaluate_seconds")


@contextlib.contextmanager
def sole_writer(
    folder: RunFolder | None, who: str = "process", way_out: str = "choose another --out"
) -> Generator[None]:
    """Let one process at a time write a run folder. The lock goes with its process, however that ends."""
    if folder is None:
        yield
        return
    with folder.lock_file() as file:
        if not locked(file):
            raise RunFolderError(f"another {who} is writing {folder.path}; wait for it, or {way_out}")
        yield


def resumed(folder: RunFolder, fresh: Any, bare: Any = None) -> tuple[Any, list[Round]]:
    """Find where a run stands: the state after its last checkpoint, and the records up to there.

    Args:
        fresh: the state to begin with, where no round was finished.
        bare: of the kind that a run leaves at its end which drops all but its model then; None where it drops nothing.
    """
    if not folder.state_path.exists():
        if len(folder.rounds()) > 1:
            raise CheckpointError(
                f"{folder.path} has rounds but no checkpoint; restore {folder.STATE} from a backup, or delete the folder and run again"
            )
        folder.keep([])
        return fresh, []
    like = fresh
    if bare is not None and set(state_fields(folder.state_path)) == set(bare._fields):
        like = bare
    state, done = load_state(folder.state_path, like)
    records = folder.rounds()
    if len(records) < done:
        raise RunFolderError(
            f"{folder.rounds_path} holds {len(records)} rounds, its checkpoint {done}; delete {folder.path} and run again"
        )
    folder.keep(records[:done])
    return state, records[:done]


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any], table: str = "") -> str | None:
    """Say in words where two configs differ first; None where they agree."""
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        name = f"{table}.{key}" if table else key
        if {type(a), type(b)} == {dict, type(None)}:
            return f"{'a' if a else 'no'} table [{name}], not {'one' if b else 'none'}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if inner := first_difference(a, b, name):
                return inner
        elif a != b:
            return f"{name} = {a!r}, not {b!r}"
    return None


def identity(config: Mapping[str, Any]) -> str:
    """Name a run by its config, so that a history knows whose it is."""
    return sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def weights_digest(params: Tensor) -> str:
    """Name weights by their SHA-256."""
    return sha256(params.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def settings_of(method: Method[Any]) -> dict[str, float | int | str]:
    """Give a method's settings as a config spells them."""
    found = {field.name: getattr(method, field.name) for field in fields(method)}  # pyright: ignore[reportArgumentType]
    return {
        key: value if isinstance(value, int | float | str) else spelling(value)
        for key, value in found.items()
        if key not in {"history", "clients"}  # what a method works on, not how
    }


def same_replay(
    folder: RunFolder, method: Method[Any], forget: str, way_out: str = "choose another --out"
) -> None:
    """Refuse a finished replay of another request or by another method: its history is gone, and it cannot be run again."""
    found = folder.config().get("unlearn", {})
    written = tuple(found.get(key) for key in ("method", "forget", "settings"))
    if written != (method.name, forget, settings_of(method)):
        raise RunFolderError(
            f"{folder.path} holds a finished run of another request or other settings; {way_out}"
        )


def summary(
    method: Method[Any],
    engine: Engine,
    params: Tensor,
    records: Sequence[Round],
    *,
    scheduled: int,
    clients: Sequence[ClientId],
    full: int,
    history_bytes: int,
) -> dict[str, Any]:
    """Sum a finished run up for result.json.

    Args:
        scheduled: rounds at most.
        clients: everyone who took part.
        full: client rounds of a run that estimates nobody's update; 0 where that cannot be said.
        history_bytes: of the history that the run wrote.
    """
    read = getattr(method, "history", None)
    return {
        "method": method.name,
        "exact": method.exact,
        "needs": method.needs,
        "settings": settings_of(method),
        "rounds": len(records),
        "scheduled_rounds": scheduled,
        "stopped": why_ended(records),
        "clients": sorted(clients),
        "parameters": params.numel(),
        "weights_sha256": weights_digest(params),
        **totals(records),
        "client_rounds_saved": 1 - sum(len(record.asked) for record in records) / full if full else 0.0,
        "history_bytes_read": 0 if read is None else read.bytes,
        "history_bytes_kept": history_bytes,
        "scores": dict(records[-1].scores) if records else {},
        "engine": dict(engine.about),
        "versions": versions(),
        "finished": now(),
    }


def totals(records: Sequence[Round]) -> dict[str, float]:
    """Sum up what rounds cost."""
    summed = {name: sum(getattr(record, name) for record in records) for name in SUMMED}
    return {**summed, "client_rounds": sum(len(record.answered) for record in records)}


def versions() -> dict[str, str]:
    """Say what made these numbers."""
    return {"feduhb": _version("feduhb"), "torch": torch.__version__, "python": platform.python_version()}


def now() -> str:
    """Give the time, in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "run from source"
