"""Where the numbers of a cell come from: the commit of the code, and the machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch


def find_commit() -> str:
    """Return the commit of this code: FEDUHB_COMMIT if it is set, else what git says, with "+" for changes, else "unknown"."""
    if given := os.environ.get("FEDUHB_COMMIT"):
        return given
    here = Path(__file__).parent
    found = _git(here, "rev-parse", "--short=10", "HEAD")
    tracked = found and _git(here, "ls-files", Path(__file__).name)
    if not tracked:  # installed inside somebody else's repository
        return "unknown"
    return f"{found}+" if _git(here, "status", "--porcelain", "--", str(here.parent)) else found


def name_device(kind: str) -> str:
    """Return the name of the GPU, or of the processor with its cores."""
    if kind == "cuda":
        return torch.cuda.get_device_name()
    return f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores of {_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _git(folder: Path, *arguments: str) -> str:
    """Return what git answers; nothing if there is no git or no repository."""
    git = shutil.which("git")
    if git is None:
        return ""
    asked = subprocess.run([git, "-C", str(folder), *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    return asked.stdout.strip() if asked.returncode == 0 else ""
