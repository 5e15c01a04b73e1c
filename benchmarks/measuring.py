"""What the benchmarks share: run a process and watch its memory, describe the machine, write results."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks"
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20
QUIET = {
    "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads must not spin
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Ended(NamedTuple):
    """A process that ended by itself."""

    answer: dict[str, Any]  # the last line of JSON that it printed; empty if there was none
    words: str  # the last lines of its output
    seconds: float
    peak: int  # bytes


def run_watched(command: Sequence[str | Path], *, every: float = 0.2) -> Ended:
    """Run a command and measure the memory of its process and its children while it runs."""
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT / "src")}
    began, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=said, stderr=subprocess.STDOUT, env=environment
        )
        while process.poll() is None:
            peak = max(peak, measure_memory(process.pid))
            time.sleep(every)
        said.seek(0)
        lines = said.read().splitlines()
    answers = [line for line in lines if line.startswith("{") and line.endswith("}")]
    answer = json.loads(answers[-1]) if answers and not process.returncode else {}
    return Ended(answer, "\n".join(lines[-12:]), time.perf_counter() - began, peak)


def measure_memory(root: int) -> int:
    """Return the bytes that a process and its descendants hold: the own pages of each, and the largest share once."""
    own = shared = 0
    for process in list_family(root):
        try:
            pages = (Path("/proc") / str(process) / "statm").read_text().split()
        except OSError:  # it ended meanwhile
            continue
        own += int(pages[1]) - int(pages[2])
        shared = max(shared, int(pages[2]))
    return (own + shared) * PAGE


def list_family(root: int) -> set[int]:
    """Return the ids of a process and of all its descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, before = {root}, 0
    while len(found) > before:
        before = len(found)
        found |= {process for process, parent in parents.items() if parent in found}
    return found


def read_memory() -> int:
    """Return the bytes that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def reset_peak() -> None:
    """Reset the peak memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def read_peak() -> int:
    """Return the peak memory of this process in bytes since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def describe_machine() -> dict[str, Any]:
    """Return a description of the machine and its software."""
    return {
        "processor": read_processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * PAGE / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def describe_gpu() -> dict[str, str]:
    """Return the name of the GPU, and the version of Triton if it is installed."""
    triton = {"triton": import_module("triton").__version__} if find_spec("triton") else {}
    return {"gpu": torch.cuda.get_device_name(), **triton}


def read_processor() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def make_header(name: str, *, gpu: bool = False) -> dict[str, Any]:
    """Return the head of every result: command, date and machine, with the GPU if ``gpu``."""
    return {
        "command": " ".join(["python", f"benchmarks/{name}.py", *_drop_paths(sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {**(describe_gpu() if gpu else {}), **describe_machine()},
    }


def _drop_paths(words: Sequence[str]) -> list[str]:
    """Return the arguments without file names: without --json and --python with their values, and without paths."""
    own = [word.startswith(("--python", "--json")) for word in words]
    value = [False, *(mine and "=" not in word for mine, word in zip(own, words, strict=True))]
    return [
        word
        for word, mine, theirs in zip(words, own, value, strict=False)
        if not mine and not theirs and "/" not in word
    ]


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {path}")
