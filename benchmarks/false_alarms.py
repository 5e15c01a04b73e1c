"""Count the false alarms of the checks of the user's own code, and how little of an old model they find.

    python benchmarks/false_alarms.py        # about five minutes of one core

Honest methods outside the package unlearn small federations of digits, each with another seed. Every alarm is a false one.
Then the models of the runs on noise are mixed with a share of the original's weights, to see how little is found.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

import feduhb
from feduhb import Updates
from feduhb.audit.controls import MODELS, Controls, World, carry_out, redraw
from feduhb.audit.own_code import OwnCode
from feduhb.audit.result import Check
from feduhb.audit.traces import ORDERS, find_trace, find_units
from feduhb.core.flat import flatten
from feduhb.data.request import Request
from feduhb.methods.retrain import Plain
from feduhb.runs.kept import KeptModels
from feduhb.runs.run import Run

SEEDS, ROUNDS, EPOCHS = 10, 6, 2
FEW = 9  # orders, for which one search in ten should give an alarm
LEAVERS = Request(("c00", "c01"))
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)  # of the original's weights


class Mine(feduhb.FedUHB):
    """FedUHB, as a class of the user's own."""

    __slots__ = ()
    name: ClassVar[str] = "heavy ball"


@dataclass(frozen=True, slots=True)
class Signs(feduhb.Retrain):
    """Steps of equal size in every coordinate."""

    name: ClassVar[str] = "signs"

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        """Return the state after one step."""
        return Plain(state.params - 0.01 * self.aggregate(answers).sign())


def make_mlp() -> nn.Module:
    """Return a perceptron with two hidden layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 10)
    )


def make_cnn() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(192, 10)
    )


def make_softmax() -> nn.Module:
    """Return a model without hidden units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


MODELS_TRIED: tuple[Callable[[], nn.Module], ...] = (make_mlp, make_cnn, make_softmax)
METHODS = (
    Mine(epochs=EPOCHS, momentum=0.9),
    Mine(epochs=EPOCHS, momentum=0.5, aggregate=feduhb.median),
    Signs(epochs=EPOCHS),
)


def unlearn_honestly(
    model: Callable[[], nn.Module], seed: int, folder: Path
) -> Iterator[tuple[Run, Controls]]:
    """Yield the run of each honest method in one federation, with the controls of its audit."""
    federation = feduhb.load("digits", clients=5, per_client=60, model=model, seed=seed)
    original = feduhb.train(
        federation, ROUNDS, epochs=EPOCHS, batch_size=10, lr=0.1, engine="loop", show=None
    )
    retrain = feduhb.unlearn(original, LEAVERS, method="retrain", rounds=ROUNDS, show=None)
    later = (
        original.reseed(seed + SEEDS) if seed % 2 else original
    )  # half of the runs have a seed of their own
    for number, method in enumerate(METHODS):
        run = feduhb.unlearn(later, LEAVERS, method=method, rounds=ROUNDS, stop=feduhb.never, show=None)
        yield run, Controls(
            federation=run.original, request=LEAVERS, settings=run.settings, engine="loop", history=False, original_seed=seed,
            folder=folder / str(number), made={"original": original, "retrain": retrain},
        )  # fmt: skip


def count_alarms(run: Run, controls: Controls) -> list[Check]:
    """Return the failed checks of a run of the user's own code."""
    checks: list[Check] = []
    controls.run_in("never", run, keep_models=True)
    carry_out(OwnCode(run, controls, checks).steps())
    return [check for check in checks if not check.identical]


def search(run: Run, controls: Controls, world: World, orders: int = ORDERS, share: float = 0.0) -> bool:
    """Return whether there are traces of the original in the models of a world, mixed with a share of the original."""
    original, like = controls.train("original"), run.federation.fresh_model()
    olds = [original.params, original.params - flatten(original.federation.fresh_model())]
    models = KeptModels(controls.place(world, run) / MODELS).read_all()
    mixed = ((1 - share) * model + share * original.params for model in models)
    start = flatten(redraw(run.federation, world).fresh_model())
    groups = find_units(like, run.federation.test.all()[0], noise=world == "bare-other")
    return find_trace(mixed, start, olds, like, groups, run.seed, orders=orders) is not None


def main() -> None:
    """Print the number of false alarms, and the shares that are found, for each model."""
    torch.set_num_threads(1)
    for model in MODELS_TRIED:
        runs, searched, alarms, few, found = 0, 0, list[str](), list[bool](), Counter[float]()
        for seed in range(SEEDS):
            with tempfile.TemporaryDirectory() as folder:
                for run, controls in unlearn_honestly(model, seed, Path(folder)):
                    runs += 1
                    failed = count_alarms(run, controls)
                    alarms += [f"seed {seed}, {run.method.name}: {check.says}" for check in failed]
                    if not failed:  # else some worlds were not run
                        searched += 1
                        few += [search(run, controls, world, FEW) for world in ("draw", "bare-other")]
                        found.update(s for s in SHARES if search(run, controls, "bare-other", share=s))
        shares = ", ".join(f"{share:.0%} in {found[share]} of {searched}" for share in SHARES)
        sys.stdout.write(
            f"{model.__name__}: {len(alarms)} false alarms in {runs} runs; with {FEW} orders, in {sum(few)} of {len(few)} searches; "
            f"of the old weights were found: {shares}\n"
        )
        sys.stdout.writelines(f"  {alarm}\n" for alarm in alarms)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
