"""A grid small enough for tests, and the facts of a cell that must not depend on the clock."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from feduhb.audit.attacks import misr
from feduhb.runs import BeginStep
from feduhb_reproduction.cell import show_nothing
from feduhb_reproduction.cell_plan import Job
from feduhb_reproduction.cells import Cell
from feduhb_reproduction.grids import Grid, Part, read_grid
from feduhb_reproduction.reproduce import attempt_cell

TEXT = """
data = "digits"
clients = 5
rounds = 6
epochs = 1
batch_size = 16
lr = 0.05
scale = 10.0
seeds = [0, 1]
model = "mlp"
fedrecover = { warmup = 3, final = 1, correction = 2 }

[[parts]]
partitions = ["iid"]
per_client = [40]
timed = true

[[parts]]
partitions = ["dirichlet:0.5"]
per_client = [40]
momenta = [0.5]
steps = [2.0]

[[parts]]
partitions = ["iid"]
per_client = [40]
backdoor = true
"""
BACKDOORED = Part(partitions=("dirichlet:0.5",), per_client=(40,), backdoor=True, momenta=(0.5,))
FEW_TREES = {"max_iter": 5, "max_bins": 8}  # of the attackers, whose finds are not judged here
CLOCKS = ("client_seconds", "server_seconds", "evaluate_seconds")


def written(folder: Path, text: str = TEXT) -> Path:
    """The grid's file."""
    path = folder / "small.toml"
    path.write_text(text)
    return path


def one_cell(tmp_path: Path, **changes: Any) -> Grid:
    """The same grid with one cell."""
    whole = read_grid(written(tmp_path))
    told = {name: getattr(whole, name) for name in Grid.__dataclass_fields__}
    part = Part(partitions=("iid",), per_client=(40,))
    return Grid(**{**told, "seeds": (0,), "parts": (part,), **changes})


def facts(path: Path) -> dict[str, Any]:
    """What a cell found, without what a clock or a machine said."""
    cell = Cell.read(path)
    runs = {
        name: {
            "series": {key: values for key, values in track.series.items() if key not in CLOCKS},
            "weights": track.weights,
            "scores": dict(track.scores),
            "sums": dict(track.sums),
            "stopped": track.stopped,
            "failed": track.failed,
        }
        for name, track in cell.runs.items()
    }
    return json.loads(json.dumps({"place": cell.place.as_json(), "runs": runs, "misr": cell.misr}))


def killed_at_the_first_backdoor(job: Job, show: object = None) -> list[str]:  # noqa: ARG001
    """Make no cell, and die at one of them."""
    if job.place.name == "iid-40-backdoor-s0":
        os.kill(os.getpid(), signal.SIGKILL)
    return []


def attempt_with_few_trees(job: Job, show: BeginStep = show_nothing) -> list[tuple[str, str]]:
    """Make a cell in a worker process, which knows nothing of the attackers' size in this one."""
    misr.TREES = {**misr.TREES, **FEW_TREES}
    return attempt_cell(job, show)
