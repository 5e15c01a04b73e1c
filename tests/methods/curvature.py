"""The slow version of L-BFGS: the matrix itself."""

from __future__ import annotations

import torch
from torch import Tensor


def dense(s: Tensor, y: Tensor) -> Tensor:
    """B after the BFGS recursion B <- B - B s s'B / s'Bs + y y' / y's over pairs [m, P], from σ I."""
    sigma = (y[-1] @ s[-1]) / (s[-1] @ s[-1])
    b = sigma * torch.eye(s.shape[1], dtype=torch.float64)
    for step, change in zip(s, y, strict=True):
        bs = b @ step
        b = b - torch.outer(bs, bs) / (step @ bs) + torch.outer(change, change) / (change @ step)
    return b
