"""The history of a training, for methods that replay it: every model and every client's update, on disk.

A round is a folder, a block of updates a safetensors file in it, and a marker says that the round is complete.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from feduhb.core.types import ClientId, Engine, History, Updates, Work
from feduhb.errors import HistoryError
from feduhb.runs.folder import disk_errors, sync_folder, write_atomically

WAY_OUT = "train again with --keep-history, or use feduhb, which needs none"


class DiskHistory:
    """Every global model and every client's update of a run, written as it happens and read by memory mapping.

    Never more than a block is in memory. ``half`` stores updates as float16, half the size; they are read in the
    model's own precision. Models are stored as they are.
    """

    def __init__(self, folder: Path, *, half: bool = False) -> None:
        self.folder = folder
        self.half = half

    @property
    def rounds(self) -> list[int]:
        """The rounds that were completed before any crash, in order."""
        if not self.folder.is_dir():
            return []
        return [t for t in self._started() if (self._place(t) / "round.json").exists()]

    @property
    def bytes(self) -> int:
        """The bytes on disk."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    def clients(self, round: int) -> tuple[ClientId, ...]:
        """Return the clients that answered in a round."""
        return tuple(client for block in self._about(round)["blocks"] for client in block["clients"])

    def all_clients(self) -> set[ClientId]:
        """Return the clients that answered in any round that can be read."""
        found: set[ClientId] = set()
        for t in self.rounds:
            with contextlib.suppress(HistoryError):
                found.update(self.clients(t))
        return found

    def params(self, round: int) -> Tensor:
        """Return the model [P] that the round started from."""
        shape = [self._about(round)["parameters"]]
        return self._tensor(self._place(round) / "params.safetensors", "params", shape)

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:
        """Yield the stored updates of those of these clients who answered, in stored order."""
        about, wanted = self._about(round), set(clients)
        for number, block in enumerate(about["blocks"]):
            rows = [i for i, client in enumerate(block["clients"]) if client in wanted]
            if rows:
                dtype = getattr(torch, about["dtype"])
                shape = [len(block["clients"]), about["parameters"]]
                values = self._tensor(self._place(round) / _block(number), "values", shape, rows).to(dtype)
                weights = torch.tensor([block["weights"][i] for i in rows], dtype=dtype)
                yield Updates(tuple(block["clients"][i] for i in rows), values, weights)

    def forget(self, clients: Sequence[ClientId]) -> int:
        """Delete every model and every update from the first round on in which one of these clients took part.

        Deleting their own updates is not enough: in any round these follow by subtraction from the two models around it
        and the others' updates. A round that is incomplete or damaged counts as one of theirs. Return the bytes freed.
        """
        before, rounds = self.bytes, self.rounds_to_forget(clients)
        if rounds:
            with disk_errors(self.folder):
                for t in reversed(rounds):
                    shutil.rmtree(self._place(t).resolve())
                    self._place(t).unlink(missing_ok=True)  # where it was a link
                sync_folder(self.folder)
        return before - self.bytes

    def rounds_to_forget(self, clients: Sequence[ClientId]) -> list[int]:
        """Return the rounds that `forget` would delete."""
        started = self._started() if self.folder.is_dir() else []
        first = next((t for t in started if self._may_hold(t, set(clients))), None)
        return [t for t in started if first is not None and t >= first]

    def begin(self, round: int, params: Tensor) -> None:
        """Start to write a round. What a crashed or repeated run left of it is replaced."""
        place = self._place(round)
        with disk_errors(place):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
        _write(place / "params.safetensors", "params", params)

    def append(self, round: int, number: int, block: Updates) -> Mapping[str, Any]:
        """Write one block of answers; return what the marker of the round says of it."""
        if block.summed:
            raise HistoryError(
                "a history needs every client's update, but these came summed up; train without keep_history under secure aggregation"
            )
        values = block.values.half() if self.half else block.values
        if self.half and not values.isfinite().all():
            raise HistoryError(
                "an update has entries beyond float16's 65,504; keep the history in full precision: keep_history = true"
            )
        _write(self._place(round) / _block(number), "values", values)
        return {"clients": list(block.clients), "weights": block.weights.tolist()}

    def finish(self, round: int, params: Tensor, blocks: Sequence[Mapping[str, Any]]) -> None:
        """Mark a round as complete, so that it can be read."""
        about = {
            "parameters": params.numel(),
            "dtype": str(params.dtype).removeprefix("torch."),
            "blocks": list(blocks),
        }
        write_atomically(self._place(round) / "round.json", json.dumps(about).encode())
        sync_folder(self.folder)

    def check(self, run: str, parameters: int, rounds: int = 0) -> None:
        """Raise HistoryError if the history is empty, not whole, of another run, or of another model."""
        if not self.rounds:
            raise HistoryError(
                f"there is no history in {self.folder}: none was kept, or an erasure took it; {WAY_OUT}"
            )
        if self.owner() != run:
            raise HistoryError(
                f"the history in {self.folder} belongs to another run; put back this run's own, or {WAY_OUT}"
            )
        if len(self.rounds) < rounds and self.rounds[-1] == len(self.rounds) - 1:
            raise HistoryError(
                f"the history in {self.folder} ends after {len(self.rounds)} of {rounds} rounds, an earlier erasure took the rest; {WAY_OUT}"
            )
        for t in range(self.rounds[-1] + 1):  # a hole would set every later round beside the wrong one
            if (found := self._about(t)["parameters"]) != parameters:
                raise HistoryError(
                    f"the history in {self.folder} is of a model of {found} parameters, not {parameters}; {WAY_OUT}"
                )

    def claim(self, run: str) -> None:
        """Write down which run this history belongs to; raise HistoryError if it is another run's."""
        if self.rounds and self.owner() != run:
            raise HistoryError(
                f"the history in {self.folder} belongs to another run; delete it or put back this run's own, then go on with --resume"
            )
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / "run.json", json.dumps({"run": run}).encode())

    def owner(self) -> str | None:
        """Return the run that wrote it, as `claim` wrote it down."""
        try:
            return json.loads((self.folder / "run.json").read_text(encoding="utf-8"))["run"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _may_hold(self, round: int, clients: set[ClientId]) -> bool:
        """Whether one of these clients took part, or the round cannot be read."""
        try:
            return bool(clients & set(self.clients(round)))
        except HistoryError:
            return True

    def _started(self) -> list[int]:
        """Return the rounds that have a folder, complete or not, in order."""
        return sorted(
            int(place.name) for place in self.folder.iterdir() if place.name.isdigit() and place.is_dir()
        )

    def _place(self, round: int) -> Path:
        return self.folder / f"{round:05d}"

    def _about(self, round: int) -> dict[str, Any]:
        path = self._place(round) / "round.json"
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            sizes = [(len(block["clients"]), len(block["weights"])) for block in about["blocks"]]
            if any(a != b for a, b in sizes) or not isinstance(about["parameters"], int):
                raise ValueError
            getattr(torch, about["dtype"])
        except FileNotFoundError:
            raise HistoryError(f"the history in {self.folder} has no round {round}; {WAY_OUT}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise HistoryError(f"{path} is damaged; {WAY_OUT}") from None
        return about

    def _tensor(self, path: Path, name: str, shape: list[int], rows: Sequence[int] | None = None) -> Tensor:
        """Return a tensor, or some rows of it; raise HistoryError if it does not have this shape."""
        try:
            with safe_open(path, framework="pt") as file:
                stored = file.get_slice(name)
                if list(stored.get_shape()) != shape:
                    raise ValueError
                return file.get_tensor(name) if rows is None else torch.cat([stored[i : i + 1] for i in rows])
        except (SafetensorError, OSError, ValueError, IndexError) as error:
            raise HistoryError(f"{path} is missing, cut short or damaged; {WAY_OUT}") from error


def _block(number: int) -> str:
    return f"block-{number:05d}.safetensors"


def _write(path: Path, name: str, value: Tensor) -> None:
    write_atomically(path, save({name: value.detach().cpu().contiguous()}))


@dataclass(frozen=True, slots=True)
class HistoryOnDevice:
    """A history on disk whose tensors are read onto the device where a method computes."""

    history: History
    device: torch.device

    @property
    def rounds(self) -> Sequence[int]:
        """The stored rounds."""
        return self.history.rounds

    @property
    def bytes(self) -> int:
        """The bytes on disk."""
        return self.history.bytes

    def clients(self, round: int) -> tuple[ClientId, ...]:
        """Return the clients that answered in a round."""
        return self.history.clients(round)

    def params(self, round: int) -> Tensor:
        """Return the model that a round started from."""
        return self.history.params(round).to(self.device)

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:
        """Yield the updates of some clients; their weights stay on the CPU, as an engine's do."""
        for block in self.history.read(round, clients):
            yield Updates(block.clients, block.values.to(self.device), block.weights)


@dataclass(frozen=True, slots=True)
class RecordingEngine:
    """An engine that writes every answer into a history before it passes it on. Methods do not know of it."""

    engine: Engine
    history: DiskHistory

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's own, and that a history was kept."""
        return {**self.engine.about, "history": "float16" if self.history.half else "full precision"}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Yield the engine's answers, each block written first. A round that is cut short stays unmarked."""
        self.history.begin(round, work.params)
        blocks: list[Mapping[str, Any]] = []
        stream = self.engine.train(work, clients, round)
        try:
            for number, block in enumerate(stream):
                blocks.append(self.history.append(round, number, block))
                yield block
        finally:
            if isinstance(stream, Generator):  # closing this generator closes the engine's
                stream.close()
        self.history.finish(round, work.params, blocks)
