"""Numbers of a federation's runs over its seeds, for tables, figures and claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from feduhb import dynamic_stop, replay
from feduhb_reproduction.cells import RETRAIN, Track
from feduhb_reproduction.federations import Federation

UHB, UHB_ON = "feduhb", "feduhb-on"
TREES = "boosted trees"  # the attacker of the paper's MISR
ACCURACY = "test_accuracy"
COARSE = 2.0  # times a server step, from which on the next one tried is far away
WARM = 5  # times a run's median round, beyond which a rare round was probably compiling
ODD = 0.05  # of a run's rounds, and one at least
COMPILED = f"In a total, a rare round (at most one in {1 / ODD:.0f}) of more than {WARM} times its run's median counts as the median: it probably compiled kernels."


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of a number, one for each seed."""

    values: tuple[float, ...] = ()

    @property
    def n(self) -> int:
        """The number of seeds."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if there are none."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """The sample's standard deviation; None with fewer than two seeds."""
        return statistics.stdev(self.values) if self.n > 1 else None


@dataclass(frozen=True, slots=True)
class Reached:
    """The first round at which a run reached an accuracy, counted from 1, by seed; None for never."""

    rounds: Mapping[int, int | None]

    @property
    def spread(self) -> Spread:
        """The rounds of the seeds that reached it."""
        return _make_spread(self.rounds.values())

    @property
    def n(self) -> int:
        """The number of seeds."""
        return len(self.rounds)

    @property
    def hits(self) -> int:
        """The number of seeds that reached it."""
        return self.spread.n

    @property
    def mean(self) -> float | None:
        """The mean over the seeds that reached it."""
        return self.spread.mean

    @property
    def all(self) -> bool:
        """Whether there are seeds and all of them reached it."""
        return 0 < self.n == self.hits


@dataclass(frozen=True, slots=True)
class Stops:
    """The rounds after which a stop rule would have ended a federation's runs, by seed; None if it does not fire."""

    rounds: Mapping[int, int | None]
    executed: Spread  # rounds; all of them where the rule does not fire
    accuracy: Spread  # on test data after them

    @property
    def n(self) -> int:
        """The number of seeds."""
        return len(self.rounds)

    @property
    def fires(self) -> int:
        """The number of seeds in which the rule fires."""
        return sum(ended is not None for ended in self.rounds.values())


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of clients and server, without evaluation, of the cells that ran alone on their machine."""

    per_round: Spread  # the median over a run's executed rounds, as they are
    total: Spread  # of a machine that is warm: see `steady`
    per_scheduled: Spread  # the total over the rounds that were scheduled, run or not
    rounds: Spread  # executed
    quartiles: tuple[Spread, Spread]  # of a run's executed rounds


class Misr(NamedTuple):
    """The shares of the forgotten data and of test data that an attacker classifies as members."""

    called: Spread
    on_test: Spread


def final_value(federation: Federation, run: str, series: str = ACCURACY) -> Spread:
    """Return the last value of a series."""
    return _make_spread(_last_value(track, series) for track in federation.tracks(run).values())


def final_score(federation: Federation, run: str, name: str) -> Spread:
    """Return a score of the final model."""
    return _make_spread(track.scores.get(name) for track in federation.tracks(run).values())


def sum_of(federation: Federation, run: str, name: str) -> Spread:
    """Return a sum over a run; "rounds" is the number executed."""
    tracks = federation.tracks(run).values()
    return _make_spread(float(t.rounds) if name == "rounds" else t.sums.get(name) for t in tracks)


def measure_asr(federation: Federation, run: str) -> Spread:
    """Return how often the trigger works on the final model."""
    return final_value(federation, run, "backdoor")


def list_attackers(federation: Federation) -> list[str]:
    """Return the names of the attackers, the paper's first."""
    found = dict.fromkeys(name for cell in federation.cells for name in cell.misr)
    return sorted(found, key=lambda name: name != TREES)


def measure_misr(federation: Federation, run: str, attacker: str = TREES) -> Misr:
    """Return one attacker's rates on one run's final model."""
    whole = federation.tracks(run)
    pairs = [c.misr.get(attacker, {}).get(run) for c in federation.cells if c.place.seed in whole]
    return Misr(*(_make_spread(pair[side] for pair in pairs if pair) for side in (0, 1)))


def find_reached(
    federation: Federation, run: str, goal: float | None = None, *, of: str = RETRAIN
) -> Reached:
    """Return the first round with a test accuracy; None stands for the final one of the same seed's Retrain, or run ``of``.

    A run that broke off counts with the rounds it has; a seed without a final accuracy to reach is left out.
    """
    return _find_rounds(federation, run, goal, find_first, of)


def find_kept(federation: Federation, run: str, goal: float | None = None) -> Reached:
    """Return the first round from which the test accuracy is never below the goal again; None as in `find_reached`.

    A run that broke off does not stay.
    """
    return _find_rounds(federation, run, goal, find_kept_from)


def find_first(track: Track, level: float) -> int | None:
    """Return the first round with a test accuracy; None for never."""
    return next((n for n, value in enumerate(track.of(ACCURACY), 1) if value >= level), None)


def find_kept_from(track: Track, level: float) -> int | None:
    """Return the first round from which the test accuracy is never below a level again; None for never, and if the run broke off."""
    values = track.of(ACCURACY)
    late = next((n for n in range(len(values), 0, -1) if not values[n - 1] >= level), 0) + 1
    return late if late <= len(values) and track.failed is None else None


def _find_rounds(
    federation: Federation,
    run: str,
    goal: float | None,
    look: Callable[[Track, float], int | None],
    of: str = RETRAIN,
) -> Reached:
    goals = {seed: _last_value(track, ACCURACY) for seed, track in federation.tracks(of).items()}
    found = {
        seed: (track, goals.get(seed) if goal is None else goal)
        for seed, track in federation.every(run).items()
    }
    return Reached({seed: look(track, level) for seed, (track, level) in found.items() if level is not None})


def replay_rule(
    federation: Federation, run: str = UHB_ON, *, scale: float | None = None, window: int | None = None
) -> Stops:
    """Replay the stop rule on the recorded movements, with the grid's own λ if no scale is given."""
    rule = dynamic_stop(federation.cells[0].place.scale if scale is None else scale, window=window)
    tracks = federation.tracks(run)
    rounds = {seed: replay(rule, track.of("moved")) for seed, track in tracks.items()}
    ends = [(track, rounds[seed] or track.rounds) for seed, track in tracks.items()]
    return Stops(
        rounds,
        Spread(tuple(float(end) for _, end in ends)),
        _make_spread(_value_at(track, end) for track, end in ends),
    )


def limit_to_rule(found: Reached, ends: Stops) -> Reached:
    """Return what was reached before the rule ends the run."""
    last = {seed: ends.rounds.get(seed) for seed in found.rounds}
    return Reached(
        {seed: n if n is None or n <= (last[seed] or n) else None for seed, n in found.rounds.items()}
    )


def subtract_final(federation: Federation, run: str, other: str, series: str = ACCURACY) -> Spread:
    """Return by how much a run's last value exceeds another's of the same seed."""
    ones, others = federation.tracks(run), federation.tracks(other)
    pairs = [
        (_last_value(ones[seed], series), _last_value(others[seed], series))
        for seed in ones
        if seed in others
    ]
    return _make_spread(a - b for a, b in pairs if a is not None and b is not None)


def measure_times(federation: Federation, run: str) -> Times | None:
    """Return a run's seconds; None if no cell of it was timed."""
    timed = federation.timed
    tracks = [] if timed is None else [track for track in timed.tracks(run).values() if list_seconds(track)]
    if not tracks:
        return None
    took = [list_seconds(track) for track in tracks]
    totals = [math.fsum(replace_slow(each)) for each in took]
    return Times(
        Spread(tuple(statistics.median(each) for each in took)),
        Spread(tuple(totals)),
        Spread(tuple(each / federation.rounds for each in totals)),
        Spread(tuple(float(len(each)) for each in took)),
        (
            Spread(tuple(_find_quartile(each, 0) for each in took)),
            Spread(tuple(_find_quartile(each, 2) for each in took)),
        ),
    )


def _find_quartile(took: Sequence[float], which: int) -> float:
    return statistics.quantiles(took, method="inclusive")[which] if len(took) > 1 else took[0]


def replace_slow(took: Sequence[float]) -> list[float]:
    """Return the seconds with the median in place of rare slow rounds. If many rounds are slow, they stay."""
    usual = statistics.median(took)
    odd = sum(one > WARM * usual for one in took)
    return [usual if one > WARM * usual and odd <= max(1, ODD * len(took)) else one for one in took]


def list_seconds(track: Track) -> list[float]:
    """Return each round's seconds of clients and server."""
    return [a + b for a, b in zip(track.of("client_seconds"), track.of("server_seconds"), strict=True)]


def list_momenta(federation: Federation) -> dict[float, str]:
    """Return the run of each β, without a stop rule; β 0 is Retrain."""
    own = federation.cells[0].place.momentum
    return _list_swept(federation, "momentum-", {0.0: RETRAIN, own: UHB_ON})


def list_steps(federation: Federation) -> dict[float, str]:
    """Return the run of each server step of FedAvg; step 1 is Retrain."""
    return _list_swept(federation, "step-", {1.0: RETRAIN})


def find_best_step(federation: Federation) -> float | None:
    """Return the server step with the best mean test accuracy; None if only step 1 was tried.

    Chosen on the test data, which favours it. Steps whose run broke off with any seed are left out.
    """
    tried = {step: run for step, run in list_steps(federation).items() if not federation.failed(run)}
    means = {
        step: mean for step, run in tried.items() if (mean := final_value(federation, run).mean) is not None
    }
    return max(means, key=means.__getitem__) if len(list_steps(federation)) > 1 and means else None


def describe_untried(federation: Federation, *chosen: float) -> str:
    """Return which server steps near a chosen one were not tried; "" if its neighbours are less than a factor of 2 away."""
    tried = list(list_steps(federation))
    gaps = dict.fromkeys(gap for step in chosen for gap in _list_gaps(tried, step))
    if not gaps:
        return ""
    return f"against the steps tried ({', '.join(f'{step:g}' for step in tried)}); none {' and none '.join(gaps)} was tried"


def _list_gaps(tried: Sequence[float], step: float) -> list[str]:
    lower, upper = [one for one in tried if one < step], [one for one in tried if one > step]
    below = [] if lower and step < COARSE * lower[-1] else [(lower[-1] if lower else None, step)]
    above = [] if upper and upper[0] < COARSE * step else [(step, upper[0] if upper else None)]
    return [
        f"under {b:g}" if a is None else f"over {a:g}" if b is None else f"between {a:g} and {b:g}"
        for a, b in (*below, *above)
        if b is not None or a is not None
    ]


def count_epochs(federation: Federation, run: str, found: Reached) -> Spread:
    """Return the client epochs up to a round, of the seeds that reached it; those of the whole run for FedRecover.

    FedEraser's first round asks no client; FedRecover asks all of them in some rounds and few in others.
    """
    tracks = {seed: (federation.every(run)[seed], n) for seed, n in found.rounds.items() if n is not None}
    return _make_spread(_epochs_until(run, track, n) for track, n in tracks.values())


def _epochs_until(run: str, track: Track, n: int) -> float | None:
    whole = track.sums.get("client_epochs")
    if whole is None or run.startswith("fedrecover"):
        return whole
    idle = 1 if run == "federaser" else 0
    return whole * (n - idle) / max(1, track.rounds - idle)


def _list_swept(federation: Federation, prefix: str, known: Mapping[float, str]) -> dict[float, str]:
    names = dict.fromkeys(name for cell in federation.cells for name in cell.runs if name.startswith(prefix))
    found = {float(name.removeprefix(prefix)): name for name in names}
    there = {value: name for value, name in known.items() if federation.has(name)}
    return dict(sorted({**found, **there}.items()))


def _last_value(track: Track, series: str) -> float | None:
    values = track.of(series)
    return values[-1] if values and math.isfinite(values[-1]) else None


def _value_at(track: Track, end: int) -> float | None:
    values = track.of(ACCURACY)
    return values[end - 1] if len(values) >= end else None


def _make_spread(values: Iterable[float | None]) -> Spread:
    return Spread(tuple(value for value in values if value is not None))
