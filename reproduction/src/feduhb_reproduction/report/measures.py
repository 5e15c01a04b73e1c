"""What the paper's tables and figures are made of: numbers of a federation's runs, each over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from feduhb.stopping import dynamic_stop, replay
from feduhb_reproduction.cells import RETRAIN, Track
from feduhb_reproduction.report.federations import Federation

UHB, UHB_ON = "feduhb", "feduhb-on"
TREES = "boosted trees"  # the attacker of the paper's MISR
ACCURACY = "test_accuracy"
COARSE = 2.0  # times a server step, from which on the next one tried is far away
WARM = 5  # times a run's median round, beyond which the odd round was compiling or the like
ODD = 0.05  # of a run's rounds, and one at least
COMPILED = f"In a total, the odd round of more than {WARM} times its run's median (one in {1 / ODD:.0f} at most) counts as the median: most likely it compiled kernels."


@dataclass(frozen=True, slots=True)
class Spread:
    """A number's values, one a seed."""

    values: tuple[float, ...] = ()

    @property
    def n(self) -> int:
        """How many seeds stand behind it."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Over the seeds; None where there is none."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """The sample's standard deviation; None under two seeds."""
        return statistics.stdev(self.values) if self.n > 1 else None


@dataclass(frozen=True, slots=True)
class Reached:
    """The first round at which a run had an accuracy, counted from 1, by seed; None: in no round of it."""

    rounds: Mapping[int, int | None]

    @property
    def spread(self) -> Spread:
        """The rounds of the seeds that got there."""
        return _known(self.rounds.values())

    @property
    def n(self) -> int:
        """How many seeds were asked."""
        return len(self.rounds)

    @property
    def hits(self) -> int:
        """How many got there."""
        return self.spread.n

    @property
    def mean(self) -> float | None:
        """Over the seeds that got there."""
        return self.spread.mean

    @property
    def all(self) -> bool:
        """Whether every seed got there, and there is one."""
        return 0 < self.n == self.hits


@dataclass(frozen=True, slots=True)
class Stops:
    """Where a stop rule would have ended a federation's runs, by seed; None: it does not fire."""

    rounds: Mapping[int, int | None]
    executed: Spread  # rounds; all of them where the rule does not fire
    accuracy: Spread  # on test data after them

    @property
    def n(self) -> int:
        """How many seeds were replayed."""
        return len(self.rounds)

    @property
    def fires(self) -> int:
        """In how many the rule fires."""
        return sum(ended is not None for ended in self.rounds.values())


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of clients and server, evaluation apart, of the cells that had their machine to themselves."""

    per_round: Spread  # the median over a run's executed rounds, as they are
    total: Spread  # of a machine that is warm: see `steady`
    per_scheduled: Spread  # the total over the rounds that were scheduled, run or not
    rounds: Spread  # executed
    quartiles: tuple[Spread, Spread]  # of a run's executed rounds


class Misr(NamedTuple):
    """How often the attacker says member: of the forgotten data, and of test data, which nobody trained on."""

    called: Spread
    on_test: Spread


def final(federation: Federation, run: str, series: str = ACCURACY) -> Spread:
    """Give the last value of a series."""
    return _known(_last(track, series) for track in federation.tracks(run).values())


def score(federation: Federation, run: str, name: str) -> Spread:
    """Give a score of the final model."""
    return _known(track.scores.get(name) for track in federation.tracks(run).values())


def total(federation: Federation, run: str, name: str) -> Spread:
    """Give a sum over a run; "rounds" are those executed."""
    tracks = federation.tracks(run).values()
    return _known(float(t.rounds) if name == "rounds" else t.sums.get(name) for t in tracks)


def asr(federation: Federation, run: str) -> Spread:
    """Give how often the trigger works on the final model."""
    return final(federation, run, "backdoor")


def attackers(federation: Federation) -> list[str]:
    """Name those who tried, the paper's first."""
    found = dict.fromkeys(name for cell in federation.cells for name in cell.misr)
    return sorted(found, key=lambda name: name != TREES)


def misr(federation: Federation, run: str, attacker: str = TREES) -> Misr:
    """Give one attacker's success on one run's final model."""
    whole = federation.tracks(run)
    pairs = [c.misr.get(attacker, {}).get(run) for c in federation.cells if c.place.seed in whole]
    return Misr(*(_known(pair[side] for pair in pairs if pair) for side in (0, 1)))


def reached(federation: Federation, run: str, goal: float | None = None) -> Reached:
    """Give the first round with that test accuracy; None: the final one of the same seed's Retrain.

    A run that broke off counts with the rounds it has; a seed without a Retrain to reach is left out.
    """
    return _when(federation, run, goal, lambda track, level: _first(track.of(ACCURACY), level))


def stays(federation: Federation, run: str, goal: float | None = None) -> Reached:
    """Give the first round from which on the test accuracy is never below that again; None as in `reached`.

    A run that broke off does not stay.
    """

    def look(track: Track, level: float) -> int | None:
        return None if track.failed else _from(track.of(ACCURACY), level)

    return _when(federation, run, goal, look)


def _when(
    federation: Federation,
    run: str,
    goal: float | None,
    look: Callable[[Track, float], int | None],
) -> Reached:
    goals = {seed: _last(track, ACCURACY) for seed, track in federation.tracks(RETRAIN).items()}
    found = {
        seed: (track, goals.get(seed) if goal is None else goal)
        for seed, track in federation.every(run).items()
    }
    return Reached({seed: look(track, level) for seed, (track, level) in found.items() if level is not None})


def _from(values: Sequence[float], level: float) -> int | None:
    late = next((n for n in range(len(values), 0, -1) if not values[n - 1] >= level), 0) + 1
    return late if late <= len(values) else None


def stops(
    federation: Federation, run: str = UHB_ON, *, scale: float | None = None, window: int | None = None
) -> Stops:
    """Replay the stop rule on the recorded movements; no scale: the grid's own lambda."""
    rule = dynamic_stop(federation.cells[0].place.scale if scale is None else scale, window=window)
    tracks = federation.tracks(run)
    rounds = {seed: replay(rule, track.of("moved")) for seed, track in tracks.items()}
    ends = [(track, rounds[seed] or track.rounds) for seed, track in tracks.items()]
    return Stops(
        rounds, Spread(tuple(float(end) for _, end in ends)), _known(_at(track, end) for track, end in ends)
    )


def within(found: Reached, ends: Stops) -> Reached:
    """Count only what was reached in rounds that the rule lets happen."""
    last = {seed: ends.rounds.get(seed) for seed in found.rounds}
    return Reached(
        {seed: n if n is None or n <= (last[seed] or n) else None for seed, n in found.rounds.items()}
    )


def over(federation: Federation, run: str, other: str, series: str = ACCURACY) -> Spread:
    """Give by how much a run's last value is above another's of the same seed."""
    ones, others = federation.tracks(run), federation.tracks(other)
    pairs = [(_last(ones[seed], series), _last(others[seed], series)) for seed in ones if seed in others]
    return _known(a - b for a, b in pairs if a is not None and b is not None)


def times(federation: Federation, run: str) -> Times | None:
    """Give a run's seconds; None where no cell of it was timed."""
    timed = federation.timed
    tracks = [] if timed is None else [track for track in timed.tracks(run).values() if seconds(track)]
    if not tracks:
        return None
    took = [seconds(track) for track in tracks]
    totals = [math.fsum(steady(each)) for each in took]
    return Times(
        Spread(tuple(statistics.median(each) for each in took)),
        Spread(tuple(totals)),
        Spread(tuple(each / federation.rounds for each in totals)),
        Spread(tuple(float(len(each)) for each in took)),
        (
            Spread(tuple(_quartile(each, 0) for each in took)),
            Spread(tuple(_quartile(each, 2) for each in took)),
        ),
    )


def _quartile(took: Sequence[float], which: int) -> float:
    return statistics.quantiles(took, method="inclusive")[which] if len(took) > 1 else took[0]


def steady(took: Sequence[float]) -> list[float]:
    """Let the odd round that took far longer than the median take the median; where many did, they are what the run does."""
    usual = statistics.median(took)
    odd = sum(one > WARM * usual for one in took)
    return [usual if one > WARM * usual and odd <= max(1, ODD * len(took)) else one for one in took]


def seconds(track: Track) -> list[float]:
    """Give each round's seconds, of clients and server."""
    return [a + b for a, b in zip(track.of("client_seconds"), track.of("server_seconds"), strict=True)]


def momenta(federation: Federation) -> dict[float, str]:
    """Name the run of each beta, none of them under a stop rule; beta 0 is Retrain."""
    own = federation.cells[0].place.momentum
    return _swept(federation, "momentum-", {0.0: RETRAIN, own: UHB_ON})


def steps(federation: Federation) -> dict[float, str]:
    """Name the run of each server step of FedAvg; step 1 is Retrain."""
    return _swept(federation, "step-", {1.0: RETRAIN})


def best_step(federation: Federation) -> float | None:
    """Give the server step with the best mean test accuracy; None where no step but 1 was tried.

    Chosen on the test data, which favours it. A step that broke off with any seed is none to choose.
    """
    tried = {step: run for step, run in steps(federation).items() if not federation.failed(run)}
    means = {step: mean for step, run in tried.items() if (mean := final(federation, run).mean) is not None}
    return max(means, key=means.__getitem__) if len(steps(federation)) > 1 and means else None


def untried(federation: Federation, *chosen: float) -> str:
    """Say which server steps near a chosen one were not tried; nothing where it stands between others, less than a factor of 2 away."""
    tried = list(steps(federation))
    gaps = dict.fromkeys(gap for step in chosen for gap in _gaps(tried, step))
    if not gaps:
        return ""
    return f"against the steps tried ({', '.join(f'{step:g}' for step in tried)}); none {' and none '.join(gaps)} was"


def _gaps(tried: Sequence[float], step: float) -> list[str]:
    lower, upper = [one for one in tried if one < step], [one for one in tried if one > step]
    below = [] if lower and step < COARSE * lower[-1] else [(lower[-1] if lower else None, step)]
    above = [] if upper and upper[0] < COARSE * step else [(step, upper[0] if upper else None)]
    return [
        f"under {b:g}" if a is None else f"over {a:g}" if b is None else f"between {a:g} and {b:g}"
        for a, b in (*below, *above)
        if b is not None or a is not None
    ]


def work(federation: Federation, run: str, found: Reached) -> Spread:
    """Give the epochs of all clients up to a round, of the seeds that got there; the whole run's, where rounds differ in work.

    FedEraser's first round asks no client; FedRecover asks all of them in some rounds and few in others.
    """
    tracks = {seed: (federation.every(run)[seed], n) for seed, n in found.rounds.items() if n is not None}
    return _known(_epochs(run, track, n) for track, n in tracks.values())


def _epochs(run: str, track: Track, n: int) -> float | None:
    whole = track.sums.get("client_epochs")
    if whole is None or run.startswith("fedrecover"):
        return whole
    idle = 1 if run == "federaser" else 0
    return whole * (n - idle) / max(1, track.rounds - idle)


def _swept(federation: Federation, prefix: str, known: Mapping[float, str]) -> dict[float, str]:
    names = dict.fromkeys(name for cell in federation.cells for name in cell.runs if name.startswith(prefix))
    found = {float(name.removeprefix(prefix)): name for name in names}
    there = {value: name for value, name in known.items() if federation.has(name)}
    return dict(sorted({**found, **there}.items()))


def _last(track: Track, series: str) -> float | None:
    values = track.of(series)
    return values[-1] if values and math.isfinite(values[-1]) else None


def _at(track: Track, end: int) -> float | None:
    values = track.of(ACCURACY)
    return values[end - 1] if len(values) >= end else None


def _first(values: Sequence[float], goal: float) -> int | None:
    return next((n for n, value in enumerate(values, 1) if value >= goal), None)


def _known(values: Iterable[float | None]) -> Spread:
    return Spread(tuple(value for value in values if value is not None))
