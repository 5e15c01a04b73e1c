"""A backdoor in the data of some clients, which shows later whether their data was forgotten."""

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
    """A bright square in the bottom right corner of some clients' images, which get the target as their label.

    By default half of each poisoned client's examples carry it. If all of them did, the model could not tell the
    trigger from the rest of the image and would not learn it.
    """

    clients: tuple[ClientId, ...]
    target: int = 0
    share: float = 0.5
    size: int = 4  # pixels a side
    bright: float = 1.0  # inputs are scaled to [-1, 1]

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    def __post_init__(self) -> None:
        if not self.clients:
            raise ConfigError("a backdoor needs clients that carry it; name some, such as c00,c01")
        if not 0 < self.share <= 1:
            raise ConfigError(f"the backdoor's share is {self.share}; give a share above 0 and up to 1")
        if self.size < 1:
            raise ConfigError(f"the backdoor's size is {self.size}; give its side in pixels, such as 4")

    def stamp(self, x: Tensor) -> Tensor:
        """Return copies of images [n, c, h, w] with the trigger on them."""
        if not isinstance(x, Tensor) or x.dim() != 4:
            found = str(list(x.shape)) if isinstance(x, Tensor) else "several tensors"
            raise ConfigError(f"a backdoor needs images [n, c, h, w], not {found}; train without one")
        if self.size > min(x.shape[-2:]):
            raise ConfigError(
                f"the backdoor's size is {self.size}, but images are {x.shape[-2]} x {x.shape[-1]}; give fewer pixels, such as 4"
            )
        stamped = x.clone()
        stamped[..., -self.size :, -self.size :] = self.bright
        return stamped

    def detect(self, x: Tensor) -> Tensor:
        """Return a mask [n] of the images [n, c, h, w] that carry the trigger."""
        return (self.stamp(x) == x).flatten(1).all(1)

    def poison(self, x: Tensor, y: Tensor, seed: int, *address: str) -> tuple[Tensor, Tensor]:
        """Return copies of examples, with the trigger and the target on a share of them that the seed draws."""
        order = torch.randperm(len(x), generator=generator(seed, "backdoor", *address))
        chosen = order[: math.floor(self.share * len(x) + 0.5)]
        poisoned_x, poisoned_y = x.clone(), y.clone()
        poisoned_x[chosen] = self.stamp(x[chosen])
        poisoned_y[chosen] = self.target
        return poisoned_x, poisoned_y
