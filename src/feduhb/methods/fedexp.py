"""FedExP: retrain on the remaining clients, with a step that is longer the more their updates differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feduhb.core.aggregate import Aggregate, format_rule, weighted_mean
from feduhb.core.checks import check_step
from feduhb.core.types import Method, Updates, Work
from feduhb.errors import AggregationError, ConfigError
from feduhb.methods.retrain import Plain

CHUNK = 2**14  # torch adds up so few numbers in one thread, so the bits do not depend on the number of cores


@dataclass(frozen=True, slots=True)
class FedExP(Method[Plain]):
    """Exact unlearning: train a fresh model on the remaining clients with extrapolated steps of the server.

        g = Σ p_c u_c,    w[t+1] = w[t] - max(1, Σ p_c ‖u_c‖² / (2 (‖g‖² + ε))) g,    p_c = n_c / N,    w[0] fresh

    The step is FedAvg's, or longer where the updates point in different directions and their mean is short.

    Args:
        eps: ε, a positive number. The larger it is, the sooner the steps become FedAvg's when the updates shrink.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: only the weighted mean. A robust rule would not help: a single client could make the step as long as it
            likes by the length of its update.

    A summed answer must bring one more sum, `Updates.mean_square`.

    Differs from the paper: the mean of ‖u_c‖² is weighted by examples, like g. The paper recommends to average the models of
    the last two rounds; here the last one is returned.
    Reference: Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", 2023.
    """

    eps: float = 1e-3
    epochs: int = 5
    aggregate: Aggregate = weighted_mean

    name: ClassVar[str] = "fedexp"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_step(self.eps, self.epochs, self.aggregate, name="eps", example=0.001)
        if self.aggregate is not weighted_mean:
            raise ConfigError(
                f"fedexp cannot use {format_rule(self.aggregate)}, because one client could still set the length of its step; "
                "use weighted_mean, or another method, such as nesterov"
            )

    def init(self, params: Tensor) -> Plain:
        """Return the initial state at these parameters."""
        return Plain(params)

    def ask(self, state: Plain) -> Work:
        """Return local training for all remaining clients."""
        return Work(state.params, self.epochs)

    def tell(self, state: Plain, answers: Iterable[Updates]) -> Plain:
        """Return the state after one extrapolated step."""
        lengths = _Lengths()
        g = weighted_mean(lengths.watch(answers))
        extrapolation = max(1.0, lengths.mean / (2 * (square_length(g) + self.eps)))
        return Plain(state.params - extrapolation * g)


class _Lengths:
    """The weighted mean of the squared lengths of updates, added up client by client as they pass."""

    def __init__(self) -> None:
        self.total, self.weight = 0.0, 0.0

    @property
    def mean(self) -> float:
        return self.total / self.weight

    def watch(self, answers: Iterable[Updates]) -> Iterator[Updates]:
        for block in answers:
            self._add(block)
            yield block
            del block  # its memory is free while the clients work on the next one

    def _add(self, block: Updates) -> None:
        for row, n in zip(block.values, block.weights.tolist(), strict=True):
            self.total += n * (_read_mean(block) if block.summed else square_length(row))
            self.weight += n


def _read_mean(block: Updates) -> float:
    if block.mean_square is None:
        raise AggregationError(
            "fedexp needs the mean squared length of the updates beside their sum; let the engine fill in "
            "Updates.mean_square, or use nesterov, which needs only the sum"
        )
    return block.mean_square


def square_length(vector: Tensor) -> float:
    """Return ‖v‖², computed in float64 with the same bits on any number of cores."""
    parts = torch.stack([part.double().square().sum() for part in vector.split(CHUNK)])
    return math.fsum(parts.tolist())
