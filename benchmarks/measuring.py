"""What the benchmarks share: processes whose memory is watched, a description of the machine, results on disk."""

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
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait shall not spin
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Ended(NamedTuple):
    """A process that ended by itself."""

    answer: dict[str, Any]  # the last line it printed that is JSON; empty where there was none
    words: str  # the last of what it said otherwise
    seconds: float
    peak: int  # bytes


def watched(command: Sequence[str | Path], *, every: float = 0.2) -> Ended:
    """Run a command and look at the memory of it and its children as it runs."""
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT / "src")}
    began, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=said, stderr=subprocess.STDOUT, env=environment
        )
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(every)
        said.seek(0)
        lines = said.read().splitlines()
    answers = [line for line in lines if line.startswith("{") and line.endswith("}")]
    answer = json.loads(answers[-1]) if answers and not process.returncode else {}
    return Ended(answer, "\n".join(lines[-12:]), time.perf_counter() - began, peak)


def resident(root: int) -> int:
    """Bytes that a process and its descendants hold: each one's own pages, and the shared ones of the largest once."""
    own = shared = 0
    for process in family(root):
        try:
            pages = (Path("/proc") / str(process) / "statm").read_text().split()
        except OSError:  # it ended meanwhile
            continue
        own += int(pages[1]) - int(pages[2])
        shared = max(shared, int(pages[2]))
    return (own + shared) * PAGE


def family(root: int) -> set[int]:
    """The ids of a process and of all that descend from it."""
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


def held() -> int:
    """Bytes this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def forget_peak() -> None:
    """Let the most this process ever held begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def most_held() -> int:
    """The most bytes this process held since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def machine() -> dict[str, Any]:
    """Describe the machine and what runs on it."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * PAGE / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def graphics() -> dict[str, str]:
    """The GPU, and Triton where it is installed."""
    triton = {"triton": import_module("triton").__version__} if find_spec("triton") else {}
    return {"gpu": torch.cuda.get_device_name(), **triton}


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def header(name: str, *, gpu: bool = False) -> dict[str, Any]:
    """What stands at the top of every result: command, date and machine, with its GPU where that computed."""
    return {
        "command": " ".join(["python", f"benchmarks/{name}.py", *_plain(sys.argv[1:])]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {**(graphics() if gpu else {}), **machine()},
    }


def _plain(words: Sequence[str]) -> list[str]:
    """Leave out what names files of this machine: the options for results and interpreters with their values, and paths."""
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
