"""The history of a training on disk: every model and every client's update, for methods that replay them.

A round is a folder with one safetensors file for each block of updates. ``round.json`` marks the round as complete, and
holds a checksum of every model and update. Histories of earlier versions have none.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Required

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from typing_extensions import TypedDict

from feduhb.core.types import ClientId, Engine, History, Updates, Work
from feduhb.errors import HistoryError, RunFolderError
from feduhb.runs.checkpoint import UNREADABLE
from feduhb.runs.files import (
    check_regular,
    digest_json,
    disk_errors,
    make_private_folder,
    measure_files,
    read_json,
    remove,
    sync_folder,
    write_atomically,
)

WAY_OUT = "train again with --keep-history, or use feduhb, which needs none"
ROUND = re.compile(r"[0-9]{5,}")  # the name of a round's folder
LARGE = 2**20  # bytes, for which starting threads is worth it
DTYPES = ("float64", "float32", "float16", "bfloat16")


class Block(TypedDict, total=False):
    """A block of updates in the marker of a round."""

    clients: Required[list[ClientId]]
    weights: Required[list[float]]
    digests: list[str]  # of each client's update


class Marker(TypedDict, total=False):
    """The content of round.json. Earlier versions wrote no digests."""

    parameters: Required[int]
    dtype: Required[str]
    blocks: Required[list[Block]]
    params_digest: str
    sha256: str  # of everything else in this file


class Owner(TypedDict):
    """The content of run.json."""

    run: str


class DiskHistory:
    """Every global model and every client's update of a run, written round by round and read by memory mapping.

    At most one block is in memory. ``half`` stores updates, but not models, as float16; they are read in the precision
    of the model.
    """

    def __init__(self, folder: Path, *, half: bool = False, rounds: Sequence[int] | None = None) -> None:
        self.folder = folder
        self.half = half
        self._rounds = rounds  # None: those on disk whenever it is asked

    def freeze(self) -> DiskHistory:
        """Return this history with the rounds that are complete now, for a reader during whose work another process may erase some.

        Reading a round that is erased raises HistoryError, instead of the history becoming a shorter one.
        """
        return DiskHistory(self.folder, half=self.half, rounds=self.rounds)

    @property
    def rounds(self) -> list[int]:
        """The complete rounds, in order."""
        if self._rounds is not None:
            return [*self._rounds]
        with self._reading():
            return [t for t in self._list_started() if (self._place(t) / "round.json").exists()]

    @property
    def bytes(self) -> int:
        """The size on disk."""
        return measure_files(self.folder)

    def measure(self, rounds: Sequence[int]) -> int:
        """Return the size of some rounds on disk."""
        return sum(measure_files(self._place(t)) for t in rounds)

    def clients(self, round: int) -> tuple[ClientId, ...]:
        """Return the clients that answered in a round."""
        return tuple(client for block in self._read_marker(round)["blocks"] for client in block["clients"])

    def all_clients(self) -> set[ClientId]:
        """Return the clients that answered in any round that can be read."""
        found: set[ClientId] = set()
        for t in self.rounds:
            with contextlib.suppress(HistoryError):
                found.update(self.clients(t))
        return found

    def params(self, round: int) -> Tensor:
        """Return the model [P] that the round started from."""
        about, path = self._read_marker(round), self._place(round) / "params.safetensors"
        found = _read_tensor(path, "params", [about["parameters"]])
        _check_digests(path, [found], [about["params_digest"]] if "params_digest" in about else None)
        return found

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:
        """Yield the stored updates of these clients in stored order, without clients that did not answer."""
        about, wanted = self._read_marker(round), set(clients)
        for number, block in enumerate(about["blocks"]):
            rows = [i for i, client in enumerate(block["clients"]) if client in wanted]
            if rows:
                dtype = getattr(torch, about["dtype"])
                shape = [len(block["clients"]), about["parameters"]]
                path = self._place(round) / _block(number)
                values = _read_tensor(path, "values", shape, rows)
                digests = block.get("digests")
                _check_digests(path, values, None if digests is None else [digests[i] for i in rows])
                weights = torch.tensor([block["weights"][i] for i in rows], dtype=dtype)
                yield Updates(tuple(block["clients"][i] for i in rows), values.to(dtype), weights)

    def forget(self, clients: Sequence[ClientId]) -> int:
        """Delete everything from the first round in which one of these clients took part; return the bytes freed.

        Deleting only their updates is not enough: they could be computed from the others' updates and the models before
        and after a round. An incomplete or damaged round counts as one in which they took part.
        """
        before, rounds = self.bytes, self.rounds_to_forget(clients)
        if rounds:
            self.check_links()
            for t in reversed(rounds):
                remove(self._place(t))
            with disk_errors(self.folder):
                sync_folder(self.folder)
        return before - self.bytes

    def rounds_to_forget(self, clients: Sequence[ClientId]) -> list[int]:
        """Return the rounds that `forget` would delete."""

        def may_contain(round: int) -> bool:
            try:
                return not set(clients).isdisjoint(self.clients(round))
            except HistoryError:
                return True

        return list(itertools.dropwhile(lambda t: not may_contain(t), self._list_started()))

    def begin(self, round: int, params: Tensor) -> None:
        """Start to write a round; delete what a crashed run left of it."""
        place = self._place(round)
        remove(place)
        make_private_folder(place)
        _write(place / "params.safetensors", "params", params)

    def append(self, round: int, number: int, block: Updates) -> Block:
        """Write one block of answers; return its entry in the marker of the round."""
        if block.summed:
            raise HistoryError(
                "a history needs every client's update, but received only their sum; train without keep_history under secure aggregation"
            )
        values = block.values.half() if self.half else block.values
        if self.half and not values.isfinite().all():
            raise HistoryError("an update is too large for float16; keep full precision: keep_history = true")
        _write(self._place(round) / _block(number), "values", values)
        digests = _digest_all(values.detach().cpu())
        return {"clients": list(block.clients), "weights": block.weights.tolist(), "digests": digests}

    def finish(self, round: int, params: Tensor, blocks: Sequence[Block]) -> None:
        """Write the marker of a complete round."""
        dtype, digest = str(params.dtype).removeprefix("torch."), _digest(params.detach().cpu())
        about = {
            "parameters": params.numel(), "dtype": dtype, "blocks": list(blocks), "params_digest": digest
        }  # fmt: skip
        about["sha256"] = digest_json(about)
        write_atomically(self._place(round) / "round.json", json.dumps(about).encode())
        sync_folder(self.folder)

    def check(self, run: str, parameters: int, rounds: int = 0) -> None:
        """Raise HistoryError if the history is empty, incomplete, of another run, or of another model."""
        self.check_links()
        if not self.rounds:
            raise HistoryError(f"there is no history in {self.folder}, or it was erased; {WAY_OUT}")
        if self.read_owner() != run:
            raise HistoryError(f"the history in {self.folder} belongs to another run; {WAY_OUT}")
        if len(self.rounds) < rounds and self.rounds[-1] == len(self.rounds) - 1:
            raise HistoryError(
                f"the history in {self.folder} ends after {len(self.rounds)} of {rounds} rounds, because the rest was erased; {WAY_OUT}"
            )
        for t in range(self.rounds[-1] + 1):  # no round may be missing
            if (found := self._read_marker(t)["parameters"]) != parameters:
                raise HistoryError(
                    f"the history in {self.folder} is of a model with {found} parameters, not {parameters}; {WAY_OUT}"
                )

    def claim(self, run: str) -> None:
        """Record which run this history belongs to; raise HistoryError if it belongs to another run."""
        if self.rounds and self.read_owner() != run:
            raise HistoryError(
                f"the history in {self.folder} belongs to another run; delete it or restore this run's own, then continue with --resume"
            )
        self.check_links()
        make_private_folder(self.folder)
        write_atomically(self.folder / "run.json", json.dumps({"run": run}).encode())

    def read_owner(self) -> str | None:
        """Return the run that `claim` recorded; None if it cannot be read."""
        try:
            return read_json(self.folder / "run.json", Owner, WAY_OUT)["run"]
        except (OSError, RunFolderError):
            return None

    def check_links(self) -> None:
        """Raise HistoryError if the history, or a part of it, is a link: an erasure would not reach what it points to."""
        check_links(self.folder, "stored updates")

    def _list_started(self) -> list[int]:
        """Return the rounds that have a folder, complete or not, in order."""
        with self._reading():
            folders = self.folder.iterdir() if self.folder.is_dir() else ()
            return sorted(int(place.name) for place in folders if self._is_round(place))

    @contextlib.contextmanager
    def _reading(self) -> Generator[None]:
        """Raise HistoryError instead of OSError."""
        try:
            yield
        except OSError as error:
            raise HistoryError(
                f"{error.filename or self.folder} cannot be read: {error.strerror}; allow it"
            ) from None

    def _is_round(self, place: Path) -> bool:
        return bool(ROUND.fullmatch(place.name)) and place == self._place(int(place.name)) and place.is_dir()

    def _place(self, round: int) -> Path:
        return self.folder / f"{round:05d}"

    def _read_marker(self, round: int) -> Marker:
        path = self._place(round) / "round.json"
        try:
            about = read_json(path, Marker, WAY_OUT)
        except (FileNotFoundError, NotADirectoryError):
            raise HistoryError(f"the history in {self.folder} has no round {round}; {WAY_OUT}") from None
        except RunFolderError as error:
            raise HistoryError(str(error)) from None
        checked = {key: value for key, value in about.items() if key != "sha256"}
        lengths = [
            {len(block["clients"]), len(block["weights"]), len(block.get("digests", block["clients"]))}
            for block in about["blocks"]
        ]
        is_whole = about.get("sha256") in {None, digest_json(checked)}
        if not is_whole or any(len(found) > 1 for found in lengths) or about["dtype"] not in DTYPES:
            raise HistoryError(f"{path} is damaged; {WAY_OUT}")
        return about


def check_links(folder: Path, what: str) -> None:
    """Raise HistoryError if a folder, or a part of it, is a link.

    Args:
        what: the folder holds, in words.
    """
    inside = (Path(place, name) for place, *names in os.walk(folder) for name in itertools.chain(*names))
    for path in itertools.chain([folder], inside):
        if path.is_symlink():
            raise HistoryError(
                f"{path} is a link, and an erasure would not reach the {what} that it points to; "
                "put the folder or file itself in its place, or delete it there and remove the link"
            )


def _read_tensor(path: Path, name: str, shape: list[int], rows: Sequence[int] | None = None) -> Tensor:
    """Return a tensor, or some rows of it; raise HistoryError if it does not have this shape."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            stored = file.get_slice(name)
            if list(stored.get_shape()) != shape:
                raise ValueError
            return file.get_tensor(name) if rows is None else torch.cat([stored[i : i + 1] for i in rows])
    except (*UNREADABLE, IndexError) as error:
        raise HistoryError(f"{path} is missing, cut short or damaged; {WAY_OUT}") from error


def _check_digests(path: Path, found: Sequence[Tensor] | Tensor, wanted: Sequence[str] | None) -> None:
    """Raise HistoryError if stored values have changed. Histories of earlier versions have no digests."""
    if wanted is not None and _digest_all(found) != wanted:
        raise HistoryError(f"{path} is damaged: its values are not those that were stored; {WAY_OUT}")


def _digest_all(values: Sequence[Tensor] | Tensor) -> list[str]:
    """Return the digest of each value; of large ones on every core, because hashing takes longer than reading."""
    rows = list(values)
    if sum(row.nbytes for row in rows) < LARGE:
        return [_digest(row) for row in rows]
    with ThreadPoolExecutor(min(len(rows), os.cpu_count() or 1)) as threads:
        return list(threads.map(_digest, rows))


def _digest(value: Tensor) -> str:
    return blake2b(value.contiguous().view(torch.uint8).numpy().data, digest_size=16).hexdigest()


def _block(number: int) -> str:
    return f"block-{number:05d}.safetensors"


def _write(path: Path, name: str, value: Tensor) -> None:
    write_atomically(path, save({name: value.detach().cpu().contiguous()}))


@dataclass(frozen=True, slots=True)
class HistoryOnDevice:
    """A history as a run reads it: tensors are moved to a device, and reading a round that was erased meanwhile fails.

    Methods replay parameters only, so statistics of normalisation layers are cut off.
    """

    history: History
    device: torch.device
    rounds: Sequence[int]  # the complete rounds when the run began, in order
    statistics: int = 0  # how many numbers at the end of the stored vectors are statistics

    @property
    def bytes(self) -> int:
        """The size on disk."""
        return self.history.bytes

    def clients(self, round: int) -> tuple[ClientId, ...]:
        """Return the clients that answered in a round."""
        return self.history.clients(round)

    def params(self, round: int) -> Tensor:
        """Return the model [P] that the round started from."""
        stored = self.history.params(round)
        return stored[: len(stored) - self.statistics].to(self.device)

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:
        """Yield the updates of some clients. Their weights stay on the CPU, as those of an engine."""
        for block in self.history.read(round, clients):
            values = block.values[:, : block.values.shape[1] - self.statistics]
            yield Updates(block.clients, values.to(self.device), block.weights)


@dataclass(frozen=True, slots=True)
class RecordingEngine:
    """An engine that writes every answer of another engine into a history."""

    engine: Engine
    history: DiskHistory

    @property
    def about(self) -> Mapping[str, Any]:
        """The description of the engine, with the precision of the history."""
        return {**self.engine.about, "history": "float16" if self.history.half else "full precision"}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Yield the engine's answers after writing them. The marker is written only after the last one."""
        self.history.begin(round, work.params)
        blocks: list[Block] = []
        stream = self.engine.train(work, clients, round)
        try:
            for number, block in enumerate(stream):
                blocks.append(self.history.append(round, number, block))
                yield block
        finally:
            if isinstance(stream, Generator):  # closing this generator closes the engine's
                stream.close()
        self.history.finish(round, work.params, blocks)
