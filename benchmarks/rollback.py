"""The share of rounds that a rollback redoes, measured on draws of the real sampling and on a real training.

python benchmarks/rollback.py > results/benchmarks/rollback.json
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import torch

import feduhb
from feduhb.core.seeds import sample_clients

CLIENTS, SAMPLED, ROUNDS, SEEDS, GROUPS, TRAININGS = 1000, 10, 100, 10, 1000, 40
NAMES = [f"c{i:04d}" for i in range(CLIENTS)]


def compute_formula(leavers: int) -> float:
    """Return the expected share, where a round asks at least one of the leavers with probability q."""
    q = 1 - (1 - SAMPLED / CLIENTS) ** leavers
    return 1 - (1 - q) * (1 - (1 - q) ** ROUNDS) / (q * ROUNDS)


def measure_draws(leavers: int, firsts: list[dict[str, int]]) -> float:
    """Return the mean share over random groups of leavers, if every model is kept."""
    rng = random.Random(leavers)  # noqa: S311
    shares = [
        1 - min(first.get(name, ROUNDS) for name in rng.sample(NAMES, leavers)) / ROUNDS
        for first in firsts
        for _ in range(GROUPS)
    ]
    return sum(shares) / len(shares)


def find_firsts(seed: int) -> dict[str, int]:
    """Return the first round of every client that is asked at all."""
    found: dict[str, int] = {}
    for t in range(ROUNDS):
        for name in sample_clients(seed, t, NAMES, SAMPLED):
            found.setdefault(name, t)
    return found


def measure_trainings(leavers: int, budget: str, groups: int) -> tuple[float, bool]:
    """Return the mean share that real rollbacks redo, and whether each equals a training that never held the leavers."""
    draw = torch.Generator().manual_seed(1)
    data = {
        name: (torch.randn(4, 8, generator=draw), torch.randint(0, 3, (4,), generator=draw)) for name in NAMES
    }
    test = (torch.randn(50, 8, generator=draw), torch.randint(0, 3, (50,), generator=draw))

    def make(names: list[str]) -> feduhb.Federation:
        return feduhb.Federation({name: data[name] for name in names}, test, torch.nn.Linear(8, 3), seed=5)

    how = {"epochs": 1, "lr": 0.1, "clients_per_round": SAMPLED, "engine": "loop", "show": None}
    rng, shares, same = random.Random(7 * leavers), list[float](), True  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        run = feduhb.train(make(NAMES), ROUNDS, keep_models=budget, out=Path(folder) / "a", **how)
        for _ in range(groups):
            gone = rng.sample(NAMES, leavers)
            new = feduhb.unlearn(run, gone, method="rollback", erase_history=False, show=None)
            never = feduhb.train(make([name for name in NAMES if name not in gone]), ROUNDS, **how)
            shares.append(1 - new.restart_round / ROUNDS)
            same &= torch.equal(new.params, never.params)
    return sum(shares) / len(shares), same


if __name__ == "__main__":
    firsts = [find_firsts(seed) for seed in range(SEEDS)]
    rows = []
    for leavers in (1, 2, 10):
        share, same = measure_trainings(leavers, "1MB", TRAININGS)
        rows.append(
            {"leavers": leavers, "formula": compute_formula(leavers), "draws": measure_draws(leavers, firsts),
             "trainings": share, "trainings_equal_never": same}
        )  # fmt: skip
    print(
        json.dumps(
            {
                "clients": CLIENTS,
                "per_round": SAMPLED,
                "rounds": ROUNDS,
                "seeds": SEEDS,
                "groups": GROUPS,
                "trainings": TRAININGS,
                "rows": rows,
            },
            indent=2,
        )
    )
