"""Carrying a run out: fresh or resumed, with or without a folder."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from feduhb.core.flat import flatten
from feduhb.core.seeds import sample_clients
from feduhb.core.types import Engine, Method
from feduhb.data.federation import Federation
from feduhb.errors import RunFolderError
from feduhb.evaluate.accuracy import evaluator
from feduhb.history import DiskHistory, Near, Recorded
from feduhb.methods.replaying import replays
from feduhb.methods.retrain import Plain
from feduhb.records import Round, RunFolder
from feduhb.run.checkpoint import save_state
from feduhb.run.folder import (
    first_difference,
    identity,
    resumed,
    sole_writer,
    summary,
)
from feduhb.run.loop import Participants, run
from feduhb.run.pipes import evaluated, saved, shown
from feduhb.stopping import StopRule


@dataclass(frozen=True, slots=True)
class Task:
    """One run to carry out."""

    method: Method[Any]
    federation: Federation  # those who take part, and nobody else
    engine: Engine
    rounds: int
    stop: StopRule
    clients_per_round: int | None = None
    folder: RunFolder | None = None
    config: str = ""
    history: DiskHistory | None = None  # to keep, not to read
    begun: Callable[[], object] = lambda: None  # called once nothing can be refused any more
    checkpoint_every: float = 0.0  # seconds

    @property
    def device(self) -> torch.device:
        """Where the server computes: on the GPU that the clients train on, if they do."""
        return torch.device("cuda" if self.engine.about["device"] == "cuda" else "cpu")

    def opening(self) -> tuple[Method[Any], Any]:
        """Give the method, its history at hand where it reads one, and the state to begin with: a fresh model."""
        start = flatten(self.federation.fresh_model()).to(self.device)
        method = self.method
        if replays(method) and self.device.type != "cpu":
            method = replace(method, history=Near(method.history, self.device))  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        return method, method.init(start)


def carry_out(
    task: Task, *, resume: bool = False, show: Callable[[Round], None] | None = None
) -> tuple[Any, list[Round]]:
    """Run a task to its end, from its folder's last checkpoint when resumed; give the final state and all rounds."""
    taking_part, evaluate = participants(task), evaluator(task.federation, task.device.type)
    method, state = task.opening()
    with sole_writer(task.folder):
        records: list[Round] = []
        if task.folder is not None:
            state, records = _begin(task, task.folder, state, resume=resume)
        engine = task.engine
        if task.history is not None:
            task.history.claim(identity(tomllib.loads(task.config)))
            engine = Recorded(engine, task.history)
        task.begun()
        first = len(records)
        moved = [record.moved for record in records]
        stream = run(
            method,
            engine,
            taking_part,
            state,
            rounds=task.rounds,
            stop=task.stop,
            first=first,
            moved=moved,
        )
        stream = evaluated(stream, evaluate)
        if task.folder is not None:
            stream = saved(stream, task.folder, every=task.checkpoint_every)
        for new, record in shown(stream, show) if show else stream:
            state = new
            records.append(record)
        if task.folder is not None and not task.folder.finished():
            if replays(task.method):
                # Its memory of the history is gone with the run: old models and updates could be worked out from it.
                save_state(task.folder.state_path, Plain(state.params), len(records))
            task.folder.finish(_summary(task, state.params, records))
        return at_home(state), records


def at_home(state: Any) -> Any:
    """Bring a state's tensors to the CPU, where all else is."""
    return type(state)(*(part.cpu() if isinstance(part, Tensor) else part for part in state))


def participants(task: Task) -> Participants:
    """Give everyone, or the function that samples a round's clients by (seed, round, client)."""
    clients = list(task.federation.clients)
    if task.clients_per_round is None:
        return clients
    count = task.clients_per_round
    sample_clients(task.federation.seed, 0, clients, count)  # refuses a count that cannot be
    return lambda round: sample_clients(task.federation.seed, round, clients, count)


def _begin(task: Task, folder: RunFolder, fresh: Any, *, resume: bool) -> tuple[Any, list[Round]]:
    """Lay out the folder, or find where its run stands."""
    if not folder.exists():
        folder.create(task.config)
        return fresh, []
    if not resume:
        raise RunFolderError(
            f"{folder.path} already holds a run; go on with it by --resume, or choose another folder with --out"
        )
    _same_run(folder, folder.config(), tomllib.loads(task.config))
    return resumed(folder, fresh, Plain(fresh.params) if replays(task.method) else None)


def _same_run(folder: RunFolder, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse to go on with other data, settings, engine or version than a run was begun with."""
    before, now = old.get("clients", {}), new.get("clients", {})
    if other := [client for client in sorted({*before, *now}) if before.get(client) != now.get(client)]:
        raise RunFolderError(
            f"{folder.path} was begun with other data of client {other[0]}; resume it with the same data, or begin anew in another --out"
        )
    if difference := first_difference(old, new):
        raise RunFolderError(
            f"{folder.path} was begun with {difference}; resume it with the same settings, or choose another --out"
        )


def _summary(task: Task, params: Tensor, records: Sequence[Round]) -> dict[str, Any]:
    each = task.clients_per_round or len(task.federation.clients)
    return summary(
        task.method, task.engine, params, records, scheduled=task.rounds, clients=list(task.federation.clients),
        full=each * len(records), history_bytes=task.history.bytes if task.history else 0,
    )  # fmt: skip
