"""Cells of a grid of experiments. Each is a file, so that several machines can make a grid over several days.

A cell is one federation with one seed, trained once and unlearned by every method. Nothing here imports torch, so that
reports can read cells without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feduhb.errors import RunFolderError
from feduhb.runs import write_atomically

ORIGINAL, RETRAIN = "original", "retrain"
SERIES = (
    "test_accuracy", "test_loss", "backdoor", "moved", "distance", "held_out_loss", "held_out_accuracy",
    "client_seconds", "server_seconds", "evaluate_seconds",
)  # fmt: skip
# What a report tells of who made a cell.
MADE = ("command", "commit", "engine", "device", "finished", "alone")
DIGITS = 6  # that a number of a series is kept with


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The settings of a cell: everything that its numbers depend on, except the machine."""

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
    held_out: float = 0.0  # the share of each client's images that is never trained on
    canaries: bool = False  # a quarter of the leavers' labels is wrong
    public: int | None = None  # unlabelled examples of the server
    relearn: int = 0  # rounds, at most, in which an audit trains the forgotten data back in
    shadows: int = 0  # shadow federations of an audit
    rows: bool = False  # the leavers stay, and only their planted examples are forgotten

    @property
    def name(self) -> str:
        """The name of the cell's file: the federation and the seed."""
        size = "all" if self.per_client is None else str(self.per_client)
        planted = "-backdoor" if self.backdoor else ""
        rows = "-rows" if self.rows else ""
        return f"{self.partition.replace(':', '-')}-{size}{planted}{rows}-s{self.seed}"

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Place:
        """Return the place that `as_json` wrote."""
        lists = {name: tuple(record.get(name, ())) for name in ("momenta", "steps")}
        return cls(**{**record, **lists})


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One run of a cell: its series, one value a round, and its sums.

    ``failed`` is why a run broke off: its model was no longer finite. Its series end there.
    """

    series: Mapping[str, tuple[float, ...]]
    settings: Mapping[str, Any]
    exact: bool
    stopped: str  # why it ended, in words
    # Of client_epochs, client_rounds, client_rounds_saved, bytes_up, bytes_down, history bytes.
    sums: Mapping[str, float]
    weights: str  # SHA-256 of the final weights
    scores: Mapping[
        str, float
    ]  # of the final model: accuracy on "forgotten" and "retained" data; not in a study's cells
    failed: str | None = None
    audit: Mapping[str, Any] = field(default_factory=dict)  # what an audit found; only in a benchmark's cells
    code: str = ""  # SHA-256 of the file of a method of the user's own

    @property
    def rounds(self) -> int:
        """The number of rounds that were run."""
        return len(self.series["moved"])

    def of(self, name: str) -> tuple[float, ...]:
        """Return a series; an empty one if the run has none of that name."""
        return self.series.get(name, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A finished cell.

    ``runs`` holds "original", "retrain", "federaser", "fedrecover" (without periodic correction),
    "fedrecover-corrected", "feduhb" (under the stop rule), "feduhb-on" (the same run, continued to the last round), and
    "momentum-B" and "step-A" for each of the place's momenta and steps. ``misr`` is, by attacker and by run, the share
    of the forgotten data called member and the share of test data called so.
    """

    place: Place
    runs: Mapping[str, Track]
    misr: Mapping[str, Mapping[str, tuple[float, float]]]
    # The command, commit, engine (with its precision), device, versions, finished, seconds of the last try, alone, added.
    made: Mapping[str, Any]

    @property
    def origins(self) -> tuple[Mapping[str, Any], ...]:
        """The records of what made the cell, and of what added runs to it later."""
        return self.made, *self.made.get("added", ())

    def write(self, folder: Path) -> Path:
        """Write the cell's file, whole or not at all."""
        record = {
            "place": self.place.as_json(),
            "made": self.made,
            "misr": self.misr,
            "runs": {name: asdict(track) for name, track in self.runs.items()},
        }
        path = folder / f"{self.place.name}.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (_format_cell(record) + "\n").encode())
        return path

    @classmethod
    def read(cls, path: Path) -> Cell:
        """Return the cell in a file; raise RunFolderError if it is damaged."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if lost := [name for name in MADE if name not in record["made"]]:
                raise KeyError(f"made.{lost[0]}")
            return cls(
                place=Place.from_json(record["place"]),
                made=record["made"],
                misr={
                    attacker: {run: (pair[0], pair[1]) for run, pair in by_run.items()}
                    for attacker, by_run in record["misr"].items()
                },
                runs={name: _read_track(track) for name, track in record["runs"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
            raise RunFolderError(
                f"{path} is damaged ({error}); delete it, and feduhb reproduce makes the cell again"
            ) from None


def cell_file(out: Path, place: Place) -> Path:
    """Return the file of a cell in a grid's folder."""
    return out / "cells" / f"{place.name}.json"


def read_cells(folder: Path) -> list[Cell]:
    """Return every cell of a grid's folder, sorted by name; raise RunFolderError for a file under another name."""
    cells = {path: Cell.read(path) for path in sorted(folder.glob("*.json"))}
    for path, cell in cells.items():
        if path.stem != cell.place.name:
            raise RunFolderError(
                f"{path} holds the cell {cell.place.name}; rename it to {cell.place.name}.json, or delete it if it is a copy"
            )
    return list(cells.values())


def round_series(values: Sequence[float]) -> tuple[float, ...]:
    """Return a series rounded to the digits that a cell's file keeps."""
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)


def _read_track(record: Mapping[str, Any]) -> Track:
    tables = {name: dict(record[name]) for name in ("settings", "sums", "scores")}
    series = {name: tuple(values) for name, values in record["series"].items()}
    return Track(**{**record, **tables, "series": series})


def _format_cell(record: Mapping[str, Any]) -> str:
    """Return JSON with one line for each run, so that a person can read a cell's file."""
    runs = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(track, allow_nan=False)}" for name, track in record["runs"].items()
    )
    rest = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(record[key], allow_nan=False)}" for key in ("place", "made", "misr")
    )
    return f'{{{rest},\n"runs": {{\n{runs}\n}}}}'
