"""Checkpoints: the state of a method on disk, in safetensors, written whole or not at all, checked when read."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from feduhb.core.types import State
from feduhb.errors import CheckpointError
from feduhb.runs.folder import Round, RunFolder, place_atomically

S = TypeVar("S", bound=State)
LEFTOVERS = ".tmp??????"  # what safetensors writes first, and leaves behind if it is killed


def save_state(path: Path, state: State, rounds_done: int) -> None:
    """Write a state (a NamedTuple of tensors and ints) and the number of rounds done."""
    fields: dict[str, Any] = state._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    tensors = _apart({key: value for key, value in fields.items() if isinstance(value, Tensor)})
    numbers = {key: value for key, value in fields.items() if not isinstance(value, Tensor)}
    about = json.dumps({"numbers": numbers, "rounds_done": rounds_done})
    held = {"state": f"{_digest(tensors, about)} {about}"}  # one key: its order is no matter
    place_atomically(path, lambda temporary: _save(tensors, temporary, held))


def _save(tensors: dict[str, Tensor], path: Path, about: dict[str, str]) -> None:
    for left in path.parent.glob(LEFTOVERS):
        left.unlink(missing_ok=True)
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, about)
        path.chmod(mode)  # safetensors makes it its user's alone
    except SafetensorError as error:  # how it passes on what the operating system refused
        match = re.search(r"os error (\d+)", str(error))
        number = int(match[1]) if match else errno.EIO
        raise OSError(number, os.strerror(number)) from error


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors contiguous on the CPU, copied only where two share memory: a state may be large."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for key, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        shared = (
            plain.untyped_storage().data_ptr() in seen or plain.untyped_storage().nbytes() != plain.nbytes
        )
        apart[key] = plain.clone() if shared else plain
        seen.add(apart[key].untyped_storage().data_ptr())
    return apart


def saved(
    rounds: Iterable[tuple[S, Round]], folder: RunFolder, *, every: float = 0.0
) -> Iterator[tuple[S, Round]]:
    """Record every round in its folder, then write its checkpoint.

    In this order a crash between the two leaves one record too many, which a resumed run drops; never
    a checkpoint whose rounds are not recorded.

    Args:
        every: seconds at least from one checkpoint to the next, for large states and short rounds: a crash then
            costs the rounds since. The last round always has a checkpoint.
    """
    written = -math.inf
    waiting: tuple[S, Round] | None = None
    for state, record in rounds:
        folder.append(record)
        waiting = state, record
        if time.monotonic() - written >= every:
            save_state(folder.state_path, state, record.round + 1)
            written, waiting = time.monotonic(), None
        yield state, record
    if waiting is not None:
        save_state(folder.state_path, waiting[0], waiting[1].round + 1)


def load_state(path: Path, like: S) -> tuple[S, int]:
    """Return a state of the type of ``like``, bit for bit as it was saved, and the number of rounds done."""
    tensors, about = _read(path)
    values = {**tensors, **about["numbers"]}
    fields: tuple[str, ...] = type(like)._fields  # pyright: ignore[reportAttributeAccessIssue]
    if set(values) != set(fields) or (values["params"].shape, values["params"].dtype) != (
        like.params.shape,
        like.params.dtype,
    ):
        raise CheckpointError(
            f"{path} belongs to another method or model; give that run a folder of its own with --out"
        )
    placed = {key: v.to(like.params.device) if isinstance(v, Tensor) else v for key, v in values.items()}
    return type(like)(**placed), about["rounds_done"]


def load_params(path: Path) -> Tensor:
    """Return the model [P] of a checkpoint, whatever method wrote it."""
    return _read(path)[0]["params"]


def list_fields(path: Path) -> tuple[str, ...]:
    """Return the names of the fields in a checkpoint."""
    tensors, about = _read(path)
    return (*tensors, *about["numbers"])


def digest_weights(params: Tensor) -> str:
    """Return the SHA-256 of the weights."""
    return sha256(params.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def to_cpu(state: Any) -> Any:
    """Return a state with its tensors on the CPU."""
    return type(state)(*(part.cpu() if isinstance(part, Tensor) else part for part in state))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    damaged = (
        f"checkpoint {path} is damaged; restore it from a backup, or delete its run folder and run again"
    )
    try:
        with safe_open(path, framework="pt") as file:
            digest, _, about = (file.metadata() or {}).get("state", "").partition(" ")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:  # safetensors says so of files that it may not read, too
        what = f"checkpoint {path} may not be read" if path.exists() else f"there is no checkpoint {path}"
        raise CheckpointError(f"{what}; put that right, or delete its run folder and run again") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(damaged) from error
    if digest != _digest(tensors, about):
        raise CheckpointError(damaged)
    return tensors, json.loads(about)


def _digest(tensors: dict[str, Tensor], about: str) -> str:
    total = blake2b(about.encode(), digest_size=16)
    for key in sorted(tensors):
        value = tensors[key].contiguous()
        total.update(f"{key} {value.dtype} {list(value.shape)}".encode())
        total.update(value.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
