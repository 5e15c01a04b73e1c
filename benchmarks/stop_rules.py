"""Where each stop rule, with its default settings, would have ended FedUHB, and the test accuracy that this costs.

    python benchmarks/stop_rules.py > results/benchmarks/stop-rules.txt

One run of 80 rounds for each partition of mnist-5k, without a rule: 20 clients, 2 forgotten, the MLP, seed 1. The rules are
replayed on what it recorded.
"""

from __future__ import annotations

import sys

import feduhb

PARTITIONS = ("iid", "dirichlet:0.5", "dirichlet:0.1", "shards:2")
RULES = {
    "paper": feduhb.dynamic_stop(0.6),
    "held-out score": feduhb.patience("held_out_score"),
    "held-out loss": feduhb.patience("held_out_loss"),
    "distance": feduhb.distance_stop(),
    "hasty": feduhb.patience("held_out_score", rounds=3, smooth=1, first=1),
}


def measure(partition: str, rounds: int = 80, clients: int = 20, data: str = "mnist-5k") -> str:
    """Return a line: the best test accuracy, and for each rule its round and the points below the best."""
    federation = feduhb.load(data, clients=clients, partition=partition, model="mlp", seed=1)
    trained = feduhb.train(federation, 1, epochs=1, show=None)
    run = feduhb.unlearn(
        trained, ["c00", "c01"], method=feduhb.FedUHB(epochs=5), rounds=rounds, stop=feduhb.never,
        record=("held_out", "distance"), show=None,
    )  # fmt: skip
    accuracy = [record.scores["test_accuracy"] for record in run.rounds]
    ended = {name: feduhb.replay(rule, run.series) for name, rule in RULES.items()}
    lost = {name: 100 * (accuracy[(n or rounds) - 1] - max(accuracy)) for name, n in ended.items()}
    found = "; ".join(f"{name} {n or 'never'} ({lost[name]:+.1f})" for name, n in ended.items())
    return f"{partition}: best {max(accuracy):.1%}; {found}\n"


if __name__ == "__main__":
    for each in PARTITIONS:
        sys.stdout.write(measure(each))
        sys.stdout.flush()
