"""Measure how seconds and memory grow with clients, parameters and rounds.

    python benchmarks/growth.py [--clients 20 100 1000 10000] [--parameters 100000 ...] [--rounds 200] [--json FILE]

- clients: one round of FedAvg, the paper's CNN (582,026 parameters), two real images a client, one epoch; `pool`, and `stacked` up to 1,000 clients.
- parameters: one round of 8 clients with 64 real images each, one epoch, a multilayer perceptron with one hidden layer; `pool`, a client a block.
- rounds: FedUHB on the demo's federation (20 clients, its perceptron), everything recorded, no stop rule; `pool`.
- lists: the memory of a federation itself for each client, without training.

Every case runs in its own process. "Beyond" is its peak memory minus the memory with Python, torch, the data and the model
loaded, before an engine was made.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import feduhb
from feduhb.core.flat import flatten
from feduhb.core.types import Engine
from feduhb.data.federation import Examples
from feduhb.data.load import Dataset, load_dataset
from feduhb.models import mlp, paper_cnn
from feduhb.runs.folder import Round
from feduhb.runs.loop import run
from measuring import MIB, make_header, read_memory, read_peak, reset_peak, run_watched, write

CLIENTS = (20, 100, 1_000, 10_000)
PARAMETERS = (100_000, 1_000_000, 10_000_000, 100_000_000)
ROUNDS = 200
LISTS = 200_000
STACKED = 1_000  # the most clients that `stacked` is measured with: on a CPU it takes twice as long
EACH = 2  # images of a client in the cases about clients
LATER = 10  # rounds whose median seconds are reported


def make_crowd(data: Dataset, clients: int) -> feduhb.Federation:
    """Return a federation of clients with two images each, rows of one shared tensor."""
    rows = torch.arange(EACH * clients).remainder(len(data.x)).view(clients, EACH)
    own = {f"c{i:07}": Examples.of(data.x, data.y, rows[i]) for i in range(clients)}
    return feduhb.Federation(own, (data.test_x, data.test_y), paper_cnn((1, 28, 28), 10))


def make_wide(data: Dataset, parameters: int) -> feduhb.Federation:
    """Return eight clients with 64 images each and a perceptron of about this size: 795 parameters a hidden unit."""
    own = {f"c{i}": Examples.of(data.x, data.y, torch.arange(64 * i, 64 * i + 64)) for i in range(8)}
    make = functools.partial(mlp, (1, 28, 28), 10, max(1, round(parameters / 795)))
    return feduhb.Federation(own, (data.test_x[:64], data.test_y[:64]), make)


def measure_round(
    make: Callable[[Dataset, int], feduhb.Federation], size: int, engine: str
) -> dict[str, Any]:
    """Return the seconds and memory of one round, without making the federation."""
    data = load_dataset("mnist-5k")
    federation = make(data, size)
    params = flatten(federation.fresh_model())
    ready = read_memory()
    reset_peak()
    method, trainer = feduhb.Retrain(epochs=1), make_engine(engine, federation)
    (_, record), *_ = run(method, trainer, tuple(federation.clients), method.init(params), rounds=1)
    return {
        "parameters": params.numel(),
        "clients": len(federation.clients),
        "seconds": record.client_seconds + record.server_seconds,
        "beyond_mib": (read_peak() - ready) / MIB,
        "most_mib": read_peak() / MIB,
        "record_bytes": len(record.to_json()),
        "bytes_up": record.bytes_up,
    }


def measure_lists(clients: int) -> dict[str, Any]:
    """Return the bytes of a federation's own lists for each client, without the images.

    With enough clients, memory that was free before does not matter.
    """
    data = load_dataset("mnist-5k")
    before = read_memory()
    federation = make_crowd(data, clients)
    return {"clients": clients, "bytes_a_client": (read_memory() - before) / len(federation.clients)}


def make_engine(name: str, federation: feduhb.Federation) -> Engine:
    """Return the engine of a case; parameters are measured with one client a block."""
    if name == "stacked":
        return feduhb.Stacked(federation, device="cpu")
    return feduhb.Pool(federation, block=1 if len(federation.clients) == 8 else 4)


def measure_rounds(rounds: int) -> dict[str, Any]:
    """Return the seconds and memory after some of the rounds."""
    federation = feduhb.load("mnist-5k", clients=20, partition="dirichlet:0.2", model="mlp", seed=1)
    method = feduhb.FedUHB(epochs=3)
    engine = feduhb.Pool(federation, feduhb.Local(batch_size=16, lr=0.05))
    state = method.init(flatten(federation.fresh_model()))
    records: list[Round] = []
    memory: list[int] = []
    for _, record in run(method, engine, tuple(federation.clients), state, rounds=rounds):
        records.append(record)
        memory.append(read_memory())
    marks = sorted({mark for mark in (LATER, 50, 100, 200, 400, 800) if mark < rounds} | {rounds})
    return {
        "rounds": [
            {
                "round": mark,
                "seconds": statistics.median(
                    r.client_seconds + r.server_seconds for r in records[max(0, mark - LATER) : mark]
                ),
                "held_mib": memory[mark - 1] / MIB,
            }
            for mark in marks
        ]
    }


def run_case(name: str) -> dict[str, Any]:
    """Run one case in this process: "clients:pool:20", "parameters:pool:100000", "lists::200000" or "rounds:pool:200"."""
    kind, engine, size = name.split(":")
    if kind == "lists":
        return measure_lists(int(size))
    if kind == "rounds":
        return measure_rounds(int(size))
    return measure_round(make_crowd if kind == "clients" else make_wide, int(size), engine)


def main() -> None:
    """Run every case in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS)
    parser.add_argument("--parameters", type=int, nargs="*", default=PARAMETERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--lists", type=int, default=LISTS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(run_case(given.only)))
        return
    names = [f"clients:pool:{n}" for n in given.clients]
    names += [f"clients:stacked:{n}" for n in given.clients if n <= STACKED]
    names += [f"parameters:pool:{n}" for n in given.parameters]
    names += [f"lists::{given.lists}", f"rounds:pool:{given.rounds}"]
    cases = {}
    for one in names:
        began = time.perf_counter()
        ended = run_watched([sys.executable, __file__, "--only", one])
        cases[one] = ended.answer or {"failed": ended.words}
        print(f"{one:28} {time.perf_counter() - began:5.1f} s  {cases[one]}", flush=True)
    if given.json:
        write(given.json, {**make_header("growth"), "cases": cases})


if __name__ == "__main__":
    main()
