"""What methods with an aggregation rule share: whether sums of the updates are enough for them."""

from __future__ import annotations

from typing import Literal, TypeVar

from feduhb.core.aggregate import Aggregate, weighted_mean
from feduhb.core.types import Method, State

S = TypeVar("S", bound=State)


class RuleMethod(Method[S]):
    """A method that combines the updates of a round by its setting ``aggregate``."""

    aggregate: Aggregate

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Return "sum" for the weighted mean, the only rule that works on summed answers; else "each"."""
        return "sum" if self.aggregate is weighted_mean else "each"
