"""A package of somebody else's, with a method, an engine and a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from feduhb import Federation, Local, Loop, Method, Updates, Work, weighted_mean
from feduhb.data import Dataset


class Signed(NamedTuple):
    """The model."""

    params: Tensor  # [P]


@dataclass(frozen=True, slots=True)
class Mine(Method[Signed]):
    """w[t+1] = w[t] - α sign(Σ (n_c / N) u_c)"""

    step_size: float = 0.01
    epochs: int = 5

    name: ClassVar[str] = "mine"
    exact: ClassVar[bool] = True

    def init(self, params: Tensor) -> Signed:
        """Return the state to start with."""
        return Signed(params)

    def ask(self, state: Signed) -> Work:
        """Return local training for everyone."""
        return Work(state.params, self.epochs)

    def tell(self, state: Signed, answers: Iterable[Updates]) -> Signed:
        """Return the state after one step of a fixed length."""
        return Signed(state.params - self.step_size * weighted_mean(answers).sign())


class Rounded:
    """An engine that lets the loop train, and rounds answers to float16."""

    def __init__(self, federation: Federation, local: Local) -> None:
        self.loop = Loop(federation, local)

    @property
    def about(self) -> Mapping[str, Any]:
        """The loop's own, under another name."""
        return {**self.loop.about, "name": "rounded"}

    def train(self, work: Work, clients: Sequence[str], round: int) -> Iterator[Updates]:
        """Return the loop's answers, rounded."""
        for block in self.loop.train(work, clients, round):
            yield Updates(block.clients, block.values.half().to(block.values.dtype), block.weights)


def load_stripes(folder: Path | None) -> Dataset:  # noqa: ARG001
    """Return images with a bright row or a bright column."""
    y = torch.arange(240) % 2
    x = torch.full((240, 1, 8, 8), -1.0)
    for number, label in enumerate(y.tolist()):
        place = number % 8
        if label:
            x[number, 0, :, place] = 1.0
        else:
            x[number, 0, place, :] = 1.0
    return Dataset(x[:200], y[:200], x[200:], y[200:], classes=2)
