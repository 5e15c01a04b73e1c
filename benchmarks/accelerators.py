"""Measure the rounds that exact server rules need until they stay at Retrain's last accuracy.

    python benchmarks/accelerators.py [--seeds 3] [--rounds 40] [--json FILE]

20 clients of `mnist-5k` with a perceptron, Dirichlet(0.5) and Dirichlet(0.1); 2 local epochs, batch 64, lr 0.02. Two clients are
forgotten. Every rule starts from the same fresh model, has its default settings unless the table gives others, and runs
all rounds without a stop rule. A rule that falls below Retrain's last accuracy in its last round never got there for good.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import feduhb
from layout import Results, format_source, format_table
from measuring import make_header, write

PARTITIONS = ("dirichlet:0.5", "dirichlet:0.1")
LEAVERS = ("c00", "c01")
EPOCHS = 2


def list_rules() -> dict[str, feduhb.Method[Any]]:
    """Return the rules by their names in the table, Retrain first."""
    return {
        "Retrain": feduhb.Retrain(epochs=EPOCHS),
        "Retrain, step 1.5": feduhb.Retrain(step_size=1.5, epochs=EPOCHS),
        "FedUHB": feduhb.FedUHB(epochs=EPOCHS),
        "FedUHB, momentum 0.8, step 1.5": feduhb.FedUHB(step_size=1.5, momentum=0.8, epochs=EPOCHS),
        "Nesterov": feduhb.Nesterov(epochs=EPOCHS),
        "FedAdam": feduhb.FedAdam(epochs=EPOCHS),
        "FedYogi": feduhb.FedYogi(epochs=EPOCHS),
        "FedNadam": feduhb.FedNadam(epochs=EPOCHS),
        "FedNadam, lr 0.005": feduhb.FedNadam(lr=0.005, epochs=EPOCHS),
        "FedNadam, lr 0.05": feduhb.FedNadam(lr=0.05, epochs=EPOCHS),
        "FedExP": feduhb.FedExP(epochs=EPOCHS),
    }


def find_for_good(accuracies: Sequence[float], goal: float) -> int | None:
    """Return the round, counted from 1, from which no accuracy is below the goal; None if the last one is."""
    below = [number for number, accuracy in enumerate(accuracies, 1) if accuracy < goal]
    last = below[-1] if below else 0
    return None if last == len(accuracies) else last + 1


def measure_rules(partition: str, seed: int, rounds: int) -> dict[str, Any]:
    """Unlearn with every rule and return its accuracies, and when it reached Retrain's last one for good."""
    federation = feduhb.load("mnist-5k", clients=20, partition=partition, model="mlp", seed=seed)
    trained = feduhb.train(federation, 1, epochs=EPOCHS, batch_size=64, lr=0.02, show=None)
    found: dict[str, Any] = {}
    for name, rule in list_rules().items():
        run = feduhb.unlearn(trained, LEAVERS, method=rule, rounds=rounds, stop=feduhb.never, show=None)
        accuracies = [record.scores["test_accuracy"] for record in run.rounds]
        goal = found["Retrain"]["accuracies"][-1] if found else accuracies[-1]
        found[name] = {"for_good": find_for_good(accuracies, goal), "accuracies": accuracies}
        print(f"{partition} seed {seed} {name:30} {found[name]['for_good']} {accuracies[-1]:.1%}", flush=True)
    return found


def format_rules(all: Results) -> str:
    """Return the table of rounds, the mean over seeds, with those of each seed."""
    found = all["accelerators"]
    rows = []
    for name in next(iter(found["partitions"].values()))["1"]:
        cells = []
        for seeds in found["partitions"].values():
            runs = [seed[name] for seed in seeds.values()]
            last = statistics.mean(run["accuracies"][-1] for run in runs)
            cells += [_format_rounds([run["for_good"] for run in runs]), f"{last:.1%}"]
        rows.append((name, *cells))
    heads = [f"{place}: {what}" for place in found["partitions"] for what in ("rounds", "last accuracy")]
    count = len(next(iter(found["partitions"].values())))
    note = (
        f"Rounds until the test accuracy stays at or above Retrain's after round {found['rounds']}: the mean of {count} seeds, "
        'and each seed. "never" means that the last round was below.'
    )
    return f"{format_table(('', *heads), rows)}\n\n{note} {format_source(found)}"


def _format_rounds(rounds: Sequence[int | None]) -> str:
    each = ", ".join("never" if one is None else str(one) for one in rounds)
    mean = math.nan if None in rounds else statistics.mean(one for one in rounds if one is not None)
    return f"({each})" if math.isnan(mean) else f"**{mean:.0f}** ({each})"


def main() -> None:
    """Run every federation, print the table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {
        **make_header("accelerators"),
        "rounds": given.rounds,
        "partitions": {
            partition: {
                str(seed): measure_rules(partition, seed, given.rounds) for seed in range(1, given.seeds + 1)
            }
            for partition in PARTITIONS
        },
    }
    print(format_rules({"accelerators": found}))
    if given.json:
        write(given.json, found)


if __name__ == "__main__":
    main()
