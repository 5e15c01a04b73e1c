"""How seconds and memory grow: with clients, with parameters, with rounds.

    python benchmarks/growth.py [--clients 20 100 1000 10000] [--parameters 100000 ...] [--rounds 200] [--json FILE]

- clients: one round of FedAvg, the paper's CNN (582,026 parameters), two real images a client, one epoch; `pool`, and `stacked` up to 1,000 clients.
- parameters: one round of 8 clients with 64 real images each, one epoch, a multilayer perceptron with one hidden layer; `pool`, a client a block.
- rounds: FedUHB on the demo's federation (20 clients, its perceptron), everything recorded, no stop rule; `pool`.
- lists: what a federation itself takes for each client, without training.

Every case runs in a process of its own. "Beyond" is the most memory it ever held less what it held with Python, torch, the
data and the model loaded, before an engine was made.
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
from measuring import MIB, forget_peak, header, held, most_held, watched, write

CLIENTS = (20, 100, 1_000, 10_000)
PARAMETERS = (100_000, 1_000_000, 10_000_000, 100_000_000)
ROUNDS = 200
LISTS = 200_000
STACKED = 1_000  # the most clients that `stacked` is measured with: on a CPU it takes twice as long
EACH = 2  # images of a client where clients are many
LATER = 10  # rounds over which seconds and memory are looked at


def crowd(data: Dataset, clients: int) -> feduhb.Federation:
    """So many clients of two images, rows of one tensor that all share."""
    rows = torch.arange(EACH * clients).remainder(len(data.x)).view(clients, EACH)
    own = {f"c{i:07}": Examples.of(data.x, data.y, rows[i]) for i in range(clients)}
    return feduhb.Federation(own, (data.test_x, data.test_y), paper_cnn((1, 28, 28), 10))


def wide(data: Dataset, parameters: int) -> feduhb.Federation:
    """Eight clients of 64 images, and a perceptron with about so many parameters: 795 a hidden unit on MNIST."""
    own = {f"c{i}": Examples.of(data.x, data.y, torch.arange(64 * i, 64 * i + 64)) for i in range(8)}
    make = functools.partial(mlp, (1, 28, 28), 10, max(1, round(parameters / 795)))
    return feduhb.Federation(own, (data.test_x[:64], data.test_y[:64]), make)


def one_round(make: Callable[[Dataset, int], feduhb.Federation], size: int, engine: str) -> dict[str, Any]:
    """Seconds and memory of one round after the federation is there."""
    data = load_dataset("mnist-5k")
    federation = make(data, size)
    params = flatten(federation.fresh_model())
    ready = held()
    forget_peak()
    method, trainer = feduhb.Retrain(epochs=1), engine_of(engine, federation)
    (_, record), *_ = run(method, trainer, tuple(federation.clients), method.init(params), rounds=1)
    return {
        "parameters": params.numel(),
        "clients": len(federation.clients),
        "seconds": record.client_seconds + record.server_seconds,
        "beyond_mib": (most_held() - ready) / MIB,
        "most_mib": most_held() / MIB,
        "record_bytes": len(record.to_json()),
        "bytes_up": record.bytes_up,
    }


def lists(clients: int) -> dict[str, Any]:
    """Bytes that a federation's own lists take for each client, its images apart; so many that what was free before is no matter."""
    data = load_dataset("mnist-5k")
    before = held()
    federation = crowd(data, clients)
    return {"clients": clients, "bytes_a_client": (held() - before) / len(federation.clients)}


def engine_of(name: str, federation: feduhb.Federation) -> Engine:
    """The engine of a case; parameters are measured with one client a block."""
    if name == "stacked":
        return feduhb.Stacked(federation, device="cpu")
    return feduhb.Pool(federation, block=1 if len(federation.clients) == 8 else 4)


def many_rounds(rounds: int) -> dict[str, Any]:
    """Seconds a round and memory as rounds go by."""
    federation = feduhb.load("mnist-5k", clients=20, partition="dirichlet:0.2", model="mlp", seed=1)
    method = feduhb.FedUHB(epochs=3)
    engine = feduhb.Pool(federation, feduhb.Local(batch_size=16, lr=0.05))
    state = method.init(flatten(federation.fresh_model()))
    records: list[Round] = []
    memory: list[int] = []
    for _, record in run(method, engine, tuple(federation.clients), state, rounds=rounds):
        records.append(record)
        memory.append(held())
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


def case(spelled: str) -> dict[str, Any]:
    """Carry out one case in this process: "clients:pool:20", "parameters:pool:100000", "lists::200000" or "rounds:pool:200"."""
    kind, engine, size = spelled.split(":")
    if kind == "lists":
        return lists(int(size))
    if kind == "rounds":
        return many_rounds(int(size))
    return one_round(crowd if kind == "clients" else wide, int(size), engine)


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
        print(json.dumps(case(given.only)))
        return
    spelled = [f"clients:pool:{n}" for n in given.clients]
    spelled += [f"clients:stacked:{n}" for n in given.clients if n <= STACKED]
    spelled += [f"parameters:pool:{n}" for n in given.parameters]
    spelled += [f"lists::{given.lists}", f"rounds:pool:{given.rounds}"]
    cases = {}
    for one in spelled:
        began = time.perf_counter()
        ended = watched([sys.executable, __file__, "--only", one])
        cases[one] = ended.answer or {"failed": ended.words}
        print(f"{one:28} {time.perf_counter() - began:5.1f} s  {cases[one]}", flush=True)
    if given.json:
        write(given.json, {**header("growth"), "cases": cases})


if __name__ == "__main__":
    main()
