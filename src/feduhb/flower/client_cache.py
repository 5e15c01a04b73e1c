"""A client's cache: the examples that it keeps between messages, and the rows that it has forgotten."""

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
from feduhb.runs.folder import disk_errors, write_atomically

Loader = Callable[[Context], Any]  # returns (x, y), (x, y, keys) or Examples
Place = str | Path | Callable[[Context], str | Path]
TENSORS, FORGOTTEN = "examples.safetensors", "forgotten.json"


class ClientCache:
    """A client's examples without the forgotten ones: loaded by the user's function, and kept in a folder if one is named.

    The folder holds the loaded tensors, so that a client's process, which is started for every message, need not
    prepare them again, and the keys of forgotten rows. Rows are deleted from the tensors as soon as they are forgotten.
    """

    def __init__(self, data: Loader, cache: Place | None = None) -> None:
        self._data = data
        self._cache = cache

    def load(self, context: Context, rows: Sequence[int] = (), classes: Sequence[int] = ()) -> Examples:
        """Return the client's examples without these rows, without those forgotten before, and without these classes."""
        folder = self._folder(context)
        kept = None if folder is None else _read_examples(folder / TENSORS)
        held = to_examples(self._data(context)) if kept is None else kept
        gone = _read_forgotten(folder)
        if missing := sorted(set(rows) - set(held.keys.tolist()) - gone):
            raise RequestError(
                f"this client has no row {missing[0]} to forget; its {len(held)} rows have other keys"
            )
        gone |= set(rows)
        remaining = held.where(~torch.isin(held.keys, torch.tensor(sorted(gone), dtype=held.keys.dtype)))
        if folder is not None:
            _write_forgotten(folder, gone if rows else set())
            if kept is None or len(remaining) < len(held):
                _write_examples(folder, remaining)
        return (
            remaining.where(~Request(classes=tuple(classes)).class_mask(remaining.targets))
            if classes
            else remaining
        )

    def delete(self, context: Context) -> int:
        """Delete the cache; return the number of files deleted."""
        folder = self._folder(context)
        if folder is None or not folder.is_dir():
            return 0
        written = (TENSORS, FORGOTTEN)
        names = (*written, *(f".{name}.tmp" for name in written))  # a crash may leave temporary files
        files = [folder / name for name in names if (folder / name).exists()]
        with disk_errors(folder):
            for path in files:
                path.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
        return len(files)

    def _folder(self, context: Context) -> Path | None:
        """Return the client's own folder: each partition has one, because many may run on one machine."""
        if self._cache is None:
            return None
        if callable(self._cache):
            return Path(self._cache(context))
        part = context.node_config.get("partition-id")
        return Path(self._cache) if part is None else Path(self._cache) / f"partition-{part}"


def to_examples(data: Any) -> Examples:
    """Return what a loader returned as Examples: from (x, y), (x, y, keys) or Examples."""
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


def _read_forgotten(folder: Path | None) -> set[int]:
    if folder is None or not (folder / FORGOTTEN).exists():
        return set()
    try:
        return {int(key) for key in json.loads((folder / FORGOTTEN).read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError):
        raise DataError(
            f"{folder / FORGOTTEN} is damaged; restore it, or ask for the request to be sent again"
        ) from None


def _write_forgotten(folder: Path, gone: set[int]) -> None:
    """Make the folder, which nobody else may read, and write the keys of forgotten rows if there are new ones."""
    with disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if gone and gone != _read_forgotten(folder):
        write_atomically(folder / FORGOTTEN, json.dumps(sorted(gone)).encode())


def _write_examples(folder: Path, examples: Examples) -> None:
    x, y = examples.all()
    held: dict[str, Tensor] = {"x": x.contiguous(), "y": y.contiguous(), "keys": examples.keys}
    write_atomically(folder / TENSORS, save(held))


def _read_examples(path: Path) -> Examples | None:
    """Return the kept examples; None if there are none."""
    if not path.exists():
        return None
    try:
        held = load_file(path)
        found = Examples.of(held["x"], held["y"])
        return Examples(found.x, found.y, found.rows, held["keys"])
    except (SafetensorError, OSError, KeyError) as error:
        raise DataError(f"{path} is damaged; delete it, and the data is loaded anew") from error
