"""Run folders: the files of a run, read and written without torch.

A run folder holds ``config.toml`` (the settings), ``rounds.jsonl`` (one line for each round), ``state.safetensors``
(the server's state, see `feduhb.runs.checkpoint`) and ``result.json`` (written last). ``retired.json`` is the tombstone
of a run that was deleted, see `feduhb.runs.retire`.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import tomllib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, NotRequired, Required

from typing_extensions import TypedDict  # pydantic reads that of typing only from Python 3.12 on

from feduhb.errors import RunFolderError
from feduhb.runs.files import (
    Count,
    Number,
    append_line,
    check_shape,
    digest_tensor,
    disk_errors,
    find_json,
    hold_lock,
    lock_folder,
    make_private_folder,
    parse_json,
    read_file,
    read_text,
    reading_errors,
    sync_folder,
    write_atomically,
)
from feduhb.runs.scores import format_score, list_scores, name_score
from feduhb.stopping import Series, StopReason

HISTORY = "history"  # the folder of the history in a run folder
KEPT_MODELS = "kept-models"  # the folder of the models that a run keeps for rollbacks
WORK = "audit-work"  # the folder for the runs that an audit makes, deleted at its end
# Files of a Flower strategy.
NAMES, LEFT_OUT, REQUEST, LIMITS = "names.json", "left_out.json", "request.json", "limits.json"
TRUST = "trust.json"  # which code of the user's own may be run, see `feduhb.runs.trust`
ROUNDS = 40  # of an unlearning, at most, if no number is given
MACHINERY = ("name", "device", "precision", "threads")  # what the seconds of an engine depend on
REMAINS = (
    "audit.json", HISTORY, KEPT_MODELS, "result.json", ".result.json", "rounds.jsonl", "state.safetensors",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Round:
    """The record of one round, counted from 0. Seconds are wall clock, bytes are payload.

    ``moved`` is ‖w[t+1] - w[t]‖. ``threshold`` is the movement below which the stop rule would have ended the run
    here; None if the rule does not apply.
    """

    round: Count
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    moved: Number
    threshold: Number | None = None
    stopped: StopReason | None = None
    client_epochs: Count = 0
    bytes_down: Count = 0
    bytes_up: Count = 0
    client_seconds: Number = 0.0
    server_seconds: Number = 0.0
    evaluate_seconds: Number = 0.0
    scores: Mapping[str, Number] = field(default_factory=dict)
    # Written only if the run records them.
    distance: Number | None = None  # ‖w[t+1] - w[0]‖
    held_out: Mapping[str, Number] = field(default_factory=dict)  # of w[t], see `feduhb.runs.held_out`
    # Written only in a round in which leavers worked on the data that they asked to forget.
    leavers: tuple[str, ...] = ()  # all of those that were asked

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (read by pydantic)

    def __str__(self) -> str:
        """Return one line for progress output."""
        parts = [f"loss {self.scores['test_loss']:.3f}"] if "test_loss" in self.scores else []
        parts += [
            f"{name_score(name).removeprefix('test ')} {format_score(name, self.scores[name])}"
            for name in list_scores(self.scores)[:1]
        ]
        parts += [
            f"held-out {name_score(name)} {format_score(name, value)}"
            for name, value in [*self.held_out.items()][-1:]
        ]
        parts.append(f"moved {self.moved:.3g}")
        if self.stopped:
            parts.append("stopped")
        elif self.threshold is not None:
            parts.append(f"stops below {self.threshold:.3g}")
        return "  ".join(parts)

    @property
    def leaver_epochs(self) -> int:
        """The client epochs of leavers."""
        return self.client_epochs if self.leavers else 0

    def to_json(self) -> str:
        """Return one line of JSON."""
        values = asdict(self)
        unused = [name for name in ("distance", "held_out", "leavers") if values[name] in (None, {}, ())]
        return json.dumps({key: values[key] for key in values if key not in unused}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Round:
        """Return the round that `to_json` wrote; raise RunFolderError for anything else."""
        content = line.encode() if isinstance(line, str) else line
        return parse_json(content, cls, "a round", "run again")


class Result(TypedDict):
    """The content of result.json."""

    method: str
    exact: bool
    needs: str
    settings: dict[str, Any]
    rounds: Count
    scheduled_rounds: Count
    stopped: str
    clients: list[str]
    parameters: Count
    weights_sha256: str
    client_epochs: Count
    bytes_down: Count
    bytes_up: Count
    client_seconds: Number
    server_seconds: Number
    evaluate_seconds: Number
    client_rounds: Count
    client_rounds_saved: Number
    history_bytes_read: Count
    history_bytes_kept: Count
    scores: dict[str, Number]
    engine: dict[str, Any]
    versions: dict[str, str]
    finished: str
    # Names and shapes of the parameters, in the flat vector's order.
    layout: NotRequired[list[tuple[str, list[Count]]]]
    came_from: NotRequired[list[str]]  # digests of config.toml of the runs that it came from, nearest first
    start: NotRequired[str]  # what is declared on a start that was given or shared, in words
    # All that the method needs, in words: see `feduhb.methods.list_needs`. Earlier versions did not write it.
    requires: NotRequired[list[str]]
    kept_models_bytes: NotRequired[Count]  # with keep_models: the models in the folder
    old_model_bytes: NotRequired[Count]  # if the method begins at the model that is to forget
    # Only if the method asks leavers.
    leavers: NotRequired[list[str]]  # those that were asked to work on the data that they asked to forget
    leaver_epochs: NotRequired[Count]  # their part of client_epochs
    # With keep="best": after how many rounds the model was the one that was kept.
    kept_round: NotRequired[Count]
    # Of a rollback: the round at which it continued the training, and the SHA-256 of the model that was kept before it.
    restart_round: NotRequired[Count]
    restart_sha256: NotRequired[str]


# Keys that the first versions did not write.
DEFAULTS = {"client_rounds": 0, "client_rounds_saved": 0.0, "history_bytes_read": 0, "history_bytes_kept": 0}


class TrainShape(TypedDict):
    """What every [train] in config.toml has."""

    rounds: NotRequired[Count]


class UnlearnShape(TypedDict):
    """What every [unlearn] in config.toml has."""

    forget: str
    method: str


class TableShape(TypedDict, total=False):
    """What reports read of [federation.table] in config.toml."""

    path: Required[str]
    client: Required[str]
    target: Required[str | list[str]]
    numbers: list[str]
    categories: dict[str, list[str]]
    dates: dict[str, str]
    classes: list[str | int]
    scaling: dict[str, list[float]]
    fills: dict[str, str | float]
    standardize: bool
    loss: str


class FederationShape(TypedDict, total=False):
    """What reports read of [federation] in config.toml, besides settings of any type."""

    table: TableShape


class Shape(TypedDict, total=False):
    """What is read of any config.toml; opening a run reads all of it, see `feduhb.runs.config`."""

    seed: int
    federation: FederationShape
    train: Required[TrainShape]
    unlearn: UnlearnShape
    start: dict[str, Any]
    flower: dict[str, Any]
    clients: dict[str, str]


class Replacement(TypedDict):
    """The run that replaced a retired one, as its tombstone names it."""

    run: str
    config_sha256: str
    weights_sha256: str


class Tombstone(TypedDict, total=False):
    """The content of retired.json. Tombstones of earlier versions lack the keys that are not required."""

    config_sha256: Required[str]
    weights_sha256: Required[str | None]
    method: Required[str]
    scheduled_rounds: Required[int | None]
    forgot: Required[str]
    leavers: Required[str]
    replaced_by: Required[Replacement]
    audits: Required[list[dict[str, Any]]]
    unaudited: Required[str | None]
    holding: Required[list[str]]
    may_hold: list[str]
    unread: list[str]
    siblings_sha256: dict[str, str]
    deleted: Required[list[dict[str, Any]]]
    left: Required[list[str]]
    layout: dict[str, list[int]]  # shapes of the weights by name, in the order of result.json
    start: dict[str, Any]  # of config.toml
    begun: Required[str]
    finished: Required[str | None]
    versions: Required[dict[str, str]]


def explain_end(rounds: Sequence[Round]) -> str:
    """Return why a finished run ended: the stop rule's reason, or its last scheduled round."""
    if not rounds:
        return "no round was run"
    last = rounds[-1]
    return str(last.stopped) if last.stopped else f"all {len(rounds)} scheduled rounds were run"


def make_series(rounds: Iterable[Round], best: Literal["high", "low"] = "high") -> Series:
    """Return what rounds recorded for stop rules.

    Args:
        best: whether more or less of the main score is better.
    """
    series = Series(best=best)
    for record in rounds:
        series = series.add(record.moved, record.distance, record.held_out)
    return series


class Pace(NamedTuple):
    """How fast the rounds of a run were."""

    start: float  # seconds that the first round took beyond the others, as when code is compiled
    rate: float  # seconds for a unit of work

    def expect(self, amount: float) -> float:
        """Return the expected seconds of a run with this amount of work; no work takes no time."""
        return self.start + self.rate * amount if amount else 0.0


def measure_pace(amounts: Sequence[float], seconds: Sequence[float]) -> Pace | None:
    """Return the pace of rounds, given the work and the seconds of each; None if there was no work or no time was recorded.

    With the same work as these rounds, the expected seconds are those that they took, unless the first was the fastest.
    """
    if sum(amounts) <= 0 or sum(seconds) <= 0:
        return None
    if sum(amounts[1:]) <= 0 or sum(seconds[1:]) <= 0:  # only the first round worked
        return Pace(0.0, sum(seconds) / sum(amounts))
    rate = sum(seconds[1:]) / sum(amounts[1:])
    return Pace(max(0.0, seconds[0] - rate * amounts[0]), rate)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run."""

    path: Path
    STATE: ClassVar[str] = "state.safetensors"

    @property
    def config_path(self) -> Path:
        """The file with the settings of the run."""
        return self.path / "config.toml"

    @property
    def rounds_path(self) -> Path:
        """The file with one line for each round."""
        return self.path / "rounds.jsonl"

    @property
    def state_path(self) -> Path:
        """The last checkpoint."""
        return self.path / self.STATE

    @property
    def result_path(self) -> Path:
        """The file that is written when the run ends."""
        return self.path / "result.json"

    @property
    def tombstone_path(self) -> Path:
        """The file that a retired run leaves."""
        return self.path / "retired.json"

    def exists(self) -> bool:
        """Whether the folder holds a run, finished or not, or the tombstone of one."""
        paths = (self.config_path, self.tombstone_path)
        with reading_errors(self.path):
            return any(path.exists() or path.is_symlink() for path in paths)  # a link to nothing is damage

    def is_finished(self) -> bool:
        """Whether the run has ended."""
        with reading_errors(self.path):
            return self.result_path.exists()

    @contextlib.contextmanager
    def claim(
        self, who: str = "process", advice: str = "choose another --out", *, patience: float = 0.0
    ) -> Generator[None]:
        """Lock this folder until the block ends; raise RunFolderError if another process holds it for ``patience`` seconds."""
        make_private_folder(self.path)
        with hold_lock(self.path / ".lock", patience=patience) as mine:
            if not mine:
                raise RunFolderError(f"another {who} is writing {self.path}; wait for it, or {advice}")
            yield

    def is_replayed(self) -> bool:
        """Whether all rounds are done, so that the run needs no history any more; raise RunFolderError if that is damaged."""
        with reading_errors(self.path):
            is_prepared = self._prepared_path.is_file() and not self._prepared_path.is_symlink()
        return self.is_finished() or (is_prepared and self._find_result(self._prepared_path) is not None)

    def create(self, config: str) -> None:
        """Start a run: make the folder and its config.toml."""
        make_private_folder(self.path)
        write_atomically(self.config_path, config.encode())

    def find_remains(self) -> str | None:
        """Return the name of a file of a run in a folder that has no config.toml; None if there is none."""
        with reading_errors(self.path):
            found = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        return next((name for name in found if name in REMAINS), None)

    def tombstone(self) -> Tombstone | None:
        """Return the content of retired.json; None if nobody began to retire this run."""
        return find_json(self.tombstone_path, Tombstone, "restore a backup")

    def config(self) -> dict[str, Any]:
        """Return the content of config.toml; raise RunFolderError if the run was retired."""
        if (found := self.tombstone()) is not None:
            raise RunFolderError(explain_retirement(self.path, found))
        try:
            found = tomllib.loads(read_text(self.config_path, "restore a backup"))
        except (FileNotFoundError, NotADirectoryError):
            raise RunFolderError(f"{self.path} is not a run folder: {self._explain_absence()}") from None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise RunFolderError(f"{self.config_path} cannot be read: {reason}; restore a backup") from None
        check_shape(found, Shape, str(self.config_path), "restore a backup")
        return found

    def _explain_absence(self) -> str:
        """Return why there is no run here, and what to do."""
        make = f"make one with feduhb train CONFIG.toml --out {self.path}"
        if not self.path.exists():
            return f"there is no such folder; check the path, or {make}"
        if not self.path.is_dir():
            return "it is a file; give the folder of a run"
        inside = sorted(config.parent for config in self.path.glob(f"*/{self.config_path.name}"))
        if inside:
            return f"it holds runs; name one of them, such as {inside[0]}"
        return f"it has no config.toml; {make}"

    def rounds(self) -> list[Round]:
        """Return every complete round, without a last line that a crash cut short."""
        advice = "delete the run and start again"
        try:
            lines = read_file(self.rounds_path, advice).split(b"\n")[:-1]
        except (FileNotFoundError, NotADirectoryError):
            return []
        named = ((f"{self.rounds_path} line {number}", line) for number, line in enumerate(lines, 1))
        return [parse_json(line, Round, what, advice) for what, line in named]

    def append(self, record: Round) -> None:
        """Add one round and flush it to the disk."""
        append_line(self.rounds_path, record.to_json())

    def rewrite_rounds(self, rounds: Sequence[Round]) -> None:
        """Replace the recorded rounds, as a resumed run does to drop rounds after its checkpoint."""
        write_atomically(self.rounds_path, "".join(r.to_json() + "\n" for r in rounds).encode())

    def result(self) -> Result:
        """Return the content of result.json."""
        if (found := self._find_result(self.result_path)) is None:
            raise RunFolderError(f"{self.path} has not finished; continue it with --resume")
        return found

    def _find_result(self, path: Path) -> Result | None:
        advice = "delete it and use --resume"
        found = find_json(path, dict[str, Any], advice)
        content = json.dumps({**DEFAULTS, **found}).encode() if found is not None else None
        return None if content is None else parse_json(content, Result, str(path), advice)

    def check_weights(self) -> None:
        """Raise RunFolderError if the weights in this folder are not those that the run ended with.

        A folder from which the weights were deleted has none to check.
        """
        wanted = self.result()["weights_sha256"]
        try:
            found = digest_tensor(self.state_path, "params")
        except (FileNotFoundError, NotADirectoryError):
            return
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RunFolderError(f"{self.state_path} cannot be read: {reason}; restore a backup") from None
        if found != wanted:
            raise RunFolderError(
                f"the weights in {self.state_path} are not those that the run ended with: their SHA-256 is {str(found)[:12]}..., "
                f"but result.json records {wanted[:12]}...; restore a backup, or delete the folder and run again"
            )

    def prepare(self, result: Mapping[str, object]) -> None:
        """Write the result under a hidden name. `publish` then marks the run as finished."""
        write_atomically(self._prepared_path, (json.dumps(result, indent=2) + "\n").encode())

    def publish(self) -> None:
        """Rename the prepared result to result.json."""
        with disk_errors(self.result_path), lock_folder(self.path):
            self._prepared_path.replace(self.result_path)
            sync_folder(self.path)

    @property
    def _prepared_path(self) -> Path:
        return self.path / ".result.json"


def explain_retirement(folder: Path, tombstone: Tombstone) -> str:
    """Return why a run that was retired cannot be opened, and what to do."""
    if tombstone["finished"] is None:
        return f"retiring {folder} was interrupted; finish it: feduhb retire {folder}"
    new = Path(os.path.normpath(folder / tombstone["replaced_by"]["run"]))
    return f"{folder} was retired on {tombstone['finished'][:10]}, see its retired.json; use {new}, which replaced it"


def versions() -> dict[str, str]:
    """Return the versions of feduhb, torch and Python."""
    try:
        own = importlib.metadata.version("feduhb")
    except importlib.metadata.PackageNotFoundError:
        own = "run from source"
    torch = sys.modules.get("torch")  # already imported by code that computes
    made_by = str(getattr(torch, "__version__", ""))
    return {"feduhb": own, "torch": made_by, "python": platform.python_version()}


def now() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
