"""Measure how seconds and memory grow with clients, parameters and rounds.

    python benchmarks/growth.py [--clients 20 100 1000 10000] [--parameters 100000 ...] [--rounds 200] [--json FILE]
    python benchmarks/growth.py --again parameters train unlearn --json FILE   # only these; the others stay as they are

- clients: one round of FedAvg, the paper's CNN (582,026 parameters), two real images a client, one epoch; `pool`, and `stacked` up to 1,000 clients.
- parameters: three rounds of 8 clients with 64 real images each, one epoch, a multilayer perceptron with one hidden layer; Retrain in the bare loop, `pool`, a client a block.
- train, unlearn: the same three rounds by `feduhb.train` and, by FedUHB, `feduhb.unlearn`, into a folder, scored on 64 images.
- rounds: FedUHB on the demo's federation (20 clients, its perceptron), everything recorded, no stop rule; `pool`.
- lists: the memory of a federation itself for each client, without training.

Every case runs in its own process. "Beyond" is its peak memory in all of its rounds minus the memory with Python, torch, the
data and the model loaded, before an engine was made. The model is there twice: the federation's fresh one, and the vector that
the server trains. The run that is to forget counts as data.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
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
SEVERAL = 3  # rounds of the cases about parameters: later ones may hold more than the first
WHOLE = 10_000_000  # the fewest parameters of a whole training: of fewer, Python's modules take more than the model
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
    make: Callable[[Dataset, int], feduhb.Federation], size: int, engine: str, rounds: int = 1
) -> dict[str, Any]:
    """Return the seconds of the fastest round and the memory of all, without making the federation."""
    federation = make(load_dataset("mnist-5k"), size)
    watch, method = Watch(federation), feduhb.Retrain(epochs=1)
    trainer, state = make_engine(engine, federation), [method.init(flatten(federation.fresh_model()))]
    for _, record in run(method, trainer, tuple(federation.clients), state.pop(), rounds=rounds):
        watch.note(record)
    return watch.sum_up()


def measure_whole(size: int, kind: str) -> dict[str, Any]:
    """Return the seconds of the fastest round and the memory of a training, or of an unlearning by FedUHB, into a folder."""
    federation = make_wide(load_dataset("mnist-5k"), size)
    how: dict[str, Any] = {"epochs": 1, "engine": "pool"}
    trained = None if kind == "train" else feduhb.train(federation, 1, show=None, **how)
    watch = Watch(federation)
    with tempfile.TemporaryDirectory() as folder:
        if trained is None:
            feduhb.train(federation, SEVERAL, out=folder, show=watch.note, **how)
        else:
            feduhb.unlearn(trained, "c1", rounds=SEVERAL, stop=feduhb.never, out=folder, show=watch.note)
    return watch.sum_up()


class Watch:
    """The rounds of a case and its peak memory, from now on."""

    def __init__(self, federation: feduhb.Federation) -> None:
        self.records: list[Round] = []
        self.peaks: list[int] = []  # of each round, in bytes
        params = flatten(federation.fresh_model())  # of the server
        self.parameters, self.ready = params.numel(), read_memory()
        reset_peak()

    def note(self, record: Round) -> None:
        """Add a round that has ended."""
        self.records.append(record)
        self.peaks.append(read_peak())
        reset_peak()

    def sum_up(self) -> dict[str, Any]:
        """Return what was measured, with the memory after the last round."""
        last, most = self.records[-1], max(*self.peaks, read_peak())
        return {
            "parameters": self.parameters,
            "clients": len(last.asked),
            "rounds": len(self.records),
            "seconds": min(record.client_seconds + record.server_seconds for record in self.records),
            "beyond_mib": (most - self.ready) / MIB,
            "round_mib": [(peak - self.ready) / MIB for peak in self.peaks],
            "most_mib": most / MIB,
            "record_bytes": len(last.to_json()),
            "bytes_up": last.bytes_up,
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
    """Run one case in this process, such as "clients:pool:20", "parameters:pool:100000", "lists::200000" or "rounds:pool:200"."""
    kind, engine, size = name.split(":")
    if kind == "lists":
        return measure_lists(int(size))
    if kind == "rounds":
        return measure_rounds(int(size))
    if kind in {"train", "unlearn"}:
        return measure_whole(int(size), kind)
    if kind == "parameters":
        return measure_round(make_wide, int(size), engine, SEVERAL)
    return measure_round(make_crowd, int(size), engine)


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
    parser.add_argument(
        "--again", nargs="+", metavar="KIND", help="measure only these kinds of cases again, for --json"
    )
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(run_case(given.only)))
        return
    names = [f"clients:pool:{n}" for n in given.clients]
    names += [f"clients:stacked:{n}" for n in given.clients if n <= STACKED]
    names += [f"{kind}:pool:{n}" for kind in ("parameters", "train", "unlearn") for n in given.parameters
              if kind == "parameters" or n >= WHOLE]  # fmt: skip
    names += [f"lists::{given.lists}", f"rounds:pool:{given.rounds}"]
    old = json.loads(given.json.read_text()) if given.again else {}
    names = [one for one in names if not given.again or one.partition(":")[0] in given.again]
    cases: dict[str, Any] = {}
    for one in names:
        began = time.perf_counter()
        ended = run_watched([sys.executable, __file__, "--only", one])
        cases[one] = ended.answer or {"failed": ended.words}
        print(f"{one:28} {time.perf_counter() - began:5.1f} s  {cases[one]}", flush=True)
    if given.json and given.again:
        again = {**old.get("again", {}), **dict.fromkeys(given.again, make_header("growth"))}
        write(given.json, {**old, "again": again, "cases": {**old["cases"], **cases}})
    elif given.json:
        write(given.json, {**make_header("growth"), "cases": cases})


if __name__ == "__main__":
    main()
