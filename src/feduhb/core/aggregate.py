"""Aggregation rules A, which combine the clients' updates into one step.

The weighted mean adds up a stream of blocks client by client, so that it holds one [P] sum and its result
does not depend on the size of the blocks. The robust rules need all updates [C, P] at once and refuse
summed answers.
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


class RunningMean:
    """The weighted mean of updates that are added client by client."""

    def __init__(self) -> None:
        self.total: Tensor | None = None  # [P]
        self.weight = 0.0

    def add(self, block: Updates) -> None:
        """Add the updates of a block."""
        for row, n in zip(block.values, block.weights.tolist(), strict=True):
            self.total = row * n if self.total is None else self.total.add_(row, alpha=n)
            self.weight += n

    def finish(self) -> Tensor:
        """Return the mean [P]; raise AggregationError if nothing was added. Nothing can be added after this."""
        if self.total is None or self.weight <= 0:
            raise AggregationError("no client sent an update to average; check which clients take part")
        return self.total.div_(self.weight)


def weighted_mean(answers: Iterable[Updates]) -> Tensor:
    """Return Σ (n_c / N) u_c. Reference: McMahan et al. 2017."""
    mean = RunningMean()
    for block in answers:
        mean.add(block)
        del block  # its memory is free while the clients work on the next one
    return mean.finish()


def median(answers: Iterable[Updates]) -> Tensor:
    """Return the coordinate-wise median, without weights. Reference: Yin et al. 2018."""
    values, _ = _gather(answers, "median")
    ranked, count = values.sort(dim=0).values, len(values)
    return (ranked[(count - 1) // 2] + ranked[count // 2]) / 2


def trimmed_mean(answers: Iterable[Updates], *, trim: float = 0.1) -> Tensor:
    """Return the mean of each coordinate without the share ``trim`` of its largest and smallest entries.

    If trim > 0 and at least three clients answer, at least one entry is cut at each end. Reference: Yin et al. 2018.
    """
    _check_parameter("trim", trim)
    values, _ = _gather(answers, "trimmed_mean")
    count = len(values)
    cut = int(trim * count + 1e-9) or int(trim > 0 and count > 2)
    return values.sort(dim=0).values[cut : count - cut].mean(dim=0)


def krum(answers: Iterable[Updates], *, hostile: int | None = None) -> Tensor:
    """Return the update that is closest to its C - f - 2 nearest neighbours, for up to f hostile clients.

    Args:
        hostile: f; None takes the largest f that Krum tolerates, which is the largest with 2 f + 2 < C.

    Reference: Blanchard et al. 2017.
    """
    _check_parameter("hostile", hostile or 0)
    values, _ = _gather(answers, "krum")
    count = len(values)
    most = (count - 3) // 2
    f = max(most, 0) if hostile is None else hostile
    if f > most:
        raise AggregationError(
            f"krum needs {2 * f + 3} updates for {f} hostile clients, but received {count}; use more clients, or median"
        )
    distance = torch.stack([(values - row).square().sum(dim=1) for row in values])  # [C, C]
    distance.fill_diagonal_(torch.inf)
    score = distance.sort(dim=1).values[:, : count - f - 2].sum(dim=1)
    return values[int(score.argmin())].clone()


def geometric_median(
    answers: Iterable[Updates], *, tolerance: float = 1e-10, iterations: int = 1000
) -> Tensor:
    """Return argmin_z Σ n_c ‖u_c - z‖, computed in float64 by Weiszfeld's iteration.

    The iteration converges slowly to a minimum that is one of the updates, so these are tried first: z = u_c is the
    minimum iff the other updates pull at it with at most the weight n_c (Vardi and Zhang 2000).

    Args:
        tolerance: stop once the remaining pull on z is at most this share of the total weight.
        iterations: the largest number of iterations.
    """
    values, weights = _gather(answers, "geometric_median")
    n = weights.double().to(values.device)
    centre = n @ values.double() / n.sum()
    points = values.double() - centre  # so that rounding errors scale with the spread, not the position
    spread = points.norm(dim=1).max()
    for point in points:
        if _weiszfeld_step(points, n, point, spread)[0] <= 0:
            return (centre + point).to(values.dtype)
    z = torch.zeros_like(centre)
    for _ in range(iterations):
        excess, step = _weiszfeld_step(points, n, z, spread)
        if excess <= tolerance * n.sum():
            break
        z = z + step
    return (centre + z).to(values.dtype)


def _weiszfeld_step(points: Tensor, n: Tensor, z: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return by how much the pull of the other points on z exceeds the weight at z, and Weiszfeld's step from z."""
    distance = (points - z).norm(dim=1)
    apart = distance > 1e-8 * spread
    pull = torch.where(apart, n / distance.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    step = pull @ (points - z)
    here, force = n[~apart].sum(), step.norm()
    held = (here / force.clamp_min(torch.finfo(torch.float64).tiny)).clamp(max=1.0)
    return force - here, step / pull.sum().clamp_min(torch.finfo(torch.float64).tiny) * (1 - held)


def _check_parameter(name: str, value: float) -> None:
    if name == "trim" and not 0 <= value < 0.5:
        raise ConfigError(f"trimmed_mean's trim is {value}; give a share of at least 0 and below 0.5")
    if name == "hostile" and value < 0:
        raise ConfigError(f"krum's hostile is {value}; give 0 or more")


def _gather(answers: Iterable[Updates], rule: str) -> tuple[Tensor, Tensor]:
    blocks = list(answers)
    if any(block.summed for block in blocks):
        raise AggregationError(
            f"{rule} needs every client's update, but received only their sum; use weighted_mean under secure aggregation"
        )
    if not any(block.clients for block in blocks):
        raise AggregationError(f"{rule} received no update to combine; check which clients take part")
    return torch.cat([b.values for b in blocks]), torch.cat([b.weights for b in blocks])


RULES: dict[str, tuple[Aggregate, str | None]] = {
    "weighted_mean": (weighted_mean, None),
    "median": (median, None),
    "trimmed_mean": (trimmed_mean, "trim"),
    "krum": (krum, "hostile"),
    "geometric_median": (geometric_median, None),
}
BUILT_IN = tuple(rule for rule, _ in RULES.values())  # what is added to RULES later is not of this package


def parse_rule(spec: str) -> Aggregate:
    """Return the rule with a name such as "median", "trimmed_mean:0.2" or "krum:3"."""
    if not isinstance(spec, str):
        raise ConfigError(
            f"aggregate is {spec!r}; give the name of a rule, such as 'median', or pass your function to a method: FedUHB(aggregate=...)"
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
    _check_parameter(parameter, number)
    return functools.partial(rule, **{parameter: number})


def format_rule(rule: Aggregate) -> str:
    """Return the text that `parse_rule` reads; for a rule of the user's, the name of its function."""
    if isinstance(rule, functools.partial):
        values = ",".join(str(value) for value in rule.keywords.values())
        return f"{format_rule(rule.func)}:{values}"
    return getattr(rule, "__name__", type(rule).__name__)


def is_built_in_rule(rule: Aggregate) -> bool:
    """Whether a rule is one of this package's functions, with or without a parameter."""
    return any(unwrap(rule) is known for known in BUILT_IN)


def unwrap(value: Any) -> Any:
    """Return the function inside a `functools.partial`. A subclass of partial may add code and is returned as it is."""
    return value.func if type(value) is functools.partial else value
