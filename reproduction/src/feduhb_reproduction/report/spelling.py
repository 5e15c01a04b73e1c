"""How numbers over seeds are spelled: the mean, its spread, and how many seeds stand behind it."""

from __future__ import annotations

from collections.abc import Callable

from feduhb.report.grids import NOTHING
from feduhb.report.words import number, percent
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import Reached, Spread, Stops

PLUS = "Numbers are means over the seeds ± their standard deviation; no ± where there is one seed, or where all agree."

RULED = "“FedUHB, under its rule” ends where the stop rule fires; “rule off” is the same run gone on to the last round."


def shares(spread: Spread) -> str:
    """Spell shares: 93.2% ± 0.4, the spread in points."""
    return _spelled(spread, percent, lambda sd: f"{100 * sd:.1f}")


def numbers(spread: Spread) -> str:
    """Spell numbers to three digits."""
    return _spelled(spread, number, lambda sd: f"{sd:.2g}")


def counts(spread: Spread) -> str:
    """Spell whole numbers, with a digit after the point where seeds differ."""
    same = len(set(spread.values)) == 1
    return _spelled(spread, lambda mean: f"{mean:,.0f}" if same else f"{mean:,.1f}", lambda sd: f"{sd:.1f}")


def points(spread: Spread) -> str:
    """Spell differences of shares in points, with their sign."""
    return _spelled(spread, lambda mean: f"{100 * mean:+.1f}", lambda sd: f"{100 * sd:.1f}")


def ratio(one: Spread, other: Spread) -> str:
    """Spell how many times the other mean the one is."""
    return NOTHING if one.mean is None or not other.mean else f"{one.mean / other.mean:.2f}"


def arrived(found: Reached) -> str:
    """Spell the round at which seeds got somewhere, and how many did, where not all did."""
    if not found.n:
        return NOTHING
    if not found.hits:
        return "never"
    return counts(found.spread) + ("" if found.all else f" ({found.hits} of {found.n})")


def fired(found: Stops) -> str:
    """Spell in how many seeds a rule fires."""
    return f"{found.fires} of {found.n}" if found.n else NOTHING


def seeded(federation: Federation, run: str) -> str:
    """Spell how many seeds stand behind a run's numbers, and how many broke off."""
    whole, broken = len(federation.tracks(run)), len(federation.failed(run))
    return f"{whole}" + (f" ({broken} broke off)" if broken else "")


def _spelled(spread: Spread, mean: Callable[[float], str], sd: Callable[[float], str]) -> str:
    if spread.mean is None:
        return NOTHING
    return mean(spread.mean) + ("" if spread.sd is None or not spread.sd else f" ± {sd(spread.sd)}")
