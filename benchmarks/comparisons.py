"""Count the false alarms of the attacks that compare two models, and how little of an old model they find.

    python benchmarks/comparisons.py        # about three minutes of one core

Exact methods unlearn small federations of digits, with the original's seed and with another one. Every model that is caught
is a false alarm. Then Retrain's weights are mixed with a share of the original's, to see how little is caught, beside the
loss attack. Half of the federations have canaries in place of the leavers' labels.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import torch
from torch import nn

import feduhb
from feduhb.audit.attacks.before_after import CHANGES, attack_by_change
from feduhb.audit.attacks.membership import AttackSetup, Candidates, attack_by_loss
from feduhb.audit.measures import continue_training
from feduhb.audit.result import ORIGINAL, RETRAIN, UNLEARNED
from feduhb.audit.verdict import MARGIN
from feduhb.data.request import Request
from feduhb.methods.retrain import Plain
from feduhb.runs.run import Run

SEEDS, ROUNDS = 60, 6
LEAVERS = Request(("c00", "c01", "c02"))
SHARES = (0.05, 0.1, 0.2, 0.3)  # of the original's weights


def make_model() -> nn.Module:
    """Return a model that is large enough to memorize wrong labels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def train(seed: int) -> tuple[Run, Run]:
    """Return the original and Retrain in one federation: 3 of 5 clients leave, each with 40 examples and as many held out."""
    canaries = feduhb.Canaries(LEAVERS.clients, 1.0) if seed % 2 else None
    federation = feduhb.load(
        "digits", clients=5, per_client=80, held_out=0.5, model=make_model, seed=seed, canaries=canaries
    )
    original = feduhb.train(federation, ROUNDS, epochs=2, batch_size=20, lr=0.5, engine="loop", show=None)
    return original, feduhb.unlearn(original, LEAVERS, method="retrain", rounds=ROUNDS, show=None)


def list_exact(original: Run) -> list[Run]:
    """Return exact runs with the original's seed and with another one."""
    other = original.reseed(original.seed + SEEDS)
    made = (original, "feduhb"), (other, "feduhb"), (other, "retrain")
    return [feduhb.unlearn(run, LEAVERS, method=method, rounds=ROUNDS, show=None) for run, method in made]


def find_caught(run: Run, original: Run, retrain: Run, later: dict[str, Run]) -> list[str]:
    """Return the attacks on all forgotten data that catch a model."""
    models = {UNLEARNED: run, ORIGINAL: original, RETRAIN: retrain}
    setup = AttackSetup(models, Candidates.of(original.federation, LEAVERS))
    found = [*attack_by_loss(setup, MARGIN), *attack_by_change(setup, later, MARGIN, [], {})]
    return [attack.attack for attack, _ in found if not attack.canaries and attack.verdict == "caught"]


def main() -> None:
    """Print the false alarms, and how often each attack catches each share."""
    torch.set_num_threads(1)
    alarms, caught, runs = Counter[str](), Counter[tuple[str, float]](), 0
    for seed in range(SEEDS):
        original, retrain = train(seed)
        later = {ORIGINAL: continue_training(original), RETRAIN: continue_training(retrain)}
        for run in list_exact(original):
            runs += 1
            alarms.update(find_caught(run, original, retrain, later))
        for share in SHARES:
            mixed = replace(retrain, state=Plain(share * original.params + (1 - share) * retrain.params))
            caught.update((name, share) for name in find_caught(mixed, original, retrain, later))
    for name in ("loss", *CHANGES):
        shares = ", ".join(f"{share:.0%} in {caught[name, share] / SEEDS:.0%}" for share in SHARES)
        sys.stdout.write(
            f"{name}: {alarms[name]} of {runs} exact runs caught; of the old weights were caught: {shares}\n"
        )


if __name__ == "__main__":
    main()
