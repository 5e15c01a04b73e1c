"""What a study costs on a GPU, estimated from measured rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from feduhb_reproduction.cell_plan import Planned
from feduhb_reproduction.cells import Place

# Milliseconds, of runs one after the other on one NVIDIA H200 in tf32, of 18 clients with the paper's CNN: by the cells in `results/study/` and the timed
# ones in `results/paper/`. Of CIFAR-10, scoring held-out data and the time around a run were not measured: they are those of MNIST in proportion to the time of
# scoring and to the size of an image.
STEP = {"mnist": 0.4, "cifar10": 0.62}  # of all clients together, one batch of 64 each
SERVER = 4.3  # a round, with what the clients need before their first step
EVALUATED = {"mnist": 7.7 / 10_000, "cifar10": 13.8 / 10_000}  # a round, for each test image
# A round: for each client, and for each held-out image in times of a test image. These cells scored one client after the other, so it is less now.
HELD_OUT = 0.8, 2.1
# A run, and for each image of a client: before its first round and after its last.
AROUND = 180.0, {"mnist": 0.117, "cifar10": 0.458}
HISTORY = {"mnist": 5000.0, "cifar10": 6200.0}  # a training, to keep the updates of 40 rounds
# Client work as a share of Retrain's, and the time of the server.
REPLAYED = {"federaser": (0.3, 500.0), "fedrecover": (0.3, 2600.0)}
TEST, WHOLE = 10_000, {"mnist": 60_000, "cifar10": 50_000}
TRAINED, BATCH = 18, 64


def estimate_run(place: Place, name: str, plan: Planned) -> float | None:
    """Return the seconds of one run on a GPU; None for data whose rounds were not measured."""
    data = place.data
    if data not in STEP:
        return None
    images = place.per_client or WHOLE[data] / place.clients
    left, rounds = place.clients - len(place.forget.split(",")), plan.rounds or place.rounds
    steps = math.ceil(images * (1 - place.held_out) / place.batch_size) * place.epochs
    client = STEP[data] * steps * place.batch_size / BATCH / TRAINED
    server = SERVER + EVALUATED[data] * TEST
    if "held_out" in plan.record:
        server += left * (HELD_OUT[0] + HELD_OUT[1] * EVALUATED[data] * images * place.held_out)
    around = AROUND[0] + AROUND[1][data] * images
    share, replaying = REPLAYED.get(name, (1.0, 0.0))
    spent = (share * left * client + server) * rounds + replaying + around
    if name == "federaser":  # with the training whose history both replay
        spent += (place.clients * client + server) * place.rounds + HISTORY[data] + around
    return spent / 1000


def estimate_minutes(wanted: Iterable[tuple[Place, Mapping[str, Planned]]]) -> float | None:
    """Return the minutes of all these runs, one after the other; None if some were never measured."""
    runs = ((place, name, plan) for place, plans in wanted for name, plan in plans.items())
    seconds = add_times(estimate_run(*run) for run in runs)
    return None if seconds is None else seconds / 60


def add_times(parts: Iterable[float | None]) -> float | None:
    """Return the sum of some times; None if any is not known."""
    every = [*parts]
    known = [one for one in every if one is not None]
    return sum(known) if len(known) == len(every) else None
