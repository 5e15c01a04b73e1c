"""Are the draws of a model fresh, or do they share weights, as those of a model that was trained before?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feduhb.core.flat import ModelSource, draw_model, is_plain
from feduhb.core.seeds import seed_for

DRAWS = 16
DEVIATIONS = 4.75  # a normal value is larger by chance with probability 1e-6
COMPARED = 4096  # values of a parameter
UNLIKELY = 14.5  # -ln(1e-6 / 2), of Kolmogorov and Smirnov's test


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
    return (draw_model(source, seed_for(seed, "fresh", number), check=False) for number in range(DRAWS))


def find_shared(draws: Iterable[nn.Module]) -> Shared:
    """Return the parameters whose draws have a part in common, such as stored weights to which a little noise is added.

    The signs of a parameter around its median are compared over all draws. If draws are independent, so are the signs,
    and the squared length of their sum follows a chi-squared distribution. Signs, because a few large values could hide
    the others. A parameter that is a plain constant in a draw, such as a bias of zeros, does not count there. Parameters of one or
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


def find_unlike(module: nn.Module, seed: int) -> str | None:
    """Return the name of a parameter of a module that does not look like a fresh draw of it, or None.

    A parameter that draws share, such as a bias of zeros, must be equal. Others are compared by the distribution of their
    values, so a parameter of a few values, or one that was trained only a little, may look like a draw.
    """
    one, other = (
        draw_model(module, seed_for(seed, "unlike", number), check=False).parameters() for number in range(2)
    )
    triples = zip(module.named_parameters(), one, other, strict=True)
    return next((name for (name, p), *drawn in triples if _is_unlike(p.detach().cpu(), drawn)), None)


def _is_unlike(p: Tensor, drawn: Sequence[Tensor]) -> bool:
    """Return whether a parameter differs from its draws, by Kolmogorov and Smirnov's test."""
    if torch.equal(*drawn):
        return not torch.equal(p, drawn[0])
    values = p.flatten()[:COMPARED].double()
    fresh = torch.cat([draw.detach().flatten()[:COMPARED] for draw in drawn]).double()
    here = torch.cat([values, fresh])
    shares = [
        torch.searchsorted(some.sort().values, here, right=True) / len(some) for some in (values, fresh)
    ]
    return (
        float((shares[0] - shares[1]).abs().max())
        > (UNLIKELY * (1 / len(values) + 1 / len(fresh)) / 2) ** 0.5
    )


def _take_signs(p: Tensor) -> Tensor | None:
    """Return the signs of a parameter around its median, centred, as a vector of length 1; None if it is a plain constant."""
    if is_plain(p):
        return None
    values = p.detach().flatten().double()
    signs = (values - values.median()).sign()
    signs -= signs.mean()
    length = float(signs.norm())
    return signs / length if length > 0 else None


def _limit(freedom: int) -> float:
    """Return what a chi-squared value exceeds by chance with probability 1e-6 (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + DEVIATIONS * spread**0.5) ** 3
