"""A recovery small enough to be followed round by round: five clients, two of whom leave."""

from __future__ import annotations

import torch

from feduhb.methods import FedRecover
from runs.remembering import Remembered

CLIENTS = ("a", "b", "c", "d", "e")
REMAINING = ("a", "c", "d")
START = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
EASY = {"warmup": 3, "buffer": 2, "correction": 0, "final": 0, "abnormal": 0.0, "epochs": 1}


def made(history: Remembered, **changes: float) -> FedRecover:
    """Return FedRecover with estimates from the fourth round on and no abnormality, unless ``changes`` differ."""
    return FedRecover(history=history, clients=REMAINING, **{**EASY, **changes})
