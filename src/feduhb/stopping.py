"""Stop rules: pure functions of what the rounds so far have recorded, such as the movements ‖w[t+1] - w[t]‖.

A rule depends on nothing else. A resumed run therefore stops where the uninterrupted one would, and other settings
of a rule can be tried on a recorded run without training again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Protocol, overload

from feduhb.errors import ConfigError

Values = tuple[float | None, ...]  # one for each round; None where nothing was recorded

SLACK = 1e-6  # of a standard deviation from running moments; their error is about 1e-16 a round


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a run ended before its last scheduled round, in words and in numbers."""

    text: str
    movement: float | None = None  # of a rule on movements, with the threshold that it fell below
    threshold: float | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Series(Sequence[float]):
    """What the rounds of a run have recorded, one value for each round. As a sequence, it is the movements.

    The held-out values of a round are of the model that the clients were sent in it, so they are one round behind. The
    first are of the fresh model.
    """

    moved: tuple[float, ...] = ()
    distance: Values = ()  # ‖w[t+1] - w[0]‖
    loss: Values = ()  # on the held-out data of the clients that answered
    score: Values = ()  # the main score there
    best: Literal["high", "low"] = "high"  # whether more or less of the score is better

    def add(self, moved: float, distance: float | None, held_out: Mapping[str, float]) -> Series:
        """Return the series with one more round; ``held_out`` holds the loss, and the score by its name."""
        score = next((value for name, value in held_out.items() if name != "loss"), None)
        return Series(
            (*self.moved, moved), (*self.distance, distance), (*self.loss, held_out.get("loss")), (*self.score, score), self.best
        )  # fmt: skip

    def first(self, rounds: int) -> Series:
        """Return the first rounds."""
        n = rounds
        return Series(self.moved[:n], self.distance[:n], self.loss[:n], self.score[:n], self.best)

    def find_best(self) -> int | None:
        """Return the number of rounds after which the model had the best score, the first of equals; None if none was scored.

        The fresh model does not count.
        """
        sign = 1 if self.best == "high" else -1
        scored = [(t, value) for t, value in enumerate(self.score) if t and value is not None]
        known = [(sign * value, -t) for t, value in scored if math.isfinite(value)]
        return -max(known)[1] if known else None

    def __len__(self) -> int:
        return len(self.moved)

    @overload
    def __getitem__(self, place: int) -> float: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[float, ...]: ...
    def __getitem__(self, place: int | slice) -> float | tuple[float, ...]:
        return self.moved[place]


class StopRule(Protocol):
    """A rule that decides after each round, from all movements so far, whether the run ends.

    A rule that has ``needs``, a tuple of "held_out" and "distance", makes the run record these, and is called with a
    `Series` that holds them.
    """

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
            algorithm is printed. The rule then stops one round later. For the model that the paper would return,
            run again without the rule, for one round fewer.

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
        _check_number("the stop rule's scale (lambda)", self.scale, "give 0 or more, such as 0.6")
        if self.window is not None:
            _check_count("the stop rule's window", self.window, least=2, advice=", or leave it out")
        _check_number("the stop rule's floor (epsilon)", self.floor, "give 0 or more")
        _check_number("the stop rule's momentum", self.momentum, "give at least 0 and below 1", below=1)
        _check_count("the stop rule's min_rounds", self.min_rounds)

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


@dataclass(frozen=True, slots=True)
class Patience:
    """Stop when a value on the held-out data of the remaining clients has not become better for some rounds.

    The mean of the last ``smooth`` values is compared with the best such mean so far. A mean that is better by more than
    ``gain`` is the new best one. The run stops once the best one is ``rounds`` rounds old.

    Example:
        early = feduhb.unlearn(trained, ["c03"], stop=feduhb.patience("held_out_loss", rounds=5), rounds=10)

    Args:
        watch: "held_out_score", the federation's main score ("held_out_accuracy" means the same), or "held_out_loss".
        rounds: how long to wait for a better mean.
        gain: of a score as it is, so that 0.005 of an accuracy are 0.5 points; of a loss as a share of the best mean.
        smooth: values in a mean. 1 does not smooth.
        first: the first round whose mean counts, so that an overshoot before it fools nobody.
    """

    watch: str = "held_out_score"
    _: KW_ONLY
    rounds: int = 10
    gain: float = 0.005
    smooth: int = 5
    first: int = 10

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
    needs: ClassVar[tuple[str, ...]] = ("held_out",)

    def __post_init__(self) -> None:
        if self.watch == "held_out_accuracy":
            object.__setattr__(self, "watch", "held_out_score")
        if self.watch not in {"held_out_score", "held_out_loss"}:
            raise ConfigError(
                f"patience watches {self.watch!r}; give 'held_out_score', 'held_out_accuracy' or 'held_out_loss'"
            )
        for name in ("rounds", "smooth", "first"):
            _check_count(f"patience's {name}", getattr(self, name))
        _check_number("patience's gain", self.gain, "give 0 or more, such as 0.005")

    def __call__(self, series: Sequence[float], /) -> StopReason | None:
        """Return the reason to stop after these rounds; None to continue."""
        found = require_series(self, series)
        known = [(t, v) for t, v in enumerate(self.list_values(found), 1) if v is not None]
        best, since = math.nan, 0
        for n in range(self.smooth, len(known) + 1):
            mean = math.fsum(value for _, value in known[n - self.smooth : n]) / self.smooth
            t = known[n - 1][0]
            if t >= self.first and (not since or self._is_better(mean, best, found.best)):
                best, since = mean, t
        now = known[-1][0] if known else 0
        if not since or now < len(found) or now - since < self.rounds:
            return None
        mean = f", as a mean of {self.smooth} rounds," if self.smooth > 1 else ""
        least = f"{self.gain:g}" if self.watch == "held_out_score" else f"{self.gain:.3g} of it"
        name = self.watch.replace("held_out_", "held-out ")
        return StopReason(
            f"the {name}{mean} has not become better by {least} since round {since}, when it was {best:.4g}"
        )

    def threshold(self, moved: Sequence[float], /) -> float | None:  # noqa: ARG002
        """Return None: this rule does not judge movements."""
        return None

    def list_values(self, series: Series) -> Values:
        """Return the values that this rule watches."""
        return series.loss if self.watch == "held_out_loss" else series.score

    def _is_better(self, mean: float, best: float, direction: str) -> bool:
        if self.watch == "held_out_loss":
            return mean < best - self.gain * abs(best)
        return mean > best + self.gain if direction == "high" else mean < best - self.gain


patience = Patience  # the name in the public API


@dataclass(frozen=True, slots=True)
class DistanceStop:
    """Stop when the distance to the fresh model hardly grows any more. This needs no data.

        d[t] = ‖w[t] - w[0]‖,   stop if d[t] < (1 + share) d[t - window]

    Example:
        early = feduhb.unlearn(trained, ["c03"], stop=feduhb.distance_stop(0.03), rounds=10)

    Args:
        share: how much the distance must grow. A larger value stops earlier.
        window: over how many rounds.
        first: the rule does not apply before this number of rounds.
    """

    share: float = 0.03
    _: KW_ONLY
    window: int = 5
    first: int = 10
    watch: Literal["distance"] = "distance"  # how config.toml tells this rule from others

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
    needs: ClassVar[tuple[str, ...]] = ("distance",)

    def __post_init__(self) -> None:
        _check_number("the distance rule's share", self.share, "give 0 or more, such as 0.03")
        for name in ("window", "first"):
            _check_count(f"the distance rule's {name}", getattr(self, name))

    def __call__(self, series: Sequence[float], /) -> StopReason | None:
        """Return the reason to stop after these rounds; None to continue."""
        distance = require_series(self, series).distance
        if len(distance) < max(self.first, self.window + 1):
            return None
        before, now = distance[-1 - self.window], distance[-1]
        if before is None or now is None or not before or now >= (1 + self.share) * before:
            return None
        grown = f"grew by {now / before - 1:.2%}" if now > before else "did not grow"
        return StopReason(
            f"the distance to the fresh model {grown} in {self.window} rounds, less than {self.share:.3g} of it"
        )

    def threshold(self, moved: Sequence[float], /) -> float | None:  # noqa: ARG002
        """Return None: this rule does not judge movements."""
        return None


distance_stop = DistanceStop  # the name in the public API
RecordedRule = DynamicStop | Patience | DistanceStop  # rules that config.toml can record


def check_training_stop(stop: object) -> None:
    """Raise ConfigError unless a training can have this stop rule: its config.toml must record the rule."""
    if not isinstance(stop, RecordedRule | Never):
        raise ConfigError(
            f"stop is {stop!r}, which config.toml cannot record for a training; give feduhb.dynamic_stop(0.6) or another rule of feduhb, or feduhb.never"
        )


def _check_count(name: str, value: Any, *, least: int = 1, advice: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name} is {value!r}; give a whole number, {least} or more{advice}")


def _check_number(name: str, value: Any, advice: str, *, below: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < below:
        raise ConfigError(f"{name} is {value!r}; {advice}")


def list_needs(rule: StopRule) -> tuple[str, ...]:
    """Return what a rule needs besides movements: "held_out", "distance", or nothing."""
    return tuple(getattr(rule, "needs", ()))


def require_series(rule: StopRule, moved: Sequence[float]) -> Series:
    """Return what a rule was called with as a series; raise ConfigError if it is movements alone."""
    if not isinstance(moved, Series):
        raise ConfigError(
            f"{type(rule).__name__} needs more than movements; give it the series of a run, such as feduhb.replay(rule, run.series)"
        )
    return moved


def decide(rule: StopRule, series: Series) -> StopReason | None:
    """Return a rule's reason to stop after the rounds of a series; None to continue."""
    return rule(series if list_needs(rule) else list(series.moved))


def replay(rule: StopRule, moved: Sequence[float]) -> int | None:
    """Return the number of rounds after which ``rule`` would have ended a recorded run; None if it would not.

    Args:
        moved: the movements of the run, or its `Run.series`, which rules on held-out values and distances need.
    """
    if needs := list_needs(rule):
        series = require_series(rule, moved)
        watched = rule.list_values(series) if isinstance(rule, Patience) else series.loss + series.score
        recorded = {"held_out": watched, "distance": series.distance}
        if lacking := [need for need in needs if all(value is None for value in recorded.get(need, ()))]:
            what = rule.watch if isinstance(rule, Patience) else lacking[0]
            raise ConfigError(
                f"this run did not record {what}, which {type(rule).__name__} needs; run again with record=({lacking[0]!r},)"
            )
        return next((n for n in range(1, len(series) + 1) if decide(rule, series.first(n))), None)
    every = rule.list_suspects(moved) if isinstance(rule, DynamicStop) else range(1, len(moved) + 1)
    return next((n for n in every if rule(moved[:n]) is not None), None)


__all__ = [
    "DistanceStop", "DynamicStop", "Never", "Patience", "RecordedRule", "Series", "StopReason", "StopRule", "decide", "distance_stop",
    "dynamic_stop", "list_needs", "never", "patience", "replay", "require_series",
]  # fmt: skip
