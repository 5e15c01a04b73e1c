"""Measure a round of the paper's federations on a GPU: milliseconds by precision, agreement with the loop, a profile.

    python benchmarks/stacked_gpu.py [--clients 18] [--repeats 9] [--loop] [--profile] [--json FILE]

MNIST has 3,000 images a client, CIFAR-10 2,500; both train 5 epochs, batch 64, the paper's CNN. The pixels are random, because
the time does not depend on them. "ragged" is MNIST with the same 54,000 images divided by Dirichlet(0.1) for each class. A
round is timed from the parameters on the GPU to the answers there, with the drawing of the batches, after two rounds of
warm-up; the median of the repeats counts. Agreement is measured on one epoch of 640 images a client, against the loop engine in
float64 on the same GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy
import torch

import feduhb
from feduhb.core.flat import flatten
from feduhb.data.federation import Examples
from feduhb.engines import Stacked
from feduhb.engines.stacked.runner import WASTE, Schedule, plan_phases
from feduhb.models import paper_cnn
from measuring import make_header, write

TASKS = {"mnist": ((1, 28, 28), 3000), "cifar10": ((3, 32, 32), 2500), "ragged": ((1, 28, 28), 3000)}


def make_federation(task: str, clients: int, images: int) -> feduhb.Federation:
    """Return a federation of random images of the right shape, rows of one shared tensor."""
    shape, _ = TASKS[task]
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(clients * images, *shape, generator=draw)
    y = torch.randint(0, 10, (len(x),), generator=draw)
    sizes = draw_sizes(clients, len(x)) if task == "ragged" else [images] * clients
    rows = torch.randperm(len(x), generator=draw).split(sizes)
    own = {f"c{i:02}": Examples.of(x, y, part) for i, part in enumerate(rows)}
    return feduhb.Federation(own, (x[:64], y[:64]), paper_cnn(shape, 10), seed=3)


def draw_sizes(clients: int, images: int) -> list[int]:
    """Return the number of images of each client if every class is divided by Dirichlet(0.1)."""
    shares = numpy.random.default_rng(1).dirichlet([0.1] * clients, size=10).sum(0) / 10
    sizes = [max(1, int(share * images)) for share in shares]
    sizes[sizes.index(max(sizes))] += images - sum(sizes)
    return sizes


def train_round(engine: Any, work: feduhb.Work, clients: tuple[str, ...], round: int) -> torch.Tensor:
    """Return the answers of a round [C, P]."""
    return torch.cat([block.values for block in engine.train(work, clients, round)])


def time_rounds(engine: Any, start: torch.Tensor, clients: tuple[str, ...], repeats: int) -> list[float]:
    """Return the milliseconds of each round, after two of warm-up."""
    work = feduhb.Work(start, 5)
    found = []
    for turn in range(repeats + 2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        train_round(engine, work, clients, turn)
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) * 1e3)
    return found[2:]


def measure_agreement(task: str, clients: int) -> dict[str, Any]:
    """Return the relative distance of the answers from the loop's in float64, and whether two runs give the same bits."""
    small = make_federation(task, clients, 640)
    everyone = tuple(small.clients)
    start = flatten(small.fresh_model()).cuda()
    exact = train_round(
        feduhb.Loop(to_float64(small), device="cuda"), feduhb.Work(start.double(), 1), everyone, 0
    )

    def distance(answers: torch.Tensor) -> float:
        return float((answers.double() - exact).norm() / exact.norm())

    work = feduhb.Work(start, 1)
    found: dict[str, Any] = {
        "loop float32": distance(train_round(feduhb.Loop(small, device="cuda"), work, everyone, 0))
    }
    for precision in ("float32", "tf32", "bf16"):
        first = train_round(Stacked(small, precision=precision), work, everyone, 0)
        second = train_round(Stacked(small, precision=precision), work, everyone, 0)
        found[precision] = distance(first)
        found[f"{precision} same bits"] = torch.equal(first, second)
    return found


def to_float64(single: feduhb.Federation) -> feduhb.Federation:
    """Return the same federation in float64."""
    own = {client: Examples(e.x.double(), e.y, e.rows, e.keys) for client, e in list(single.clients.items())}
    x, y = single.test.all()
    model = single.fresh_model().double()
    return feduhb.Federation(own, (x.double(), y), model, seed=single.seed)


def profile_round(engine: Any, start: torch.Tensor, clients: tuple[str, ...]) -> str:
    """Return the table of a round's kernels, by time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        train_round(engine, feduhb.Work(start, 1), clients, 99)
        torch.cuda.synchronize()
    return seen.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=110)


def main() -> None:
    """Measure, print the table, and write it if asked."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--clients", type=int, default=18)
    arguments.add_argument("--repeats", type=int, default=9)
    arguments.add_argument("--precisions", nargs="+", default=["float32", "tf32", "bf16"])
    arguments.add_argument("--tasks", nargs="+", default=list(TASKS))
    arguments.add_argument("--profile", action="store_true")
    arguments.add_argument("--loop", action="store_true", help="time the plain loop on the GPU too")
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    if given.json and not (given.loop and set(given.tasks) == set(TASKS) and len(given.precisions) == 3):
        arguments.error(
            "--json keeps what docs/speed.md shows: add --loop, and leave out --tasks and --precisions"
        )
    if not torch.cuda.is_available():
        arguments.error("there is no GPU here; benchmarks/engines.py measures a CPU")
    found: dict[str, Any] = {
        **make_header("stacked_gpu", gpu=True), "clients": given.clients, "images": {task: TASKS[task][1] for task in given.tasks},
        "ms_a_round": {}, "loop_ms_a_round": {}, "distance_from_float64": {},
    }  # fmt: skip
    for task in given.tasks:
        whole = make_federation(task, given.clients, TASKS[task][1])
        start = flatten(whole.fresh_model()).cuda()
        everyone = tuple(whole.clients)
        for precision in given.precisions:
            engine = Stacked(whole, precision=precision)
            times = time_rounds(engine, start, everyone, given.repeats)
            found["ms_a_round"][f"{task} {precision}"] = {
                "median": round(statistics.median(times), 2), "all": [round(ms, 2) for ms in times],
            }  # fmt: skip
            line = f"{statistics.median(times):7.1f} ms a round ({min(times):.1f} to {max(times):.1f})"
            print(f"{task:8} {precision:8} {line}", flush=True)
            if given.profile:
                print(profile_round(engine, start, everyone))
            del engine
            torch.cuda.empty_cache()
        if given.loop:
            ms = time_loop(whole, start, everyone)
            found["loop_ms_a_round"][task] = round(ms)
            print(f"{task:8} loop     {ms:7.0f} ms a round", flush=True)
        if task == "ragged":
            found["ragged"] = describe_padding(everyone, [len(own) for own in whole.clients.values()])
            print(found["ragged"])
        else:
            found["distance_from_float64"][task] = measure_agreement(task, min(4, given.clients))
            print(task, found["distance_from_float64"][task], flush=True)
    if given.json:
        write(given.json, found)


def time_loop(whole: feduhb.Federation, start: torch.Tensor, clients: tuple[str, ...]) -> float:
    """Return the milliseconds of one round of the loop on the GPU, after a short warm-up."""
    engine = feduhb.Loop(whole, device="cuda")
    train_round(engine, feduhb.Work(start, 1), clients[-1:], 0)
    torch.cuda.synchronize()
    began = time.perf_counter()
    train_round(engine, feduhb.Work(start, 5), clients, 0)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def describe_padding(clients: tuple[str, ...], counts: list[int]) -> dict[str, Any]:
    """Return the smallest and largest client, and the share of the places in batches that stay empty."""
    plan = plan_phases(Schedule.of(clients, counts, 64, 5).totals, WASTE)
    places = 64 * sum(phase.clients * phase.steps for phase in plan)
    share = 1 - 5 * sum(counts) / places
    return {"least": min(counts), "most": max(counts), "phases": len(plan), "masked": round(share, 4)}


if __name__ == "__main__":
    main()
