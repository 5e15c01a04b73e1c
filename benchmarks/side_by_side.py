"""Time the same round in our engines, a plain PyTorch loop, Flower's simulation, Apple's pfl and JAX.

    python benchmarks/side_by_side.py [--clients 8] [--images 500] [--epochs 1] [--rounds 4] [--turns 3] [--json FILE]
        [--python-flower PATH] [--python-pfl PATH] [--python-jax PATH]

Every client trains the paper's CNN from the same parameters on its own real images (`mnist-5k`), batch 64, SGD with lr 0.005.
The next round starts from the weighted mean of the models. Each implementation runs in its own processes. They take turns, so
that a busy machine slows all of them alike. The first round of a turn, which starts and compiles things, is not timed. A turn
counts with the median of its other rounds, and the best turn counts. Implementations that are missing are listed with what to
install, in an environment of their own if their pins conflict with ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import feduhb
from engines import measure_matrix_rate
from feduhb.core.flat import flatten
from measuring import MIB, Ended, make_header, run_watched, write

SCRIPTS = Path(__file__).parent / "rounds"


class Entry(NamedTuple):
    """An implementation."""

    what: str
    script: str
    arguments: tuple[str, ...] = ()
    needs: str = "feduhb"  # what must be importable
    install: str = "pip install -e ."
    processes: bool = False  # started once for each core, by torchrun


ENTRIES = {
    "loop": Entry("our reference: one client at a time, one thread", "round_ours", ("loop",)),
    "pool": Entry("our engine for CPUs: one thread a core, each with whole clients", "round_ours", ("pool",)),
    "stacked": Entry("our engine for GPUs, on this CPU", "round_ours", ("stacked",)),
    "plain": Entry("a loop over clients in plain PyTorch, all threads", "round_plain"),
    "flower": Entry(
        "Flower's simulation: an actor a core, one thread each", "round_flower", needs="flwr",
        install="pip install 'flwr[simulation]==1.41.0' torch",
    ),
    "pfl": Entry(
        "Apple's pfl: a process a core, one thread each", "round_pfl", needs="pfl",
        install="pip install 'pfl[pytorch]==0.6.0'", processes=True,
    ),
    "jax": Entry("JAX: the whole round compiled", "round_jax", needs="jax", install="pip install jax"),
}  # fmt: skip


def prepare(folder: Path, clients: int, images: int, epochs: int, rounds: int) -> None:
    """Write the task that all implementations read."""
    federation = feduhb.load("mnist-5k", clients=clients, per_client=images, held_out=0.0, model="cnn")
    x, y = zip(*(examples.all() for examples in federation.clients.values()), strict=True)
    np.save(folder / "x.npy", torch.cat(x).numpy())
    np.save(folder / "y.npy", torch.cat(y).numpy())
    np.save(folder / "start.npy", flatten(federation.fresh_model()).numpy())
    task = {"clients": clients, "images": images, "epochs": epochs, "rounds": rounds}
    (folder / "task.json").write_text(json.dumps(task))


def count_flop() -> int:
    """Return the floating point operations of one training step on one image, forward and backward."""
    model = feduhb.load("mnist-5k", clients=2, model="cnn").fresh_model()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(64, 1, 28, 28)).sum().backward()
    return counter.get_total_flops() // 64


def take_turn(entry: Entry, python: str, folder: Path) -> Ended:
    """Run the rounds of one implementation."""
    command: list[str | Path] = [python]
    if entry.processes:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count_cores()}"]
    return run_watched([*command, SCRIPTS / f"{entry.script}.py", folder, *entry.arguments])


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def can_import(entry: Entry, python: str) -> bool:
    """Whether an interpreter can import what an entry needs."""
    code = f"import {entry.needs}; print('{{\"there\": true}}')"
    return bool(run_watched([python, "-c", code]).answer)


def summarise(turns: list[Ended], images: int) -> dict[str, Any]:
    """Return the images a second of the best turn, every timed round, and the peak memory of all turns."""
    good = [ended for ended in turns if ended.answer]
    if not good:
        return {"failed": turns[-1].words}
    timed = [ended.answer["seconds"][1:] for ended in good]
    best = min(statistics.median(rounds) for rounds in timed)
    return {
        "images_per_second": images / best,
        "seconds": timed,
        "outside_seconds": statistics.median(
            ended.seconds - sum(ended.answer["seconds"][1:]) for ended in good
        ),
        "peak_mib": max(ended.peak for ended in good) / MIB,
        "moved": good[0].answer["moved"],
        "version": good[0].answer["version"],
    }


def main() -> None:
    """Measure the implementations in turns; print and write the table."""
    given = make_parser().parse_args()
    pythons = {name: getattr(given, f"python_{name}", None) or sys.executable for name in ENTRIES}
    chosen = {name: ENTRIES[name] for name in given.only or ENTRIES}
    missing = [name for name, entry in chosen.items() if not can_import(entry, pythons[name])]
    turns: dict[str, list[Ended]] = {name: [] for name in chosen if name not in missing}
    rates = []
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place), given.clients, given.images, given.epochs, given.rounds)
        for _ in range(given.turns):
            rates.append(measure_matrix_rate())
            for name, held in turns.items():
                held.append(take_turn(ENTRIES[name], pythons[name], Path(place)))
                print(f"{name:8} {[round(s, 2) for s in held[-1].answer.get('seconds', ())]}", flush=True)
    images = given.clients * given.images * given.epochs
    found = {
        **make_header("side_by_side"),
        "task": {name: getattr(given, name) for name in ("clients", "images", "epochs", "rounds", "turns")},
        "flop_an_image": count_flop(),
        "matrix_gflops": max(rates),
        "implementations": {
            name: {"what": entry.what, **({"missing": entry.install} if name in missing else summarise(turns[name], images))}
            for name, entry in chosen.items()
        },
    }  # fmt: skip
    report(found)
    if given.json:
        write(given.json, found)


def report(found: dict[str, Any]) -> None:
    """Print one line for each implementation."""
    for name, one in found["implementations"].items():
        if "images_per_second" not in one:
            print(f"{name:8} {one.get('missing') or one['failed']}")
            continue
        rate = one["images_per_second"]
        share = rate * found["flop_an_image"] / found["matrix_gflops"] / 1e9
        print(f"{name:8} {rate:8,.0f} images/s, {share:.0%} of the matrix rate, {one['peak_mib']:,.0f} MiB")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("clients", 8), ("images", 500), ("epochs", 1), ("rounds", 4), ("turns", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("flower", "pfl", "jax"):
        parser.add_argument(f"--python-{name}", help=f"the interpreter of an environment with {name}")
    parser.add_argument("--only", nargs="+", choices=list(ENTRIES))
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    main()
