"""Statistics of normalisation layers, which the server averages separately from what a method does to the parameters.

A model's vector is [w, b]: P trained parameters, then K statistics. Clients start from both and answer with both.

    b[t+1] = Σ (n_c / N) b_c,    b_c = b[t] - u_c,    b[0] fresh

That is the weighted mean of the statistics of the clients that answered, without momentum, whatever the method and its
aggregation rule. Values are averaged, not their changes, so that rounding makes no variance negative. In a round in which
no client answers, such as an estimated round of FedRecover, or leavers do, the statistics stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from feduhb.core.aggregate import RunningMean
from feduhb.core.types import Method, Updates, Work


@dataclass(frozen=True, slots=True)
class WithStatistics:
    """A method on the parameters [P], with the statistics [K] averaged separately.

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
        mean = RunningMean()
        new = self.method.tell(inner, self._take(answers, b, mean))
        if mean.total is not None and not self._asks_leavers(inner):
            b = mean.finish()
        return self._join(new, b)

    def _take(self, answers: Iterable[Updates], start: Tensor, mean: RunningMean) -> Iterator[Updates]:
        """Yield the answers without their statistics, which are added to a mean. They began at ``start`` [K]."""
        for block in answers:
            mean.add(replace(block, values=start - block.values[:, -self.count :]))
            yield replace(block, values=block.values[:, : -self.count])

    def _asks_leavers(self, inner: Any) -> bool:
        work = self.method.ask(inner) if self.method.asks_leaver else None
        return work is not None and work.leavers

    def _split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        return vector[: -self.count].clone(), vector[-self.count :].clone()

    def _open(self, state: Any) -> tuple[Any, Tensor]:
        w, b = self._split(state.params)
        return state._replace(params=w), b

    def _join(self, state: Any, b: Tensor) -> Any:
        return state._replace(params=torch.cat([state.params, b]))
