"""What a client keeps of its own data between messages, and how it forgets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from feduhb.data.federation import Examples
from feduhb.data.request import Request
from feduhb.errors import DataError, RequestError
from feduhb.records import disk_errors, write_atomically

Loader = Callable[[Context], Any]  # gives (x, y), (x, y, keys) or Examples
Place = str | Path | Callable[[Context], str | Path]
TENSORS, FORGOTTEN = "examples.safetensors", "forgotten.json"


class Keeper:
    """A client's examples: loaded by the user's function, kept in a folder where one is named, less what was forgotten.

    The folder holds the tensors as they were loaded, so that a client process that starts anew for every message need not
    prepare them again, and the keys of rows that were forgotten. Rows go out of the tensors as soon as they are forgotten.
    """

    def __init__(self, data: Loader, cache: Place | None = None) -> None:
        self._data = data
        self._cache = cache

    def examples(self, context: Context, rows: Sequence[int] = (), classes: Sequence[int] = ()) -> Examples:
        """Give the client's examples without these rows, without those forgotten before, and without these classes."""
        folder = self._folder(context)
        kept = folder is not None and (folder / TENSORS).exists()
        held = _read(folder / TENSORS) if folder is not None and kept else as_examples(self._data(context))
        gone = _forgotten(folder)
        if missing := sorted(set(rows) - set(held.keys.tolist()) - gone):
            raise RequestError(
                f"this client has no row {missing[0]} to forget; its {len(held)} rows have other keys"
            )
        gone |= set(rows)
        remaining = held.where(~torch.isin(held.keys, torch.tensor(sorted(gone), dtype=held.keys.dtype)))
        if folder is not None:
            _note(folder, gone if rows else set())
            if not kept or len(remaining) < len(held):
                _write(folder, remaining)
        return (
            remaining.where(~Request(classes=tuple(classes)).class_mask(remaining.targets))
            if classes
            else remaining
        )

    def leave(self, context: Context) -> int:
        """Delete what is kept; give the number of files."""
        folder = self._folder(context)
        if folder is None or not folder.is_dir():
            return 0
        names = (
            TENSORS,
            FORGOTTEN,
            f".{TENSORS}.tmp",
            f".{FORGOTTEN}.tmp",
        )  # also what a crash left of writing them
        files = [folder / name for name in names if (folder / name).exists()]
        with disk_errors(folder):
            for path in files:
                path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
        return len(files)

    def _folder(self, context: Context) -> Path | None:
        """Give each client a folder of its own, also where many run on one machine."""
        if self._cache is None:
            return None
        if callable(self._cache):
            return Path(self._cache(context))
        part = context.node_config.get("partition-id")
        return Path(self._cache) if part is None else Path(self._cache) / f"partition-{part}"


def as_examples(data: Any) -> Examples:
    """Read what a loader gives: (x, y), (x, y, keys) or Examples."""
    if isinstance(data, Examples):
        return data
    if not isinstance(data, tuple | list) or len(data) not in {2, 3}:
        raise DataError(
            "a client's data function gives (x, y), or (x, y, keys) with a whole number a row as its key"
        )
    found = Examples.of(data[0], data[1])
    if len(data) == 2:
        return found
    keys = torch.as_tensor(data[2])
    if keys.shape != (len(found),) or keys.is_floating_point() or len(torch.unique(keys)) < len(keys):
        raise DataError(
            f"{len(found)} rows need as many keys, whole numbers, no two alike; not {list(keys.shape)} {keys.dtype}"
        )
    return Examples(found.x, found.y, found.rows, keys.long())


def _forgotten(folder: Path | None) -> set[int]:
    if folder is None or not (folder / FORGOTTEN).exists():
        return set()
    try:
        return {int(key) for key in json.loads((folder / FORGOTTEN).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):
        raise DataError(
            f"{folder / FORGOTTEN} is damaged; restore it, or ask for the request to be sent again"
        ) from None


def _note(folder: Path, gone: set[int]) -> None:
    """Make the folder, which nobody else may read, and write down the keys of forgotten rows where there are new ones."""
    with disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if gone and gone != _forgotten(folder):
        write_atomically(folder / FORGOTTEN, json.dumps(sorted(gone)).encode())


def _write(folder: Path, examples: Examples) -> None:
    x, y = examples.all()
    held: dict[str, Tensor] = {"x": x.contiguous(), "y": y.contiguous(), "keys": examples.keys}
    write_atomically(folder / TENSORS, save(held))


def _read(path: Path) -> Examples:
    try:
        held = load_file(path)
        found = Examples.of(held["x"], held["y"])
        return Examples(found.x, found.y, found.rows, held["keys"])
    except (SafetensorError, OSError, KeyError) as error:
        raise DataError(f"{path} is damaged; delete it, and the data is loaded anew") from error
