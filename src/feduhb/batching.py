"""How to batch a stream of erasure requests: policies, simulated over many years. This module does not import torch.

Requests arrive as a Poisson process. One worker serves them in batches: a batch takes a fixed time, whatever its size, and
forgets every request that was waiting when it began. A request that arrives later waits for the next batch. The delay of a
request is the time from its arrival to the end of its batch. All times are in hours.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feduhb.errors import ConfigError
from feduhb.runs.folder import ROUNDS, RunFolder, measure_pace
from feduhb.runs.scores import format_number

DAY, WEEK, YEAR = 24.0, 168.0, 8760.0  # a year has 365 days
UNITS = {
    "s": 1 / 3600, "second": 1 / 3600, "min": 1 / 60, "minute": 1 / 60, "h": 1.0, "hour": 1.0, "d": DAY, "day": DAY,
    "w": WEEK, "week": WEEK, "month": YEAR / 12, "y": YEAR, "year": YEAR,
}  # fmt: skip
DEADLINE = 30 * DAY
MARGIN = 0.1  # of the deadline
YEARS = 200
GROUPS = 20  # of years: their spread gives the standard errors
MOST_REQUESTS = 2_000_000  # in one simulation
LONGEST = 100 * YEAR  # hours of a batch or a deadline
TINY = 1e-9  # hours; a delay that exceeds the deadline by less does so by rounding


@dataclass(frozen=True, slots=True)
class Service:
    """What it takes to serve one batch."""

    hours: float
    client_epochs: float | None = None  # None: not known
    bytes: float | None = None  # down and up
    says: str = ""  # where these numbers come from


@dataclass(frozen=True, slots=True)
class Policy:
    """When the worker starts a batch."""

    name: str
    says: str
    # A function of the arrival of the oldest waiting request, and of the time at which the worker is free.
    start: Callable[[float, float], float]
    longest: float  # no request can wait longer, however requests arrive


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean or a quantile over the simulated years, with its standard error; None if too few years had a request."""

    value: float
    error: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy costs in a year, and how long requests wait."""

    policy: str
    says: str  # when a batch starts
    unlearnings: Measure  # in a year, as the other costs
    machine_hours: Measure
    client_epochs: Measure | None
    bytes: Measure | None
    mean_delay: Measure
    median_delay: Measure
    delay_95: Measure  # 95 % of the requests wait at most this long
    longest_delay: float  # of any simulated request
    longest_possible: float  # however requests arrive
    missed: Measure  # requests in a year that are served after the deadline
    missed_share: Measure


@dataclass(frozen=True, slots=True)
class Simulation:
    """The outcomes of all policies, each with the same requests."""

    rate: float  # expected requests in a year
    service: Service
    deadline: float
    margin: float
    years: int
    seed: int
    requests: Measure  # in a year, as simulated
    outcomes: tuple[Outcome, ...]

    @property
    def best(self) -> Outcome:
        """The policy with the fewest unlearnings among those that miss the fewest deadlines."""
        return min(self.outcomes, key=lambda one: (one.missed.value, one.unlearnings.value))

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        if not self.requests.value:
            return (
                f"No request arrived in {self.years} simulated years, because {self.rate:.2g} a year are expected: no policy is better "
                "than another; simulate more years."
            )
        first, best, share = self.outcomes[0], self.best, self.best.missed_share.value
        counts = [format_number(one.value) for one in (best.unlearnings, self.requests, first.unlearnings)]
        beside = "" if best is first else f" ({first.policy}: {counts[2]} unlearnings)"
        is_fewest = any(one.missed.value > best.missed.value for one in self.outcomes)
        among = "the fewest" if is_fewest else "as by every policy"
        missed = f"{share:.1%} of them miss the deadline, {among}" if share else "none misses its deadline"
        return f"Started {best.policy}, {counts[0]} unlearnings a year serve {counts[1]} requests{beside}; {missed}."

    def as_json(self) -> dict[str, Any]:
        """Return every number, for `json.dumps`. Times are in hours."""
        return {**asdict(self), "best": self.best.policy, "headline": self.headline}


def simulate(
    rate: float,
    service: Service,
    *,
    deadline: float = DEADLINE,
    margin: float | None = None,
    years: int = YEARS,
    seed: int = 0,
) -> Simulation:
    """Serve the same requests by every policy; return costs, delays and missed deadlines.

    Args:
        rate: the expected number of requests in an hour, see `parse_rate`.
        service: what one batch takes, see `read_service`.
        deadline: the delay that no request should exceed, see `parse_hours`.
        margin: "by deadline" plans to finish this long before the deadline; None is a tenth of it.
        years: how many independent years are simulated, each beginning without waiting requests.
        seed: of the arrivals.
    """
    margin = MARGIN * deadline if margin is None else margin
    _check(rate, service, deadline, margin, years, seed)
    arrivals = [draw_arrivals(rate, seed, year) for year in range(years)]
    policies = list_policies(service.hours, deadline, margin)
    return Simulation(
        rate=rate * YEAR,
        service=service,
        deadline=deadline,
        margin=margin,
        years=years,
        seed=seed,
        requests=_count([len(times) for times in arrivals]),
        outcomes=tuple(_measure(policy, arrivals, service, deadline) for policy in policies),
    )


def list_policies(service: float, deadline: float, margin: float) -> list[Policy]:
    """Return the policies for batches of ``service`` hours.

    The longest delay is that of a request that arrives just after a batch began, or just after a fixed time.
    """
    wait = max(0.0, deadline - margin - service)
    held = (
        f"when the oldest request has waited {format_hours(wait)}"
        if wait
        else "when the worker is free because there is no time to wait"
    )
    return [
        Policy("at once", "when the worker is free", max, 2 * service),
        _start_at("nightly", "every midnight", DAY, service),
        _start_at("weekly", "every seventh midnight", WEEK, service),
        Policy(
            "by deadline", held, lambda oldest, free: max(oldest + wait, free), max(wait, service) + service
        ),
    ]


def _start_at(name: str, says: str, period: float, service: float) -> Policy:
    """Return the policy that starts batches at multiples of a period."""
    return Policy(
        name,
        says,
        lambda oldest, free: math.ceil(max(oldest, free) / period) * period,
        max(1, math.ceil(service / period)) * period + service,
    )


def draw_arrivals(rate: float, seed: int, year: int) -> list[float]:
    """Return the arrivals of a Poisson process in one year, sorted; every year has a draw of its own."""
    draw = np.random.default_rng([seed, year])
    return np.sort(draw.uniform(0.0, YEAR, draw.poisson(rate * YEAR))).tolist()


def serve(arrivals: Sequence[float], policy: Policy, service: float) -> tuple[list[float], int]:
    """Return the delay of every request, and the number of batches that served them."""
    delays: list[float] = []
    free, batches = 0.0, 0
    while (first := len(delays)) < len(arrivals):
        began = policy.start(arrivals[first], free)
        free, batches = began + service, batches + 1
        delays += [free - time for time in arrivals[first : bisect_right(arrivals, began)]]
    return delays, batches


def _measure(
    policy: Policy, arrivals: Sequence[Sequence[float]], service: Service, deadline: float
) -> Outcome:
    """Serve the requests of all years and summarize them."""
    served = [serve(times, policy, service.hours) for times in arrivals]
    delays = [np.array(found) for found, _ in served]
    late = [np.asarray(found > deadline + TINY, dtype=float) for found in delays]
    batches = _count([count for _, count in served])

    def scale(each: float) -> Measure:
        return Measure(batches.value * each, None if batches.error is None else batches.error * each)

    return Outcome(
        policy=policy.name,
        says=policy.says,
        unlearnings=batches,
        machine_hours=scale(service.hours),
        client_epochs=None if service.client_epochs is None else scale(service.client_epochs),
        bytes=None if service.bytes is None else scale(service.bytes),
        mean_delay=_summarize(delays, np.mean),
        median_delay=_summarize(delays, np.median),
        delay_95=_summarize(delays, lambda values: np.quantile(values, 0.95)),
        longest_delay=max((float(found.max()) for found in delays if len(found)), default=0.0),
        longest_possible=policy.longest,
        missed=_count([found.sum() for found in late]),
        missed_share=_summarize(late, np.mean),
    )


def _count(numbers: Sequence[float]) -> Measure:
    """Return the mean of a count in each year."""
    return _summarize([np.array([number], dtype=float) for number in numbers], np.mean)


def _summarize(years: Sequence[np.ndarray], statistic: Callable[[np.ndarray], Any]) -> Measure:
    """Return a statistic of the values of all years, with a standard error from groups of years; 0 without any value."""
    groups = [np.concatenate(years[place::GROUPS]) for place in range(min(GROUPS, len(years)))]
    filled = [group for group in groups if len(group)]
    if not filled:
        return Measure(0.0, None)
    found = [float(statistic(group)) for group in filled]
    error = float(np.std(found, ddof=1) / math.sqrt(len(found))) if len(found) > 1 else None
    return Measure(float(statistic(np.concatenate(filled))), error)


def _check(rate: float, service: Service, deadline: float, margin: float, years: int, seed: int) -> None:
    """Raise ConfigError for numbers that cannot be simulated."""
    if not 0 < rate < math.inf:
        raise ConfigError(f"the rate is {rate:g} an hour; give a positive number of requests, such as 2/week")
    if not 0 <= service.hours <= LONGEST:
        raise ConfigError(
            f"a batch takes {service.hours:g} hours; give at least 0 and at most {LONGEST:,.0f}"
        )
    if not 0 < deadline <= LONGEST:
        raise ConfigError(
            f"the deadline is {deadline:g} hours; give a positive time of at most {LONGEST:,.0f} hours, such as 30d"
        )
    if not 0 <= margin < deadline:
        raise ConfigError(
            f"the margin is {margin:g} hours; give less than the deadline of {deadline:g} hours"
        )
    if years < 2:
        raise ConfigError(f"years is {years}; give 2 or more, because standard errors need several")
    if seed < 0:
        raise ConfigError(f"the seed is {seed}; give 0 or more")
    if rate * YEAR * years > MOST_REQUESTS:
        raise ConfigError(
            f"{rate * YEAR * years:,.0f} requests are too many to simulate, at most {MOST_REQUESTS:,} can be; give fewer years, or "
            "a lower rate"
        )


def parse_hours(text: str) -> float:
    """Parse a time such as 30d, 12h, 90min or 2 weeks; return hours."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", text.lower())
    if found is None or found[2] not in UNITS:
        raise ConfigError(
            f"{text!r} is not a time; write a number with min, h, d, w, month or year, such as 30d"
        )
    return float(found[1]) * UNITS[found[2]]


def parse_rate(text: str) -> float:
    """Parse a rate such as 2/week or 0.5/day; return requests in an hour."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*([a-z]+)\s*", text.lower())
    if found is None or found[2] not in UNITS or float(found[1]) <= 0:
        raise ConfigError(
            f"{text!r} is not a rate; write requests per hour, day, week, month or year, such as 2/week"
        )
    return float(found[1]) / UNITS[found[2]]


def choose_unit(hours: float) -> tuple[str, float]:
    """Return the name and the hours of the largest unit that fits twice into a time; seconds if none does."""
    units = (("days", DAY), ("hours", 1.0), ("minutes", 1 / 60))
    return next((one for one in units if hours >= 2 * one[1]), ("seconds", 1 / 3600))


def format_hours(hours: float) -> str:
    """Format a time in a unit that suits it."""
    name, unit = choose_unit(hours)
    return f"{format_number(hours / unit) if hours else 0} {name}"


def read_service(folder: Path, *, rounds: int | None = None, hours: float | None = None) -> Service:
    """Return what one unlearning takes by the records of a run, if every client of that run still takes part.

    Args:
        folder: of a training, or of an unlearning by an exact method.
        rounds: of the unlearning; None is what that run took if it is an unlearning, else 40. Of a rollback, it is all rounds
            of the training, because how many of them are repeated depends on the request.
        hours: that a batch takes, in place of the recorded seconds of clients, server and evaluation.
    """
    files = RunFolder(folder)
    config, result = files.config(), files.result()
    restart = result.get("restart_round")
    records = files.rounds()[restart or 0 :]  # a rollback inherits the others
    if not result["exact"]:
        raise ConfigError(
            f"{folder} was made by {result['method']}, which is not exact: the first erasure of a stream deletes a history or a "
            "model that it needs. Give a training, or an unlearning by an exact method"
        )
    if rounds is not None and rounds < 1:
        raise ConfigError(f"rounds is {rounds}; give 1 or more")
    if not records:
        raise ConfigError(
            f"{folder} did no round itself, so it does not tell what a batch takes; give the training"
        )
    count = rounds or (result["rounds"] if "unlearn" in config else ROUNDS)
    pace = measure_pace(
        [1.0] * len(records), [r.client_seconds + r.server_seconds + r.evaluate_seconds for r in records]
    )
    if hours is None:
        if pace is None:
            raise ConfigError(f"{folder} recorded no seconds; say how long a batch takes: --hours 3")
        spent = pace.expect(count) / 3600
    else:
        spent = hours
    share = count / len(records)
    is_sure = "unlearn" in config and rounds is None and restart is None
    most = "" if is_sure else "at most "
    source = f"at the pace of {folder}" if hours is None else f"with the messages of {folder}"
    return Service(
        hours=spent,
        client_epochs=share * result["client_epochs"],
        bytes=share * (result["bytes_down"] + result["bytes_up"]),
        says=f"one batch takes {format_hours(spent)}: {most}{count} rounds {source}",
    )
