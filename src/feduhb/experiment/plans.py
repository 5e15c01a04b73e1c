"""Runs as they are planned: which engine, which config, which folder; and how a plan is carried out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from feduhb.core.types import Engine, Local
from feduhb.data.federation import Federation
from feduhb.engines import engine_named
from feduhb.errors import ConfigError
from feduhb.experiment.conduct import Task, at_home, carry_out, participants
from feduhb.experiment.config import to_toml
from feduhb.experiment.runs import HISTORY, EngineMaker, Run, block_of
from feduhb.experiment.settings import Config, FederationSettings, TrainSettings, UnlearnSettings
from feduhb.history import DiskHistory
from feduhb.history import earlier as chain
from feduhb.methods import FedEraser
from feduhb.records import RunFolder
from feduhb.run.loop import run as rounds_of
from feduhb.run.progress import Show, watched


def nothing() -> None:
    """Do nothing."""


def spelled_engine(engine: str | EngineMaker) -> str:
    """Name an engine as a config does."""
    if not isinstance(engine, str) and not callable(engine):
        raise ConfigError(
            "engine is a name, such as 'pool', or a function of (federation, local) that makes one"
        )
    return engine if isinstance(engine, str) else "own"


def carried_out(
    run: Run,
    label: str,
    unlearn: UnlearnSettings | None = None,
    begun: Callable[[], object] = nothing,
    *,
    resume: bool,
    show: Show,
    checkpoint_every: float = 0.0,
) -> Run:
    """Fill in what a run that is planned out comes to."""
    task = replace(_task(run, unlearn), checkpoint_every=checkpoint_every)
    about = task.engine.about
    said = f"engine: {about['name']} ({about['why']})\n" if show == "lines" and run.engine == "auto" else ""

    def begin() -> None:
        sys.stderr.write(said)
        if run.folder is not None:
            chain.note(run.folder, run.earlier)
        begun()

    with watched(show, label, run.scheduled) as tell:
        state, records = carry_out(replace(task, begun=begin), resume=resume, show=tell)
    block = about["block"] if about["name"] == "stacked" else None
    return replace(run, state=state, rounds=tuple(records), block=block)


def only_weights(run: Run) -> Run:
    """Carry a plan out for nothing but its weights: no scores, no folder."""
    task = _task(run, None)
    method, state = task.opening()
    for new, _ in rounds_of(
        method, task.engine, participants(task), state, rounds=task.rounds, stop=task.stop
    ):
        state = new
    return replace(run, state=at_home(state))


def engine_of(run: Run) -> Engine:
    """Make the engine that a run's clients train on, with its block where bits depend on that."""
    settings, federation = run.settings, run.federation
    local = Local(batch_size=settings.batch_size, lr=settings.lr, loss=federation.loss, l2=settings.l2)
    if run.engine == "own":
        raise ConfigError("this run was made by an engine of your own; give it again: engine=...")
    if isinstance(run.engine, str):
        return engine_named(run.engine, federation, local, block=run.block)
    return run.engine(federation, local)


def made_by(engine: Engine) -> str:
    """Name what equal bits depend on."""
    about = engine.about
    blocks = f", blocks of {about['block']}" if about["name"] == "stacked" else ""
    return f"{about['name']}, {about['device']}, {about['precision']}{blocks}, torch {torch.__version__}"


def _task(run: Run, unlearn: UnlearnSettings | None) -> Task:
    settings, federation = run.settings, run.federation
    folder = RunFolder(run.folder) if run.folder else None
    engine = engine_of(replace(run, block=block_of(folder)) if folder and folder.exists() else run)
    if settings.keep_history and run.folder is None:
        raise ConfigError("a history is kept on disk; say in which folder: out='runs/first'")
    about = run.original.about
    config = Config(
        seed=federation.seed,
        federation=about if isinstance(about, FederationSettings) else None,
        train=settings,
        unlearn=unlearn,
        made_by=made_by(engine),
        clients=federation.fingerprints() if run.folder else {},
    )
    half = settings.keep_history == "float16"
    return Task(
        method=run.method,
        federation=federation,
        engine=engine,
        rounds=run.scheduled,
        stop=run.stop,
        clients_per_round=None
        if isinstance(run.method, FedEraser)
        else _sampled(settings, federation, unlearn),
        folder=folder,
        config=to_toml(config),
        history=DiskHistory(run.folder / HISTORY, half=half)
        if settings.keep_history and run.folder
        else None,
    )


def _sampled(settings: TrainSettings, federation: Federation, unlearn: UnlearnSettings | None) -> int | None:
    """How many clients a round samples; everyone where an unlearning leaves fewer than that."""
    count = settings.clients_per_round
    if count is not None and unlearn is not None and count > len(federation.clients):
        return None
    return count
