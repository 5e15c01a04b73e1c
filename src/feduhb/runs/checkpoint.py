"""Checkpoints: the state of a method on disk, as a safetensors file with a digest. Writing replaces the file atomically."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from typing_extensions import TypedDict

from feduhb.core.types import State
from feduhb.errors import CheckpointError, RunFolderError
from feduhb.runs.files import check_regular, parse_json, place_atomically, write_new
from feduhb.runs.folder import Round, RunFolder

S = TypeVar("S", bound=State)


class About(TypedDict):
    """What a checkpoint says of its state."""

    numbers: dict[str, Any]
    rounds_done: int


BEST = "model.best"  # the tensor of the best model so far; no field of a state can have this name
# What reading a safetensors file raises. RuntimeError: torch maps it after safetensors has opened it, when it may be deleted.
UNREADABLE = (OSError, RuntimeError, SafetensorError, ValueError)
LEFTOVERS = ".tmp??????"  # temporary files of safetensors, left behind if the process was killed


def save_state(path: Path, state: State, rounds_done: int, best: Tensor | None = None) -> None:
    """Write a state (a NamedTuple of tensors and ints), the number of rounds done and, if given, the best model so far."""
    fields: dict[str, Any] = state._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    kept = {key: value for key, value in fields.items() if isinstance(value, Tensor)}
    tensors = separate(kept if best is None else {**kept, BEST: best})
    numbers = {key: value for key, value in fields.items() if not isinstance(value, Tensor)}
    about = json.dumps({"numbers": numbers, "rounds_done": rounds_done})
    metadata = {"state": f"{_digest(tensors, about)} {about}"}  # safetensors does not keep the order of keys
    place_atomically(path, lambda temporary: _save(tensors, temporary, metadata))


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    for left in path.parent.glob(LEFTOVERS):
        left.unlink(missing_ok=True)
    try:
        write_new(path, b"")  # private; safetensors below 0.8 would make a file that others may read
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # safetensors wraps errors of the operating system
        match = re.search(r"os error (\d+)", str(error))
        number = int(match[1]) if match else errno.EIO
        raise OSError(number, os.strerror(number)) from error


def separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors contiguous on the CPU, copied only if they share memory, because a state may be large."""
    seen: set[int] = set()
    separate: dict[str, Tensor] = {}
    for key, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        memory = plain.untyped_storage()
        is_shared = memory.data_ptr() in seen or memory.nbytes() != plain.nbytes
        separate[key] = plain.clone() if is_shared else plain
        seen.add(separate[key].untyped_storage().data_ptr())
    return separate


def saved(
    rounds: Iterable[tuple[S, Round]],
    folder: RunFolder,
    *,
    every: float = 0.0,
    get_best: Callable[[], Tensor | None] = lambda: None,
) -> Iterator[tuple[S, Round]]:
    """Record every round in a run's folder, then write its checkpoint.

    After a crash between the two, a record has no checkpoint, and a resumed run drops that record. A checkpoint always
    has the records of its rounds.

    Args:
        every: the least number of seconds between two checkpoints; a crash loses the rounds since the last one. The
            last round always gets a checkpoint.
        get_best: returns the best model so far, if that is kept.
    """
    written = -math.inf
    waiting: tuple[S, Round] | None = None
    for state, record in rounds:
        folder.append(record)
        waiting = state, record
        if time.monotonic() - written >= every:
            save_state(folder.state_path, state, record.round + 1, get_best())
            written, waiting = time.monotonic(), None
        yield state, record
    if waiting is not None:
        save_state(folder.state_path, waiting[0], waiting[1].round + 1, get_best())


def load_state(path: Path, *likes: S) -> tuple[S, int]:
    """Return the saved state and the number of rounds done.

    Args:
        likes: states of the types that the file may hold.
    """
    tensors, about = _read(path)
    values = {**tensors, **about["numbers"]}
    values.pop(BEST, None)
    for like in likes:
        fields: tuple[str, ...] = type(like)._fields  # pyright: ignore[reportAttributeAccessIssue]
        found, params = tensors["params"], like.params
        if set(values) == set(fields) and (found.shape, found.dtype) == (params.shape, params.dtype):
            placed = {key: v.to(params.device) if isinstance(v, Tensor) else v for key, v in values.items()}
            return type(like)(**placed), about["rounds_done"]
    raise CheckpointError(f"{path} belongs to another method or model; use another folder with --out")


def load_params(path: Path) -> Tensor:
    """Return the model [P] of a checkpoint of any method."""
    return _read(path)[0]["params"]


def load_best(path: Path) -> Tensor | None:
    """Return the best model [P] so far of a checkpoint; None if it has none."""
    return _read(path)[0].get(BEST)


def digest_weights(params: Tensor) -> str:
    """Return the SHA-256 of the weights."""
    return sha256(params.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _read(path: Path) -> tuple[dict[str, Tensor], About]:
    damaged = f"checkpoint {path} is damaged; restore a backup, or delete its run folder and run again"
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            digest, _, about = (file.metadata() or {}).get("state", "").partition(" ")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except UNREADABLE as error:
        # safetensors raises FileNotFoundError for files without read permission too.
        if isinstance(error, FileNotFoundError) or not path.exists():
            what = f"checkpoint {path} may not be read" if path.exists() else f"there is no checkpoint {path}"
            raise CheckpointError(f"{what}; correct that, or delete its run folder and run again") from None
        raise CheckpointError(damaged) from error
    if digest != _digest(tensors, about):
        raise CheckpointError(damaged)
    try:
        return tensors, parse_json(about.encode(), About, str(path), damaged)
    except RunFolderError:
        raise CheckpointError(damaged) from None


def _digest(tensors: dict[str, Tensor], about: str) -> str:
    total = blake2b(about.encode(), digest_size=16)
    for key in sorted(tensors):
        value = tensors[key].contiguous()
        total.update(f"{key} {value.dtype} {list(value.shape)}".encode())
        total.update(value.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
