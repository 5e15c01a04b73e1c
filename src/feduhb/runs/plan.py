"""The plan of a run, which `feduhb.runs.execute` executes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from feduhb.core.types import ClientId, Engine, Method
from feduhb.data.request import Request
from feduhb.runs.folder import Round, RunFolder
from feduhb.runs.held_out import Recording
from feduhb.runs.history import DiskHistory
from feduhb.runs.kept import Keeper
from feduhb.runs.lineage import Ancestor, Erasure
from feduhb.runs.loop import OnBad, Participants, Rounds, Score
from feduhb.runs.rollback import Restart
from feduhb.stopping import StopRule, never


@runtime_checkable
class Observer(Protocol):
    """What may be passed to ``show`` besides a function: it learns the name of a run, and when the run ends."""

    def watch(self, label: str) -> AbstractContextManager[Callable[[Round], None]]:
        """Return a context that lasts as long as a run, with the function that gets every `Round` of it."""
        ...


ShowOne = Literal["auto", "lines"] | Callable[[Round], object] | Observer | None
Show = ShowOne | Sequence[ShowOne]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Phrases for errors about a folder, which differ between the command line and a Flower ServerApp."""

    writer: str = "process"
    again: str = "resume it"
    elsewhere: str = "choose another --out"
    folder: str = "out='runs/first'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Functions that report what a run erased, and what it could not find."""

    inform: Callable[[str], object] = str  # reports nothing
    warn: Callable[[str], object] = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that `feduhb.runs.execute.execute` needs to know of a run: training, unlearning, or a part of an audit.

    `feduhb.runs.prepare` makes plans from federations, `feduhb.flower.server` from a Flower grid.
    """

    # What is run
    label: str  # for the progress bar
    method: Method[Any]  # with its history bound, if it needs one
    start: Callable[[], Tensor]  # returns the fresh model [P], which no run needs to keep
    declaration: str | None = None  # on a start that was given or shared, for result.json
    restart: Restart | None = None  # where a rollback continues a training; None: at the fresh model
    statistics: int = 0  # how many numbers at its end are statistics of normalisation layers
    engine: Engine
    clients: Participants  # all clients that take part, or a function that samples them for a round
    leavers: tuple[ClientId, ...] = ()  # those that a method with `asks_leaver` may ask
    rounds: int  # the largest number of rounds
    stop: StopRule = never
    on_bad: OnBad = "raise"
    score: Score | None = None  # None: do not score models
    recording: Recording = field(default_factory=Recording)

    # Where it is recorded
    folder: RunFolder | None = None
    config: str = ""  # the content of config.toml
    files: dict[str, bytes] = field(default_factory=dict)  # written into a new folder before config.toml
    resume: bool = False
    history_to_write: DiskHistory | None = None
    keeper: Keeper | None = None  # keeps models for rollbacks
    checkpoint_every: float = 0.0  # the least number of seconds between two checkpoints
    # Names and shapes of the parameters, in the order of `start`.
    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()
    everyone: tuple[ClientId, ...] | None = None  # all clients; None: those that are asked in some round
    per_round: int | None = None  # clients sampled in each round; None: all
    advice: Advice = field(default_factory=Advice)

    # What it follows, and what must be erased for it
    ancestors: tuple[Ancestor, ...] = ()
    supersedes: tuple[Path, ...] = ()  # folders of the runs that this run replaces
    forgets: Request | None = None  # must cover what runs that replace the same runs forgot; None: unchecked
    erasure: Erasure = field(default_factory=Erasure)
    reporter: Reporter = field(default_factory=Reporter)

    # Who watches
    show: Show = None
    notice: str = ""  # written to standard error once the folder is claimed
    observe: Callable[[Rounds[Any]], Rounds[Any]] | None = None  # wraps the loop, before checkpoints
