"""The rule A that makes one step out of the clients' updates.

The weighted mean folds a stream of blocks client by client: it holds one [P] sum whatever the number
of clients, and its result does not depend on how they were blocked. The robust rules need every
update at once and gather [C, P]; they cannot work on a pre-summed answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from feduhb.core.types import Updates
from feduhb.errors import AggregationError, ConfigError

Aggregate = Callable[[Iterable[Updates]], Tensor]


def weighted_mean(answers: Iterable[Updates]) -> Tensor:
    """Return Σ (n_c / N) u_c. Reference: McMahan et al. 2017."""
    total: Tensor | None = None  # [P]
    weight = 0.0
    for block in answers:
        for row, n in zip(block.values, block.weights.tolist(), strict=True):
            total = row * n if total is None else total.add_(row, alpha=n)
            weight += n
    if total is None or weight <= 0:
        raise AggregationError(
            "there is nothing to average: no client answered with any examples; check who takes part"
        )
    return total.div_(weight)


def median(answers: Iterable[Updates]) -> Tensor:
    """Return the coordinate-wise median, every client counted once. Reference: Yin et al. 2018."""
    values, _ = _gather(answers, "median")
    ranked, count = values.sort(dim=0).values, len(values)
    return (ranked[(count - 1) // 2] + ranked[count // 2]) / 2


def trimmed_mean(answers: Iterable[Updates], *, trim: float = 0.1) -> Tensor:
    """Return the mean of each coordinate without the share ``trim`` of largest and of smallest entries.

    At least one entry goes at each end when trim > 0 and three or more clients answer. Reference: Yin et al. 2018.
    """
    _check_trim(trim)
    values, _ = _gather(answers, "trimmed_mean")
    count = len(values)
    cut = int(trim * count + 1e-9) or int(trim > 0 and count > 2)
    return values.sort(dim=0).values[cut : count - cut].mean(dim=0)


def krum(answers: Iterable[Updates], *, hostile: int | None = None) -> Tensor:
    """Return the one update whose C - f - 2 nearest neighbours are nearest, for up to f hostile clients.

    Args:
        hostile: f; None takes the most that Krum withstands, the largest f with 2 f + 2 < C.

    Reference: Blanchard et al. 2017.
    """
    values, _ = _gather(answers, "krum")
    count = len(values)
    most = (count - 3) // 2
    f = most if hostile is None else hostile
    if hostile is not None:
        _check_hostile(hostile)
    if f < 0 or f > most:
        need = 3 if hostile is None else 2 * max(hostile, 0) + 3
        raise AggregationError(
            f"krum needs {need} answers for {max(f, 0)} hostile clients, but {count} came; ask more clients or use median"
        )
    distance = torch.stack([(values - row).square().sum(dim=1) for row in values])  # [C, C]
    distance.fill_diagonal_(torch.inf)
    score = distance.sort(dim=1).values[:, : count - f - 2].sum(dim=1)
    return values[int(score.argmin())].clone()


def geometric_median(
    answers: Iterable[Updates], *, tolerance: float = 1e-10, iterations: int = 1000
) -> Tensor:
    """Return argmin_z Σ n_c ‖u_c - z‖ in float64: a client's own update where that is the minimum, else by Weiszfeld's iteration.

    Args:
        tolerance: stop once the pulls on z balance to this share of all weight.
        iterations: stop after so many at the latest.

    z = u_c is the minimum iff the others pull at it with no more than the weight n_c (Vardi and Zhang 2000).
    Weiszfeld's iteration would creep towards such a point; it is looked at first.
    """
    values, weights = _gather(answers, "geometric_median")
    n = weights.double().to(values.device)
    centre = n @ values.double() / n.sum()
    points = values.double() - centre  # centred, so that rounding is that of the spread, not of the position
    spread = points.norm(dim=1).max()
    for point in points:
        if _unbalanced(points, n, point, spread)[0] <= 0:
            return (centre + point).to(values.dtype)
    z = torch.zeros_like(centre)
    for _ in range(iterations):
        excess, step = _unbalanced(points, n, z, spread)
        if excess <= tolerance * n.sum():
            break
        z = z + step
    return (centre + z).to(values.dtype)


def _unbalanced(points: Tensor, n: Tensor, z: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """How much harder the points pull at z than the weight that sits there holds it, and Weiszfeld's step from z."""
    distance = (points - z).norm(dim=1)
    apart = distance > 1e-8 * spread
    pull = torch.where(apart, n / distance.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    step = pull @ (points - z)
    here, force = n[~apart].sum(), step.norm()
    held = (here / force.clamp_min(torch.finfo(torch.float64).tiny)).clamp(max=1.0)
    return force - here, step / pull.sum().clamp_min(torch.finfo(torch.float64).tiny) * (1 - held)


def _check_trim(trim: float) -> None:
    if not 0 <= trim < 0.5:
        raise ConfigError(f"trimmed_mean's trim is {trim}; give a share of at least 0 and below 0.5")


def _check_hostile(hostile: float) -> None:
    if hostile < 0:
        raise ConfigError(f"krum's hostile is {hostile}; give 0 or more")


def _gather(answers: Iterable[Updates], rule: str) -> tuple[Tensor, Tensor]:
    blocks = list(answers)
    if any(block.summed for block in blocks):
        raise AggregationError(
            f"{rule} needs every client's update, but this answer is pre-summed; use weighted_mean under secure aggregation"
        )
    if not any(block.clients for block in blocks):
        raise AggregationError(f"{rule} has nothing to work on: no client answered; check who takes part")
    return torch.cat([b.values for b in blocks]), torch.cat([b.weights for b in blocks])


RULES: dict[str, tuple[Aggregate, str | None]] = {
    "weighted_mean": (weighted_mean, None),
    "median": (median, None),
    "trimmed_mean": (trimmed_mean, "trim"),
    "krum": (krum, "hostile"),
    "geometric_median": (geometric_median, None),
}


def parse_rule(spec: str) -> Aggregate:
    """Return the rule that a config names: "median", "trimmed_mean:0.2", "krum:3"."""
    if not isinstance(spec, str):
        raise ConfigError(
            "aggregate is the name of a rule, such as 'median'; to use a function of your own, pass it to a method: FedUHB(aggregate=...)"
        )
    name, _, value = spec.partition(":")
    if name not in RULES:
        raise ConfigError(f"there is no aggregation rule {name!r}; choose one of {', '.join(RULES)}")
    rule, parameter = RULES[name]
    if not value:
        return rule
    if parameter is None:
        raise ConfigError(f"{name} takes no parameter, but {spec!r} gives one; write {name!r}")
    try:
        number = int(value) if parameter == "hostile" else float(value)
    except ValueError:
        raise ConfigError(
            f"{spec!r}: {value!r} is not a number for {parameter}; write for example {name}:{3 if parameter == 'hostile' else 0.2}"
        ) from None
    (_check_hostile if parameter == "hostile" else _check_trim)(number)
    return functools.partial(rule, **{parameter: number})


def format_rule(rule: Aggregate) -> str:
    """Return the text that `parse_rule` reads for a rule; a rule of the user is named by its function."""
    if isinstance(rule, functools.partial):
        values = ",".join(str(value) for value in rule.keywords.values())
        return f"{format_rule(rule.func)}:{values}"
    return getattr(rule, "__name__", type(rule).__name__)


def is_built_in_rule(rule: Aggregate) -> bool:
    """Whether a rule is one of this package's, by identity."""
    return any(unwrap(rule) is known for known, _ in RULES.values())


def unwrap(value: Any) -> Any:
    """Return the function inside a partial one; a subclass of partial is code of its own, and stays."""
    return value.func if type(value) is functools.partial else value
