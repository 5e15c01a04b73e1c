"""Measure a round of other models than the paper's: ResNet-18 with GroupNorm and BatchNorm, a transformer, a perceptron.

    python benchmarks/architectures.py [--clients 18] [--examples 512] [--rounds 3] [--models mlp transformer ...] [--json FILE]

Every client trains one epoch in batches of 64. On a GPU the loop is compared with the stacked engine in each precision, on
a CPU with the pool. The parameters lie on the GPU, as in a run. The engines take turns, so that other load slows all alike; the first turn warms up and does not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import feduhb
from feduhb.core.flat import flatten
from feduhb.core.types import Engine, Work
from feduhb.errors import FeduhbError
from feduhb.models import mlp, resnet18
from measuring import make_header, write

IMAGE, CLASSES, WORDS, LENGTH, WIDTH = (3, 32, 32), 10, 1000, 64, 128
GPU = ("stacked:float32", "stacked:tf32", "stacked:bf16")


class Transformer(nn.Module):
    """Four encoder layers over tokens, and a head on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layers = [nn.TransformerEncoderLayer(WIDTH, 4, 512, dropout=0.0, batch_first=True) for _ in range(4)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the classes [B, CLASSES]."""
        x = self.words(tokens) + self.places(torch.arange(LENGTH, device=tokens.device))
        return self.head(self.layers(x).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp(IMAGE, CLASSES, 512),
    "transformer": Transformer,
    "resnet18-group": lambda: resnet18(IMAGE, CLASSES, norm="group"),
    "resnet18": lambda: resnet18(IMAGE, CLASSES),
}


def make_federation(name: str, clients: int, examples: int) -> feduhb.Federation:
    """Return clients with random images or tokens, which cost as much as real ones."""
    draw = torch.Generator().manual_seed(0)

    def make_examples() -> tuple[Tensor, Tensor]:
        y = torch.randint(CLASSES, (examples,), generator=draw)
        if name == "transformer":
            return torch.randint(WORDS, (examples, LENGTH), generator=draw), y
        return torch.randn(examples, *IMAGE, generator=draw), y

    return feduhb.Federation(
        {f"c{i:02}": make_examples() for i in range(clients)}, make_examples(), MODELS[name]
    )


def make_engines(federation: feduhb.Federation) -> dict[str, Engine | str]:
    """Return the engines to compare by name; the reason in words for one that refuses the model."""
    if not torch.cuda.is_available():
        return {"loop": feduhb.Loop(federation), "pool": feduhb.Pool(federation)}
    found: dict[str, Engine | str] = {"loop": feduhb.Loop(federation, device="cuda")}
    for name in GPU:
        try:
            found[name] = feduhb.Stacked(federation, precision=name.partition(":")[2])
        except FeduhbError as refusal:
            found[name] = str(refusal)
    return found


def time_round(engine: Engine, start: Tensor, clients: tuple[str, ...], round: int) -> float:
    """Return the seconds of one round."""
    began = time.perf_counter()
    for block in engine.train(Work(start, 1), clients, round):
        block.values.sum().item()  # waits for a GPU
    return time.perf_counter() - began


def measure(name: str, clients: int, examples: int, rounds: int) -> dict[str, Any]:
    """Return the median milliseconds of a round of each engine, and how many times faster than the loop it is."""
    federation = make_federation(name, clients, examples)
    start, engines = flatten(federation.fresh_model()), make_engines(federation)
    start = start.cuda() if torch.cuda.is_available() else start  # where a run has it
    ready = {key: engine for key, engine in engines.items() if not isinstance(engine, str)}
    took: dict[str, list[float]] = {key: [] for key in ready}
    for turn in range(rounds + 1):
        for key, engine in ready.items():
            seconds = time_round(engine, start, tuple(federation.clients), turn)
            took[key] += [seconds] if turn else []
    medians = {key: 1000 * statistics.median(some) for key, some in took.items()}
    return {
        "parameters": start.numel(),
        "milliseconds": medians,
        "times_faster": {key: medians["loop"] / value for key, value in medians.items()},
        "why": {key: str(engine.about["why"]) for key, engine in ready.items() if "why" in engine.about},
        "refused": {key: words for key, words in engines.items() if isinstance(words, str)},
    }


def main() -> None:
    """Measure every model and print a line for each engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=18)
    parser.add_argument("--examples", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {}
    for name in given.models:
        found[name] = measure(name, given.clients, given.examples, given.rounds)
        for engine, value in found[name]["milliseconds"].items():
            ratio = found[name]["times_faster"][engine]
            print(f"{name:15} {engine:16} {value:9.1f} ms a round, {ratio:5.2f} times the loop", flush=True)
            if why := found[name]["why"].get(engine):
                print(f"{'':15} {why}")
    if given.json:
        write(given.json, {**make_header("architectures", gpu=torch.cuda.is_available()), "models": found})


if __name__ == "__main__":
    main()
