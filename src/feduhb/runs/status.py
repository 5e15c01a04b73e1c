"""What `feduhb status` finds, as plain values: runs, what each still holds of each leaver, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from feduhb.runs.audits import KeptAudit
from feduhb.runs.lineage import Erased

State = Literal["unfinished", "finished", "superseded", "retired", "retiring", "damaged"]
Part = Literal["model", "checkpoint", "kept models", "history", "records", "temporary files", "audit work"]
# By what a run is known to hold a leaver.
Reason = Literal["lineage", "data", "restored", "audit work", "name", "unreadable"]
UNSURE = ("name", "unreadable")  # reasons that do not prove it
What = Literal["unlearn", "resume", "audit", "retire", "delete", "look"]


@dataclass(frozen=True, slots=True)
class Remnant:
    """A part of a run folder that was made with a leaver's data."""

    part: Part
    path: Path
    bytes: int
    rounds: int = 0  # of a history; of kept models, their number


@dataclass(frozen=True, slots=True)
class Held:
    """What a run still holds, or may hold, of a leaver."""

    leaver: str  # as text that `Request.parse` reads
    reason: Reason
    remnants: tuple[Remnant, ...]

    @property
    def is_sure(self) -> bool:
        """Whether the run holds the leaver; False if only a name says so, or if the run cannot be read."""
        return self.reason not in UNSURE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One run folder."""

    path: Path
    state: State
    problem: str = ""  # what is damaged
    method: str = ""  # empty for a training
    exact: bool | None = None  # whether the method claims to be exact; None if that is not recorded
    made_with: Literal["commands", "Python", "Flower"] = "Python"
    config_sha256: str = ""  # of its config.toml, also if it was retired
    earlier_sha256: tuple[str, ...] = ()  # of the config.toml of every run that it came from
    forgot: str = ""  # everything that it has forgotten
    came_from: Path | None = None
    superseded_by: tuple[Path, ...] = ()  # those that are still there
    ended: str = ""  # when it finished, or was retired
    weights_sha256: str = ""  # that it ended with
    holds: tuple[Held, ...] = ()
    audits: tuple[KeptAudit, ...] = ()  # the last one first
    erased: tuple[Erased, ...] = ()  # what erasures deleted of its history and its kept models
    left: tuple[str, ...] = ()  # files that feduhb did not write, in a run that holds a leaver or was retired

    def is_related(self, other: RunStatus) -> bool:
        """Whether one of two runs came from the other, or both came from the same run."""
        mine, its = ({one.config_sha256, *one.earlier_sha256} - {""} for one in (self, other))
        return bool(mine & its)

    def judged_these_weights(self, audit: KeptAudit) -> bool:
        """Whether an audit is about the weights that this run ended with."""
        return bool(audit.weights_sha256) and audit.weights_sha256 == self.weights_sha256


@dataclass(frozen=True, slots=True)
class Leaver:
    """A client, rows of a client or a class that a run has forgotten, or that was asked about."""

    request: str
    name: str  # the registered name of a client over Flower
    held_by: tuple[Path, ...]
    may_be_held_by: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.request})" if self.name else self.request


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do, so that nothing of the leavers is left."""

    what: What
    path: Path
    says: str
    command: str = ""  # to type


@dataclass(frozen=True, slots=True)
class Status:
    """The runs in a folder, and those that their lineage names."""

    folder: Path
    runs: tuple[RunStatus, ...]
    leavers: tuple[Leaver, ...]
    unread: tuple[Path, ...]  # folders that could not be listed
    steps: tuple[Step, ...]

    @property
    def is_clear(self) -> bool:
        """Whether no run holds or may hold a leaver, and every run could be read: a damaged one may name leavers."""
        is_held = any(one.held_by or one.may_be_held_by for one in self.leavers)
        return not (is_held or self.unread or any(run.state == "damaged" for run in self.runs))

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return _to_plain({**asdict(self), "is_clear": self.is_clear})


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
