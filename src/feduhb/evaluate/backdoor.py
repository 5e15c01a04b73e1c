"""How often a planted trigger still works."""

from __future__ import annotations

import torch
from torch import Tensor

from feduhb.data.federation import Federation


def triggered(federation: Federation) -> tuple[Tensor, Tensor] | None:
    """Give the test images whose true label is not the target, stamped, with the target as their label.

    The share of them that a model takes for the target is the attack's success. A model that never saw
    the trigger has a success above zero too, its benign floor: read one beside the other.
    """
    if federation.backdoor is None:
        return None
    x, y = federation.test.all()
    others = y != federation.backdoor.target
    return federation.backdoor.stamp(x[others]), torch.full_like(y[others], federation.backdoor.target)
