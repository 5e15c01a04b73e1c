"""Stop rules: pure functions of the movements ‖w[t+1] - w[t]‖ recorded so far.

A rule depends on nothing else. A resumed run therefore stops where the uninterrupted one would, and other settings
of a rule can be tried on a recorded run without training again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from feduhb.errors import ConfigError

SLACK = 1e-6  # of a standard deviation from running moments; their error is about 1e-16 a round


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a run ended before its last scheduled round, in words and in numbers."""

    text: str
    movement: float
    threshold: float

    def __str__(self) -> str:
        return self.text


class StopRule(Protocol):
    """A rule that decides after each round, from all movements so far, whether the run ends."""

    def __call__(self, moved: Sequence[float], /) -> StopReason | None:
        """Return the reason to stop now; None to continue."""
        ...

    def threshold(self, moved: Sequence[float], /) -> float | None:
        """Return the movement below which the rule would stop now; None while the rule does not apply."""
        ...


@dataclass(frozen=True, slots=True)
class DynamicStop:
    """Stop when the weights move little compared with how much their movement has varied.

        δ[t] = β ‖w[t+1] - w[t]‖,   σ[t] = population std of the last k δ,   stop if δ[t] < max(ε, λ σ[t])

    Example:
        early = feduhb.unlearn(trained, ["c03"], stop=feduhb.dynamic_stop(scale=0.8), rounds=10)

    Args:
        scale: λ. A larger value stops earlier.
        window: k in rounds. The rule does not apply until the window is full. None takes all rounds so far.
        floor: ε, in units of δ.
        momentum: β of the method. It cancels in δ < λ σ and matters for ε only. At 0, δ is the movement itself.
        min_rounds: the rule does not apply before this number of rounds.
        as_printed: judge the movement into w[t] instead, with the zero of t = 0 in the window, as the paper's
            algorithm is printed. The rule then stops one round later, and the model that the paper would return
            is the state's ``previous``.

    Differs from the paper: the paper gives neither k nor ε, and its first δ is 0, so that any ε > 0 would end the
    run before it began. The rule stops when δ *falls* within the window, never on a plateau. With all rounds so
    far in the window, it comes nearest to the paper's 22 and 30 rounds.
    Reference: Jiang, Tan and Lam, "FedUHB: Accelerating Federated Unlearning via Polyak Heavy Ball Method".
    """

    scale: float = 0.6
    _: KW_ONLY
    window: int | None = None
    floor: float = 0.0
    momentum: float = 0.9
    min_rounds: int = 3
    as_printed: bool = False

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    def __post_init__(self) -> None:
        if not 0 <= self.scale < math.inf:
            raise ConfigError(f"the stop rule's scale (lambda) is {self.scale}; give 0 or more, such as 0.6")
        if self.window is not None and self.window < 2:
            raise ConfigError(f"the stop rule's window is {self.window}; give 2 or more, or leave it out")
        if not 0 <= self.floor < math.inf:
            raise ConfigError(f"the stop rule's floor (epsilon) is {self.floor}; give 0 or more")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"the stop rule's momentum is {self.momentum}; give at least 0 and below 1")
        if self.min_rounds < 1:
            raise ConfigError(f"the stop rule's min_rounds is {self.min_rounds}; give 1 or more")

    def __call__(self, moved: Sequence[float], /) -> StopReason | None:
        """Return the reason to stop after these movements; None to continue."""
        compared = self._compare(moved)
        if compared is None:
            return None
        now, sigma = compared
        spread, floor = self.scale * sigma, self.floor / self._unit
        if now >= max(spread, floor):
            return None
        if spread >= floor:
            text = f"movement {now:.3g} fell below {self.scale:g} x its standard deviation {sigma:.3g}"
            return StopReason(text, now, spread)
        return StopReason(f"movement {now:.3g} fell below the floor {floor:.3g}", now, floor)

    def threshold(self, moved: Sequence[float], /) -> float | None:
        """Return max(ε/β, λ std(movements)), in the units of the movements themselves."""
        compared = self._compare(moved)
        return None if compared is None else max(self.floor / self._unit, self.scale * compared[1])

    @property
    def _unit(self) -> float:
        # At β = 0, δ = β ‖Δw‖ would always be 0.
        return self.momentum or 1.0

    def _compare(self, moved: Sequence[float]) -> tuple[float, float] | None:
        """Return the last movement and the standard deviation to compare it with; None while the rule does not apply."""
        series = [0.0, *moved[:-1]] if self.as_printed else moved
        if len(moved) < max(self.min_rounds, self.window or 0):
            return None
        recent = series if self.window is None else series[-self.window :]
        return series[-1], _measure_spread(recent)

    def list_suspects(self, moved: Sequence[float]) -> Iterator[int]:
        """Yield each number of rounds after which this rule may stop, in time linear in the rounds.

        Without a window, the standard deviation comes from Welford's running moments. Its error is far below the
        slack, so that no stop is missed; a suspect that is within the slack need not stop.
        """
        series = [0.0, *moved[:-1]] if self.as_printed else moved
        first, floor = max(self.min_rounds, self.window or 0), self.floor / self._unit
        mean = squares = 0.0
        for n, now in enumerate(series, 1):
            if self.window is None:
                step = now - mean
                mean += step / n
                squares += step * (now - mean)
                sigma = math.sqrt(squares / n)
                sigma += SLACK * (sigma + abs(mean))
            elif n >= first:
                sigma = _measure_spread(series[n - self.window : n])
            else:
                continue
            if n >= first and not now >= max(self.scale * sigma, floor):
                yield n


def _measure_spread(recent: Sequence[float]) -> float:
    """Return the population standard deviation."""
    mean = math.fsum(recent) / len(recent)
    return math.dist(recent, [mean] * len(recent)) / math.sqrt(len(recent))


dynamic_stop = DynamicStop  # the name in the public API


@dataclass(frozen=True, slots=True)
class Never:
    """Run every scheduled round."""

    def __call__(self, moved: Sequence[float], /) -> StopReason | None:  # noqa: ARG002
        """Return None: continue."""
        return None

    def threshold(self, moved: Sequence[float], /) -> float | None:  # noqa: ARG002
        """Return None: this rule never applies."""
        return None


never = Never()


def replay(rule: StopRule, moved: Sequence[float]) -> int | None:
    """Return the number of rounds after which ``rule`` would have ended a recorded run; None if it would not."""
    every = rule.list_suspects(moved) if isinstance(rule, DynamicStop) else range(1, len(moved) + 1)
    return next((n for n in every if rule(moved[:n]) is not None), None)
