"""Statistics of normalisation layers, which the server averages beside whatever a method does to the parameters.

A model's vector is [w, b]: P trained parameters, then K statistics. Clients start from both and answer with both.

    b[t+1] = Σ (n_c / N) b_c,    b_c = b[t] - u_c,    b[0] fresh

That is the weighted mean of the statistics of the clients that answered, without momentum, whatever the method and its
aggregation rule. Values are averaged, not their changes, so that rounding makes no variance negative. In a round in which
no client answers, such as an estimated round of FedRecover, the statistics stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from feduhb.core.types import Method, Updates, Work


@dataclass(frozen=True, slots=True)
class WithStatistics:
    """A method on the parameters [P], beside which the statistics [K] are averaged.

    A state is the method's own, but its ``params`` hold both.
    """

    method: Method[Any]
    count: int  # K

    def init(self, params: Tensor) -> Any:
        """Return the method's state at the parameters, with the statistics."""
        w, b = self._split(params)
        return self._join(self.method.init(w), b)

    def ask(self, state: Any) -> Work | None:
        """Return the method's work, to start from the statistics too."""
        inner, b = self._open(state)
        work = self.method.ask(inner)
        return None if work is None else replace(work, params=torch.cat([work.params, b]))

    def tell(self, state: Any, answers: Iterable[Updates]) -> Any:
        """Return the method's next state, with the mean of the statistics that were answered."""
        inner, b = self._open(state)
        mean = _Mean(b)
        new = self.method.tell(inner, mean.watch(answers))
        return self._join(new, b if mean.total is None else mean.total / mean.weight)

    def _split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        return vector[: -self.count].clone(), vector[-self.count :].clone()

    def _open(self, state: Any) -> tuple[Any, Tensor]:
        w, b = self._split(state.params)
        return state._replace(params=w), b

    def _join(self, state: Any, b: Tensor) -> Any:
        return state._replace(params=torch.cat([state.params, b]))


class _Mean:
    """The weighted sum of the statistics in answers, added up client by client as they pass."""

    def __init__(self, start: Tensor) -> None:
        self.start = start  # [K] b[t]
        self.total: Tensor | None = None  # [K]
        self.weight = 0.0

    def watch(self, answers: Iterable[Updates]) -> Iterator[Updates]:
        """Yield the answers without their statistics."""
        count = len(self.start)
        for block in answers:
            for row, n in zip(block.values[:, -count:], block.weights.tolist(), strict=True):
                own = self.start - row
                self.total = own * n if self.total is None else self.total.add_(own, alpha=n)
                self.weight += n
            yield replace(block, values=block.values[:, :-count])
