"""Compute the golden matrix: small runs in every combination that the package promises, as one JSON value.

Only promised names are used (`feduhb.__all__`, `feduhb.flower.__all__`, the command line and the files of run folders), so
that the same program runs on the code before and after a restructuring:

    PYTHONPATH=src:tests python -m golden.matrix tests/golden/golden.json

Weights and floats depend on the processor. On another one than that of the file,

    PYTHONPATH=src:tests python -m golden.matrix tests/golden/golden.json --bits tests/golden/bits.json

adds a digest of each case there, which holds as long as the case in golden.json stays as it is. The value has a header, which says what the numbers depend on, and cases by name. ``masking.py`` holds the rules for what
is pinned of a case; ``library.py``, ``variations.py``, ``commands.py`` and ``over_flower.py`` hold the cases.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from threadpoolctl import threadpool_limits

import feduhb
from golden import commands, library, over_flower, variations
from golden.library import Cases
from golden.masking import digest_bits
from quiet import save_blank_figures


def compute_cases(place: Path) -> Cases:
    """Compute every case, in folders below ``place``."""
    yield from library.compute_matrix(place / "matrix")
    yield from library.compute_resumed(place / "resumed")
    yield from library.compute_chains(place / "chains")
    yield from library.compute_contents(place / "contents")
    source = place / "matrix" / "loop" / "sampled"
    yield from variations.compute_federations(place / "federations")
    yield from variations.compute_engines(place / "engines")
    yield from variations.compute_rules(place / "rules")
    yield from variations.compute_stops(source)
    yield from variations.compute_settings(place / "settings", source)
    yield from variations.compute_half(place / "half")
    yield from variations.compute_comparison(place / "comparison", place / "matrix" / "loop" / "everyone")
    yield from variations.compute_audits(place / "audits", place / "chains/chain/loop/feduhb-feduhb")
    yield from variations.compute_errors(place / "errors", source)
    yield from variations.compute_functions()
    yield from variations.compute_names()
    yield from commands.compute_commands(place / "commands")
    yield from commands.compute_paper(place / "paper")
    yield from commands.compute_refusals(place / "refusals")
    yield from commands.compute_options()
    yield from over_flower.compute_strategies(place / "strategies")
    yield from over_flower.compute_resumed(place / "submitted")
    yield from over_flower.compute_chain(place / "requests")
    yield from over_flower.compute_messages(place / "messages")
    yield from over_flower.compute_connected(place / "connected")
    yield from over_flower.compute_errors(place / "strategy-errors")


@contextlib.contextmanager
def keep_quiet() -> Generator[None]:
    """Compute with one thread, without waiting for the disk, without Flower's log, and with blank figures."""
    threads, log = torch.get_num_threads(), logging.getLogger("flwr")
    level = log.level
    torch.set_num_threads(1)
    log.setLevel(logging.CRITICAL)
    try:
        with threadpool_limits(1), mock.patch.object(os, "fsync", return_value=None), save_blank_figures():
            yield
    finally:
        torch.set_num_threads(threads)
        log.setLevel(level)


@contextlib.contextmanager
def make_place() -> Generator[Path]:
    """Make a temporary folder for the runs, in memory where the system has such a place: they are ten thousand files."""
    memory = Path("/dev/shm")  # noqa: S108
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="feduhb-golden-", dir=memory if usable else None) as folder:
        yield Path(folder)


def compute_matrix(place: Path, clock: dict[str, float] | None = None) -> dict[str, Any]:
    """Return the header and all cases, as values that `json.dumps` takes.

    Args:
        place: an empty folder for the runs.
        clock: filled with the seconds of each case.
    """
    cases: dict[str, Any] = {}
    with keep_quiet():
        began = time.perf_counter()
        for name, found in compute_cases(place):
            if name in cases:
                raise ValueError(f"two cases are called {name}")
            cases[name] = found
            now = time.perf_counter()
            if clock is not None:
                clock[name] = now - began
            began = now
        return json.loads(json.dumps({"header": describe_machine(), "cases": cases}, allow_nan=False))


def describe_machine() -> dict[str, str]:
    """Return what weights and floats depend on beside the code, and the commit of the code."""
    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": str(torch.cuda.is_available()),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("numpy", "scikit-learn")},
        "arithmetic": digest_arithmetic(),
        "commit": read_commit(Path(feduhb.__file__).parent),
    }


BITS = ("torch", "cpu_capability", "cuda", "numpy", "scikit-learn", "arithmetic")  # weights depend on these


def describe_bits(header: Mapping[str, str]) -> str:
    """Return the part of a header that weights and floats depend on, as one text."""
    return ", ".join(header[name] for name in BITS)


def digest_cases(golden: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each golden case, and after it of the same case with the bits of this machine."""
    return {
        name: f"{digest_bits(case, case)} {digest_bits(case, found[name])}"
        for name, case in golden.items()
        if name in found
    }


def list_changed_bits(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return in what two headers differ, of what weights and floats depend on."""
    return [f"{name} is {new[name]}, not {old[name]}" for name in BITS if new[name] != old[name]]


def digest_arithmetic() -> str:
    """Return a digest of a short training in plain torch: processors of one capability can still differ in the last bits."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 64, generator=draw), torch.randint(0, 10, (60,), generator=draw)
    weights = [torch.randn(64, 32, generator=draw) / 8, torch.randn(32, 10, generator=draw) / 6]
    for _ in range(20):
        for weight in weights:
            weight.requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(torch.relu(x @ weights[0]) @ weights[1], y)
        steps = torch.autograd.grad(loss, weights)
        weights = [(weight - 0.1 * step).detach() for weight, step in zip(weights, steps, strict=True)]
    stacked = torch.bmm(torch.randn(5, 16, 64, generator=draw), torch.randn(5, 64, 10, generator=draw))
    found = [*weights, stacked, torch.log_softmax(stacked, -1)]
    return sha256(b"".join(part.numpy().tobytes() for part in found)).hexdigest()[:16]


def read_commit(folder: Path) -> str:
    """Return the commit of a source tree; "unknown" outside of git."""
    command = ["git", "-C", str(folder), "rev-parse", "--short=10", "HEAD"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or "unknown"


def main() -> None:
    """Write the matrix into the file that is named, or its bits into another; say on stderr how long that took."""
    clock: dict[str, float] = {}
    with make_place() as place:
        found = compute_matrix(place, clock)
    if "--bits" in sys.argv:
        path, golden = Path(sys.argv[3]), json.loads(Path(sys.argv[1]).read_text())
        known = json.loads(path.read_text()) if path.exists() else {}
        known[describe_bits(found["header"])] = digest_cases(golden["cases"], found["cases"])
        path.write_text(json.dumps(known, indent=0) + "\n")
        return
    tight = (",", ":")
    cases = (f"{json.dumps(name)}: {json.dumps(v, separators=tight)}" for name, v in found["cases"].items())
    text = (
        f'{{"header": {json.dumps(found["header"], indent=1)},\n"cases": {{\n' + ",\n".join(cases) + "\n}}\n"
    )
    Path(sys.argv[1]).write_text(text)
    slow = sorted(clock, key=clock.__getitem__, reverse=True)[:12]
    told = ", ".join(f"{name} {clock[name]:.1f}" for name in slow)
    sys.stderr.write(f"{len(clock)} cases in {sum(clock.values()):.1f} s; the slowest: {told}\n")


if __name__ == "__main__":
    main()
