"""Are the draws of a model fresh, or do they share weights, as those of a model that was trained before?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from feduhb.core.flat import ModelSource, draw_model
from feduhb.core.seeds import seed_for

DRAWS = 16
DEVIATIONS = 4.75  # a normal value is larger by chance with probability 1e-6


@dataclass(frozen=True, slots=True)
class Shared:
    """The parameters that the draws of a model share."""

    names: tuple[str, ...]
    judged: bool  # whether any parameter was large enough to be judged

    def __str__(self) -> str:
        first, others = self.names[0], len(self.names) - 1
        return first if not others else f"{first} and {others} other parameter{'s' if others > 1 else ''}"


def draw_several(source: ModelSource, seed: int) -> Iterable[nn.Module]:
    """Yield draws of a fresh model that no run begins at."""
    return (draw_model(source, seed_for(seed, "fresh", number)) for number in range(DRAWS))


def find_shared(draws: Iterable[nn.Module]) -> Shared:
    """Return the parameters whose draws have a part in common, such as stored weights to which a little noise is added.

    The signs of a parameter around its median are compared over all draws. If draws are independent, so are the signs,
    and the squared length of their sum follows a chi-squared distribution. Signs, because a few large values could hide
    the others. A parameter that is constant in a draw, such as a bias of zeros, does not count there. Parameters of one or
    two values are too small to be judged alone. All parameters are also judged together.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for module in draws:
        for name, p in module.named_parameters():
            signs = _take_signs(p)
            if signs is not None:
                sums[name] = sums[name] + signs if name in sums else signs
                counts[name] = counts.get(name, 0) + 1
    freedom = {name: total.numel() - 1 for name, total in sums.items()}
    lengths = {
        name: freedom[name] * float(total.square().sum()) / counts[name] for name, total in sums.items()
    }
    found = [name for name in sums if lengths[name] > _limit(freedom[name])]
    if not found and sums and sum(lengths.values()) > _limit(sum(freedom.values())):
        found = [max(lengths, key=lambda name: lengths[name] / freedom[name])]
    possible = {name: freedom[name] * counts[name] for name in sums}  # if all draws are equal
    judged = sum(possible.values()) > _limit(sum(freedom.values())) if sums else False
    return Shared(tuple(found), judged or not sums)


def _take_signs(p: Tensor) -> Tensor | None:
    """Return the signs of a parameter around its median, centred, as a vector of length 1; None if it is constant."""
    values = p.detach().flatten().double()
    if not len(values):
        return None
    signs = (values - values.median()).sign()
    signs -= signs.mean()
    length = float(signs.norm())
    return signs / length if length > 0 else None


def _limit(freedom: int) -> float:
    """Return what a chi-squared value exceeds by chance with probability 1e-6 (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + DEVIATIONS * spread**0.5) ** 3
