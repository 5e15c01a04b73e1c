"""Cells of a grid of experiments: one file each, so that a grid is finished over several machines and days.

A cell is one federation of one seed, trained once and unlearned by every method. Nothing here imports torch, so that
reports can read cells without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feduhb.errors import RunFolderError
from feduhb.runs.folder import write_atomically

ORIGINAL, RETRAIN = "original", "retrain"
SERIES = (
    "test_accuracy", "test_loss", "backdoor", "moved", "client_seconds", "server_seconds", "evaluate_seconds",
)  # fmt: skip
MADE = (
    "command",
    "commit",
    "engine",
    "device",
    "finished",
    "alone",
)  # what a report tells of who made a cell
DIGITS = 6  # that a number of a series is kept with


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a cell stands in its grid: everything that its numbers depend on but the machine."""

    data: str
    partition: str
    per_client: int | None  # images of each client; None: all, shared out
    backdoor: bool
    seed: int
    clients: int
    forget: str
    rounds: int
    epochs: int
    batch_size: int
    lr: float
    momentum: float  # FedUHB's
    scale: float  # its stop rule's lambda
    momenta: tuple[float, ...] = ()  # more of them, without the rule
    steps: tuple[float, ...] = ()  # FedAvg with these server steps
    model: str | None = None
    fedrecover: Mapping[str, float] = field(default_factory=dict)  # settings other than the method's own
    timed: bool = False  # runs alone on its machine, so that its seconds mean something

    @property
    def name(self) -> str:
        """The name of the cell's file: the federation and the seed."""
        size = "all" if self.per_client is None else str(self.per_client)
        planted = "-backdoor" if self.backdoor else ""
        return f"{self.partition.replace(':', '-')}-{size}{planted}-s{self.seed}"

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Place:
        """Read what `as_json` spelled."""
        lists = {name: tuple(told.get(name, ())) for name in ("momenta", "steps")}
        return cls(**{**told, **lists})


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One run of a cell: its series, one value a round, and its sums.

    ``failed`` says why a run broke off (its model was no longer finite); its series end there.
    """

    series: Mapping[str, tuple[float, ...]]
    settings: Mapping[str, Any]
    exact: bool
    stopped: str  # why it ended, in words
    sums: Mapping[
        str, float
    ]  # client_epochs, client_rounds, client_rounds_saved, bytes_up, bytes_down, history bytes
    weights: str  # SHA-256 of the final weights
    scores: Mapping[str, float]  # of the final model: accuracy on "forgotten" and "retained" data
    failed: str | None = None

    @property
    def rounds(self) -> int:
        """How many were run."""
        return len(self.series["moved"])

    def of(self, name: str) -> tuple[float, ...]:
        """A series; empty where the run has none of that name."""
        return self.series.get(name, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A finished cell.

    ``runs`` holds "original", "retrain", "federaser", "fedrecover" (without periodic correction),
    "fedrecover-corrected", "feduhb" (under the stop rule), "feduhb-on" (the same run, gone on to the last round), and
    "momentum-B" and "step-A" for each of the place's momenta and steps. ``misr`` is, by attacker and by run, the share
    of the forgotten data called member and the share of test data called so.
    """

    place: Place
    runs: Mapping[str, Track]
    misr: Mapping[str, Mapping[str, tuple[float, float]]]
    made: Mapping[
        str, Any
    ]  # command, commit, engine (with its precision), device, versions, finished, seconds of the last try, alone; added

    @property
    def origins(self) -> tuple[Mapping[str, Any], ...]:
        """What made it, and then what added runs to it."""
        return self.made, *self.made.get("added", ())

    def write(self, folder: Path) -> Path:
        """Write the cell's file, whole or not at all."""
        told = {
            "place": self.place.as_json(),
            "made": self.made,
            "misr": self.misr,
            "runs": {name: asdict(track) for name, track in self.runs.items()},
        }
        path = folder / f"{self.place.name}.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (_spelled(told) + "\n").encode())
        return path

    @classmethod
    def read(cls, path: Path) -> Cell:
        """Read a cell's file."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if lost := [name for name in MADE if name not in told["made"]]:
                raise KeyError(f"made.{lost[0]}")
            return cls(
                place=Place.from_json(told["place"]),
                made=told["made"],
                misr={
                    attacker: {run: (pair[0], pair[1]) for run, pair in by_run.items()}
                    for attacker, by_run in told["misr"].items()
                },
                runs={name: _track(track) for name, track in told["runs"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
            raise RunFolderError(
                f"{path} is damaged ({error}); delete it, and feduhb reproduce makes that cell again"
            ) from None


def read_cells(folder: Path) -> list[Cell]:
    """Read every cell of a grid's folder, in the order of their names; refuse one that stands there under another name."""
    cells = {path: Cell.read(path) for path in sorted(folder.glob("*.json"))}
    for path, cell in cells.items():
        if path.stem != cell.place.name:
            raise RunFolderError(
                f"{path} holds the cell {cell.place.name}; call it {cell.place.name}.json, or delete it where that is a copy"
            )
    return list(cells.values())


def shortened(values: Sequence[float]) -> tuple[float, ...]:
    """Round a series to the digits that are kept."""
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)


def _track(told: Mapping[str, Any]) -> Track:
    tables = {name: dict(told[name]) for name in ("settings", "sums", "scores")}
    series = {name: tuple(values) for name, values in told["series"].items()}
    return Track(**{**told, **tables, "series": series})


def _spelled(told: Mapping[str, Any]) -> str:
    """Return JSON with one line for each run, so that a person can read a cell's file."""
    runs = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(track, allow_nan=False)}" for name, track in told["runs"].items()
    )
    rest = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(told[key], allow_nan=False)}" for key in ("place", "made", "misr")
    )
    return f'{{{rest},\n"runs": {{\n{runs}\n}}}}'
