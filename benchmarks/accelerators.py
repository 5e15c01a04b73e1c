"""Measure the rounds that exact server rules need until they stay at Retrain's last accuracy.

    python benchmarks/accelerators.py [--seeds 3] [--rounds 40] [--json FILE]

Five federations of small data sets and models, see `PLACES`; 2 local epochs, batch 64. Two clients are forgotten. Every rule starts from the same fresh model, has its default settings unless the table gives others, and runs
all rounds without a stop rule. A rule that falls below Retrain's last accuracy in its last round never got there for good.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import feduhb
from layout import Results, format_source, format_table
from measuring import make_header, write


class Place(NamedTuple):
    """A federation, and the learning rate of its clients."""

    data: str
    clients: int
    partition: str
    model: str
    lr: float


PLACES = {
    "mnist-5k, perceptron, Dirichlet 0.5": Place("mnist-5k", 20, "dirichlet:0.5", "mlp", 0.02),
    "mnist-5k, perceptron, Dirichlet 0.1": Place("mnist-5k", 20, "dirichlet:0.1", "mlp", 0.02),
    "digits, softmax, iid": Place("digits", 10, "iid", "softmax", 0.05),
    "breast cancer, logistic, iid": Place("breast-cancer", 10, "iid", "logistic", 0.05),
    "breast cancer, perceptron, Dirichlet 0.5": Place("breast-cancer", 10, "dirichlet:0.5", "mlp", 0.05),
}
LEAVERS = ("c00", "c01")
EPOCHS = 2


def list_rules() -> dict[str, feduhb.Method[Any]]:
    """Return the rules by their names in the table, Retrain first."""
    return {
        "Retrain": feduhb.Retrain(epochs=EPOCHS),
        "Retrain, step 1.5": feduhb.Retrain(step_size=1.5, epochs=EPOCHS),
        "FedUHB": feduhb.FedUHB(epochs=EPOCHS),
        "FedUHB, momentum 0.8, step 1.5": feduhb.FedUHB(step_size=1.5, momentum=0.8, epochs=EPOCHS),
        "FedUHB, momentum 0.7, step 2 (fast)": feduhb.FedUHB(step_size=2.0, momentum=0.7, epochs=EPOCHS),
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


def measure_rules(name: str, seed: int, rounds: int) -> dict[str, Any]:
    """Unlearn with every rule and return its accuracies, and when it reached Retrain's last one for good."""
    place = PLACES[name]
    federation = feduhb.load(
        place.data, clients=place.clients, partition=place.partition, model=place.model, seed=seed
    )
    trained = feduhb.train(federation, 1, epochs=EPOCHS, batch_size=64, lr=place.lr, show=None)
    found: dict[str, Any] = {}
    for label, rule in list_rules().items():
        run = feduhb.unlearn(trained, LEAVERS, method=rule, rounds=rounds, stop=feduhb.never, show=None)
        accuracies = [record.scores["test_accuracy"] for record in run.rounds]
        goal = found["Retrain"]["accuracies"][-1] if found else accuracies[-1]
        found[label] = {"for_good": find_for_good(accuracies, goal), "accuracies": accuracies}
        print(f"{name} seed {seed} {label:30} {found[label]['for_good']} {accuracies[-1]:.1%}", flush=True)
    return found


def format_rules(all: Results) -> str:
    """Return the table of rounds, the mean over seeds with the fewest and the most."""
    found = all["accelerators"]
    rows = []
    for name in next(iter(found["places"].values()))["1"]:
        cells = []
        for seeds in found["places"].values():
            runs = [seed[name] for seed in seeds.values()]
            last = statistics.mean(run["accuracies"][-1] for run in runs)
            cells.append(f"{_format_rounds([run['for_good'] for run in runs])}, {last:.1%}")
        rows.append((name, *cells))
    count = len(next(iter(found["places"].values())))
    note = (
        f"Rounds until the test accuracy stays at or above Retrain's after round {found['rounds']}: the mean of {count} seeds, "
        "the fewest and the most; then the mean accuracy after the last round. "
        f'"Never in 2" means that the last round was below in 2 of the {count} seeds.'
    )
    return f"{format_table(('', *found['places']), rows)}\n\n{note} {format_source(found)}"


def _format_rounds(rounds: Sequence[int | None]) -> str:
    reached = [one for one in rounds if one is not None]
    if len(reached) < len(rounds):
        return f"never in {len(rounds) - len(reached)}"
    spread = f" ({min(reached)}-{max(reached)})" if min(reached) < max(reached) else ""
    return f"**{statistics.mean(reached):.0f}**{spread}"


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
        "places": {
            name: {str(seed): measure_rules(name, seed, given.rounds) for seed in range(1, given.seeds + 1)}
            for name in PLACES
        },
    }
    print(format_rules({"accelerators": found}))
    if given.json:
        write(given.json, found)


if __name__ == "__main__":
    main()
