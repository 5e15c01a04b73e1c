"""The models that a run keeps for rollbacks, in the folder ``kept-models``: some of w[1], w[2], ..., within a budget.

``after-000012.safetensors`` holds the state after 12 rounds, as a checkpoint does, with the best model so far if the run
keeps that. A model knows every client that was asked in a round before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from feduhb.core.checks import parse_size
from feduhb.core.types import ClientId
from feduhb.errors import CheckpointError, ConfigError, RunFolderError
from feduhb.methods.retrain import Plain
from feduhb.runs.checkpoint import load_best, load_params, load_state, save_state
from feduhb.runs.files import (
    disk_errors,
    make_private_folder,
    measure_files,
    remove,
    sync_folder,
    write_atomically,
)
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import check_links
from feduhb.runs.loop import Rounds
from feduhb.runs.schedule import choose_rounds

NAME = re.compile(r"after-([0-9]{6,})\.safetensors")
HEADER = 1024  # bytes of a file besides its numbers, at most


class KeptModels:
    """The models in the folder ``kept-models`` of a run, by the number of rounds after which they were kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def rounds(self) -> list[int]:
        """After how many rounds each model was kept, in order."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(found[1]) for name in names if (found := NAME.fullmatch(name)))

    def place(self, done: int) -> Path:
        """Return the file of the model after this many rounds."""
        return self.folder / f"after-{done:06d}.safetensors"

    def measure(self, rounds: Sequence[int]) -> int:
        """Return the size of some models on disk."""
        return sum(measure_files(self.place(done)) for done in rounds)

    def write(self, done: int, state: Any, best: Tensor | None) -> None:
        """Keep a model. One of a crashed run is deleted first, so that both are never there."""
        make_private_folder(self.folder)
        remove(self.place(done))
        save_state(self.place(done), state, done, best)

    def read(self, done: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a model [P] and, if it was kept too, the best model so far; ``like`` has its shape and type."""
        path = self.place(done)
        useless = CheckpointError(
            f"the kept model {path} is damaged, of another model, or not the one after {done} rounds; restore it, or delete it: a "
            "rollback then takes an earlier one"
        )
        try:
            state, found = load_state(path, Plain(like))
            best = load_best(path)
        except CheckpointError:
            raise useless from None
        if found != done:
            raise useless
        return state.params, best

    def read_all(self) -> Iterator[Tensor]:
        """Yield the models [P], in order."""
        return (load_params(self.place(done)) for done in self.rounds)

    def copy_from(self, other: KeptModels, done: int) -> None:
        """Copy a model of another run."""
        make_private_folder(self.folder)
        remove(self.place(done))
        write_atomically(self.place(done), other.place(done).read_bytes())

    def rounds_to_forget(self, clients: Sequence[ClientId]) -> list[int]:
        """Return the models that `forget` would delete: those after the first round that asked one of these clients.

        A model after more rounds than the run recorded counts as one that knows them; so does every model if the records
        cannot be read.
        """
        try:
            asked = [record.asked for record in RunFolder(self.folder.parent).rounds()]
        except RunFolderError:
            asked = []
        return [done for done in self.rounds if done > find_first_asked(asked, clients)]

    def forget(self, clients: Sequence[ClientId]) -> int:
        """Delete every model after the first round that asked one of these clients; return the bytes freed."""
        rounds = self.rounds_to_forget(clients)
        freed = self.measure(rounds)
        self.check_links()
        for done in reversed(rounds):
            remove(self.place(done))
        if rounds:
            with disk_errors(self.folder):
                sync_folder(self.folder)
        return freed

    def all_clients(self) -> set[ClientId]:
        """Return the clients that the run asked in any round."""
        return {client for record in RunFolder(self.folder.parent).rounds() for client in record.asked}

    def check_links(self) -> None:
        """Raise HistoryError if a part of the folder is a link: an erasure would not reach what it points to."""
        check_links(self.folder, "kept models")


def find_first_asked(asked: Sequence[Sequence[ClientId]], clients: Sequence[ClientId]) -> int:
    """Return the first round that asked one of these clients; the number of rounds if none did.

    Args:
        asked: the clients that each round asked, whether or not they answered.
    """
    wanted = {*clients}
    return next((t for t, some in enumerate(asked) if not wanted.isdisjoint(some)), len(asked))


def list_untouched(
    kept: Sequence[int], asked: Sequence[Sequence[ClientId]], clients: Sequence[ClientId]
) -> list[int]:
    """Return after how many rounds there are models that none of these clients had touched: kept ones, and the final one.

    Args:
        kept: after how many rounds models were kept.
        asked: the clients that each round asked.
    """
    first = find_first_asked(asked, clients)
    return [done for done in [*kept, len(asked)] if done <= first]


@dataclass(frozen=True, slots=True)
class Keeper:
    """Keeps the models after some rounds of a run, never more than fit into the budget."""

    models: KeptModels
    rounds: Collection[int]  # after how many rounds a model is kept
    most: int  # models that fit into the budget

    def watch(
        self, rounds: Rounds[Any], get_best: Callable[[], Tensor | None] = lambda: None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the rounds, and keep models before the checkpoint of their round is written."""
        for state, record in rounds:
            done = record.round + 1
            if done in self.rounds and self._has_room(done):
                self.models.write(done, Plain(state.params), get_best())
            yield state, record

    def inherit(self, other: KeptModels, rounds: Sequence[int]) -> None:
        """Copy models of the run that a rollback continues."""
        for done in rounds:
            if done not in self.models.rounds and self._has_room(done):
                self.models.copy_from(other, done)

    def _has_room(self, done: int) -> bool:
        return len({*self.models.rounds} - {done}) < self.most


def plan_keeper(
    folder: Path, budget: int | str, size: int, *, rounds: int, share: float, with_best: bool
) -> Keeper:
    """Return which models a run keeps; raise ConfigError if not even one fits into the budget.

    Args:
        folder: for the models.
        budget: the bytes that they may take in all, as a number or as text such as "1GiB".
        size: the bytes of a model of the run.
        rounds: the scheduled rounds.
        share: the share of the clients that a round asks.
        with_best: whether each is kept together with the best model so far.
    """
    size = size * (2 if with_best else 1) + HEADER
    most = parse_size(budget) // size
    if most < 1:
        pair = " (with the best model so far)" if with_best else ""
        raise ConfigError(
            f"keep_models is {budget!r}, but one model{pair} takes {size:,} bytes; give at least that, or leave keep_models out"
        )
    return Keeper(KeptModels(folder), choose_rounds(rounds, most, share), most)
