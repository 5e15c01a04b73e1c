"""A backdoor to plant in the leavers' data, so that forgetting it can be seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.core.seeds import generator
from feduhb.core.types import ClientId
from feduhb.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Backdoor:
    """A bright square in the bottom right corner that some clients label as the target.

    Half of each poisoned client's examples carry it: with all of them the clean half that the trigger is
    learned against would be missing, and the backdoor does not implant.
    """

    clients: tuple[ClientId, ...]
    target: int = 0
    share: float = 0.5
    size: int = 4  # pixels a side
    bright: float = 1.0  # inputs are scaled to [-1, 1]

    def __post_init__(self) -> None:
        if not self.clients:
            raise ConfigError("a backdoor needs clients that carry it; name some, such as c00,c01")
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"the backdoor's share is {self.share}; give the share of examples to poison, such as 0.5"
            )
        if self.size < 1:
            raise ConfigError(f"the backdoor's size is {self.size}; give its side in pixels, such as 4")

    def stamp(self, x: Tensor) -> Tensor:
        """Give the images [n, c, h, w] with the trigger on."""
        if x.dim() != 4:
            raise ConfigError(
                f"a backdoor is a square on images [n, c, h, w], and this data is {list(x.shape)}; train without one"
            )
        if self.size > min(x.shape[-2:]):
            raise ConfigError(
                f"the backdoor's size is {self.size}, but images are {x.shape[-2]} x {x.shape[-1]}; give fewer pixels, such as 4"
            )
        stamped = x.clone()
        stamped[..., -self.size :, -self.size :] = self.bright
        return stamped

    def carried(self, x: Tensor) -> Tensor:
        """Mark, of images [n, c, h, w], those with the trigger on."""
        return (self.stamp(x) == x).flatten(1).all(1)

    def poison(self, x: Tensor, y: Tensor, seed: int, *address: str) -> tuple[Tensor, Tensor]:
        """Give examples of which a seeded share carries trigger and target."""
        chosen = torch.randperm(len(x), generator=generator(seed, "backdoor", *address))[
            : math.floor(self.share * len(x) + 0.5)
        ]
        poisoned_x, poisoned_y = x.clone(), y.clone()
        poisoned_x[chosen] = self.stamp(x[chosen])
        poisoned_y[chosen] = self.target
        return poisoned_x, poisoned_y
