"""How much harm does one hostile client do to a Flower federation, before and after the limits of docs/flower.md?

Ten clients of mnist-5k train an MLP by FedAvg (5 local epochs, batch 64, lr 0.05, one seed). One of them is hostile from
round 6 of 8 on. The server's code is the real one; by default messages are handled in this process (the grid of
`tests/flower/gridding.py`). With --deployment four SuperNodes, a SuperLink and a SuperExec run on loopback.

    python -P benchmarks/hostile_clients.py --json results/benchmarks/hostile_clients.json
    python -P benchmarks/hostile_clients.py --since 0 --json FILE   # hostile from the first round on
    git worktree add ../before e9a063d         # the version without the limits
    python -P benchmarks/hostile_clients.py --source ../before/src --json results/benchmarks/hostile_clients_before.json
    python -P benchmarks/hostile_clients.py --deployment [--source ../before/src] --json FILE
    python -P benchmarks/hostile_clients.py --honest --json FILE    # lengths and weights of honest clients
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
ROUNDS, SINCE, CLIENTS = 8, 5, 10
MODES = (
    "", "500 times", "50 times", "10 times", "flip", "flip, 3 times", "100000 examples", "flip, 100000 examples", "NaN",
    "wrong shape", "another record",
)  # fmt: skip
FROM_THE_FIRST = ("10 times", "flip, 3 times", "100000 examples", "flip, 100000 examples")
RULES = ("weighted_mean", "trimmed_mean:0.2", "median")
SCORES, RETURNS = "false scores", "returns under another name"
DEPLOYED = (*MODES, SCORES, RETURNS)
MEGABYTES = 100  # of the record that the hostile client adds
LEAVER, AGAIN = "client-3", "Client-3 "


def run_in_process(since: int) -> dict[str, Any]:
    """Run every mode with every rule over the grid of the tests; from the first round on, only what differs then."""
    import hostile_apps as apps

    from feduhb import flower
    from flower.gridding import Seat, Stage, derive_key, make_key

    def make_grid(partition: str) -> Stage:
        seats = {}
        for i in range(CLIENTS):
            config = {"partition-id": i, "num-partitions": CLIENTS, "partition": partition}
            seats[100 + i] = Seat(apps.client, config)
        return Stage(seats)

    found: dict[str, Any] = {"runs": []}
    base = {"clients": CLIENTS, "rounds": ROUNDS, "since": since, "timeout": 60.0}
    for partition in ("iid", "dirichlet:0.5") if since else ("iid",):
        for mode in MODES if since else FROM_THE_FIRST:
            for rule in RULES if since else RULES[:1]:
                settings = {**base, "partition": partition, "hostile": mode, "rule": rule}
                _add(found["runs"], settings, lambda s=settings: apps.run(make_grid(s["partition"]), s))
    true = {client: len(data) for client, data in apps.load_federation(CLIENTS, "iid").clients.items()}
    for mode in ("100000 examples", "flip, 100000 examples"):
        settings = {**base, "partition": "iid", "hostile": mode, "rule": "weighted_mean", "examples": true}
        if "examples" in flower.Train.__dataclass_fields__:
            _add(found["runs"], settings, lambda s=settings: apps.run(make_grid("iid"), s))
    if not since:
        return found
    apps.MODE["scores"] = True
    settings = {**base, "partition": "iid", "hostile": "", "rule": "weighted_mean", "evaluate_every": 1}
    _add(found["runs"], {**settings, "scores": True}, lambda: apps.run(make_grid("iid"), settings))
    apps.MODE.clear()

    grid = make_grid("iid")
    for node, seat in grid.seats.items():
        seat.key, seat.name = derive_key(node), f"client-{node}"
    grid.seats[103].name = "Mallory"

    def return_renamed(message: Any) -> None:
        if 103 in grid.seats and message.metadata.message_type == "train":
            old = grid.seats.pop(103)
            grid.seats[555] = Seat(old.app, old.config, make_key(), "Mallory ")

    grid.before = return_renamed
    flower.FedUHB("Mallory", model=apps.MODEL, seed=1, epochs=1, timeout=60.0).start(grid, num_rounds=3)
    found["renamed leaver got work"] = 555 in grid.list_trained()
    return found


def _add(runs: list[dict[str, Any]], settings: dict[str, Any], work: Any) -> None:
    began = time.perf_counter()
    try:
        result = work()
    except Exception as error:  # a run that ends is a result too
        result = {"ended": f"{type(error).__name__}: {error}"[-300:]}
    runs.append({**settings, **result, "seconds": round(time.perf_counter() - began, 1)})
    print(
        settings.get("partition"),
        settings.get("hostile"),
        settings["rule"],
        result.get("accuracy", result),
        flush=True,
    )


def run_deployed(source: Path, modes: Sequence[str]) -> dict[str, Any]:
    """Run modes with the real programs on loopback; apps are forked off a process that has imported torch."""
    from forking import ForkServer
    from loopback import Deployment

    found: dict[str, Any] = {"runs": []}
    count = 4
    members = {
        f"client-{i}": {"partition-id": i, "num-partitions": count, "partition": "iid"} for i in range(count)
    }
    modules = (
        "feduhb.flower",
        "torch._dynamo",
        *(f"flwr.{name}" for name in ("cli.app", "superlink.cli", "supernode.cli")),
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        false_scores = folder / "false-scores"
        federation: Any = Deployment(folder, members, modules=HERE / "hostile", show=print)
        federation.environment |= {
            "PYTHONPATH": os.pathsep.join((str(HERE / "hostile"), str(source))),
            "HOSTILE_SCORES": str(false_scores),
        }

        def submit(settings: dict[str, Any]) -> int:
            run = federation.submit(
                HERE / "hostile" / "app", {"settings": json.dumps(settings).encode().hex()}
            )
            federation.wait_for_run(run)
            return run

        with ForkServer(*modules, environment=federation.environment) as server:
            federation.run_flwr = partial(server.run, "flwr.cli.app:app", cwd=federation.folder)
            server.write_program(folder / "bin" / "flwr-clientapp", "flwr.supernode.cli:flwr_clientapp")
            server.write_program(folder / "bin" / "flwr-serverapp", "flwr.superlink.cli:flwr_serverapp")
            federation.environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{federation.environment['PATH']}"
            with federation:
                for mode in modes:
                    out = folder / f"{len(found['runs'])}.json"
                    settings = {
                        "clients": count, "rounds": 2, "since": 1, "timeout": 240.0, "partition": "iid", "hostile": mode,
                        "rule": "weighted_mean", "megabytes": MEGABYTES, "out": str(out),
                    }  # fmt: skip
                    if mode == SCORES:
                        settings["evaluate_every"] = 1
                        false_scores.touch()
                    if mode == RETURNS:
                        settings |= {"clients": count - 1, "rounds": 1}
                        submit({**settings, "forget": LEAVER, "checkpoint": str(folder / "without")})
                        settings["trained"] = str(folder / "without")
                        federation.members[AGAIN] = members[LEAVER]
                        federation.register(AGAIN)
                        federation.start_supernode(AGAIN)
                        federation.wait_for_log(AGAIN, "SuperNode ID:")

                    def work(settings: dict[str, Any] = settings, out: Path = out) -> dict[str, Any]:
                        run = submit(settings)
                        got = {
                            "asked": [
                                name
                                for name in federation.members
                                if "train" in federation.list_messages(name, run)
                            ]
                        }
                        return {**json.loads(out.read_text()), **got}

                    _add(found["runs"], settings, work)
                    size = sum(file.stat().st_size for file in folder.glob("superlink.db*"))
                    found["runs"][-1] |= {"database_mib": size // 2**20, "out": ""}
                    false_scores.unlink(missing_ok=True)
    return found


class Measured:
    """An engine that notes the norms and weights of the updates of each round."""

    def __init__(self, engine: Any, rounds: list[tuple[Any, Any]]) -> None:
        self.about = engine.about
        self.engine, self.rounds = engine, rounds

    def train(self, work: Any, clients: Any, round: int) -> Any:
        """Train the clients."""
        blocks = list(self.engine.train(work, clients, round))
        norms = [float(row.double().norm()) for block in blocks for row in block.values]
        weights = [weight for block in blocks for weight in block.weights.tolist()]
        self.rounds.append((norms, weights))
        yield from blocks


def _measure_shares() -> dict[int, float]:
    """Return the largest share of the examples that a client had, by the number of clients."""
    import feduhb
    from feduhb.data.partition import partition_rows

    (everyone,) = feduhb.load("mnist-5k", clients=1, held_out=0.0).clients.values()
    largest: dict[int, float] = {}
    for clients in (3, 4, 5, 10, 20, 50):
        parts = (partition_rows(everyone.targets, "dirichlet:0.1", clients, seed=seed) for seed in range(200))
        sizes = ([len(rows) for rows in part.values()] for part in parts)
        largest[clients] = max(max(some) / sum(some) for some in sizes)
    return largest


def measure_honest() -> dict[str, Any]:
    """Measure how much longer and heavier the answers of honest clients are than those of the others."""
    import numpy as np
    import torch

    import feduhb
    from feduhb.core.flat import flatten
    from feduhb.runs.loop import run

    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "runs": [],
        "largest shares of 200 partitions by dirichlet:0.1": _measure_shares(),
    }
    for partition in ("iid", "dirichlet:0.5", "dirichlet:0.1", "shards:2"):
        for clients in (4, 10, 20, 50):
            federation = feduhb.load(
                "mnist-5k", clients=clients, partition=partition, model="mlp", seed=2, held_out=0.0
            )
            engine = feduhb.Loop(federation, feduhb.Local(batch_size=64, lr=0.05))
            rounds: list[tuple[Any, Any]] = []

            method = feduhb.Retrain(epochs=5)
            state = method.init(flatten(federation.fresh_model()))
            for _ in run(method, Measured(engine, rounds), list(federation.clients), state, rounds=30):
                pass
            medians = [float(np.sort(norms)[(len(norms) - 1) // 2]) for norms, _ in rounds]
            usual = np.maximum.accumulate(medians)
            result = {
                "to the median of the round": max(
                    max(n) / m for (n, _), m in zip(rounds, medians, strict=True)
                ),
                "to the longest median so far": max(
                    max(n) / float(u) for (n, _), u in zip(rounds, usual, strict=True)
                ),
                "limit": max(4.0, 1.5 * clients**0.5),
                "largest share": max(max(w) / sum(w) for _, w in rounds),
                "limit of shares": min(1.0, 1.5 / clients**0.5),
            }
            found["runs"].append({"partition": partition, "clients": clients, **result})
            print(found["runs"][-1], flush=True)
    return found


def main() -> None:
    """Measure with the given version of feduhb, in a process that imports it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=HERE.parent / "src", help="where feduhb is")
    parser.add_argument("--since", type=int, default=SINCE, help="the first hostile round, counted from 0")
    parser.add_argument("--deployment", action="store_true", help="run the real programs on loopback")
    parser.add_argument("--modes", default=";".join(DEPLOYED), help="of a deployment, separated by ;")
    parser.add_argument("--honest", action="store_true", help="measure honest clients")
    parser.add_argument("--json", type=Path, help="keep the result here")
    given = parser.parse_args()
    paths = [str(given.source.resolve()), str(HERE), str(HERE / "hostile"), str(TESTS)]
    if os.environ.get("PYTHONPATH") != os.pathsep.join(paths):  # start again with this version of feduhb
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": "1",
        }
        sys.exit(
            subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment, check=False).returncode
        )
    from measuring import make_header, write

    found = (
        measure_honest()
        if given.honest
        else run_deployed(given.source.resolve(), given.modes.split(";"))
        if given.deployment
        else run_in_process(given.since)
    )
    if given.json:
        write(given.json, {**make_header("hostile_clients"), **found})


if __name__ == "__main__":
    main()
