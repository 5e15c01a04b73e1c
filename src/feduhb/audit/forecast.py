"""The forecast of an audit: its power with these numbers of examples, and the numbers that a power of 80 % needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from feduhb.audit.result import Forecast
from feduhb.audit.statistics import NORMAL, TOST, compute_power
from feduhb.audit.verdict import MARGIN
from feduhb.errors import ConfigError, DataError

WANTED = 0.8  # power


def forecast_power(
    sizes: Sequence[tuple[int, int]], margin: float = MARGIN, *, wanted: float = WANTED, on: str = "canaries"
) -> Forecast:
    """Return the power of a membership attack, and how many examples would give it the power ``wanted``.

    Power is the chance that a model which remembers nothing is found to be equivalent to chance, see `is_equivalent`. It
    depends on counts alone, so it is known before anything is trained. An audit may have more: if the audited model and
    Retrain rank examples alike, their paired difference is the sharper test. The standard error is Mann and Whitney's:

        se² = Σ w_c² (m + n + 1) / (12 m n) / (Σ w_c)²,   w_c = m n / (m + n)

    If all counts are multiplied by f, se² is a / f + b / f². The needed f solves se = g, g = margin / (1.645 + Φ⁻¹((1 + wanted) / 2)).
    If k such audits of other data are pooled, se² is (a + b) / k, so (a + b) / g² audits are needed.

    Args:
        sizes: for each client the number of members, such as canaries, and of held-out examples of the same kind.
        margin: an AUC within 0.5 ± margin counts as chance.
        wanted: a power above 0 and below 1.
        on: which examples, in words.
    """
    both = [(m, n) for m, n in sizes if m > 0 and n > 0]
    if not both:
        raise DataError(
            "a forecast needs a client with both members and held-out examples; give their numbers"
        )
    if not 0 < wanted < 1:
        raise ConfigError(f"the wanted power is {wanted}; give a share above 0 and below 1, such as 0.8")
    total = sum(m * n / (m + n) for m, n in both)
    shares = [m * n / (m + n) / total for m, n in both]
    a, b = (
        sum(
            share**2 * count / (12 * m * n) for share, (m, n), count in zip(shares, both, counts, strict=True)
        )
        for counts in ([m + n for m, n in both], [1] * len(both))
    )
    goal = margin / (NORMAL.inv_cdf((1 + TOST) / 2) + NORMAL.inv_cdf((1 + wanted) / 2))
    times = (a + math.sqrt(a * a + 4 * goal**2 * b)) / (2 * goal**2)
    members, others = sum(m for m, _ in both), sum(n for _, n in both)
    power = compute_power(math.sqrt(a + b), margin)
    needed = math.ceil(times * members), math.ceil(times * others)
    return Forecast(
        on=on, clients=len(both), members=members, others=others, margin=margin, power=power, wanted=wanted,
        needed_members=needed[0], needed_others=needed[1],
        says=f"Forecast for {on}: {members:,} member{'s'[: members != 1]} against {others:,} held-out example{'s'[: others != 1]} of {len(both)} "
        f"client{'s'[: len(both) != 1]}. A model that remembers nothing passes the test of equivalence to 0.5 ± {margin:g} "
        f"with a chance of {power:.0%}, or more if Retrain scores examples alike. {_advise((a + b) / goal**2, needed, wanted)}",
    )  # fmt: skip


def _advise(audits: float, needed: tuple[int, int], wanted: float) -> str:
    counts = f"A chance of {wanted:.0%} needs at most {needed[0]:,} against {needed[1]:,}"
    if audits <= 1:
        return f"{counts}: there are enough."
    return f"{counts}, or {math.ceil(audits)} audits like this one, of other seeds and data, pooled."
