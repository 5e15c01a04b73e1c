"""How a GPU computes: always by the same algorithms, and in one precision, whatever the process has set."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# What has the old name of the setting, `allow_tf32`.
OLD: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn


@contextlib.contextmanager
def compute_alike(device: torch.device, *, tf32: bool = False, cudnn: bool = True) -> Generator[None]:
    """Let a GPU always compute in the same way inside the block: as `fix_precision`, and attention in one order.

    The faster kernels of attention do not promise that order, nor a second derivative.
    """
    with fix_precision(device, tf32=tf32, cudnn=cudnn):
        if device.type != "cuda":
            yield
            return
        with sdpa_kernel(SDPBackend.MATH):
            yield


@contextlib.contextmanager
def fix_precision(device: torch.device, *, tf32: bool = False, cudnn: bool = True) -> Generator[None]:
    """Let a GPU always take the same algorithms of cuDNN inside the block, and round factors of products only if ``tf32``.

    Args:
        cudnn: False does without cuDNN.
    """
    if device.type != "cuda":
        yield
        return
    old = [(owner, _read(owner, "allow_tf32")) for owner in OLD]
    new = [(owner, owner.fp32_precision) for owner in _list_new()]
    try:
        _set_tf32(tf32)
        flags = torch.backends.cudnn.flags(
            enabled=cudnn, benchmark=False, deterministic=True, allow_tf32=tf32
        )
        with flags:
            _set_tf32(tf32)  # the flags give way to a setting of the whole process
            yield
    finally:
        for owner, value in old:
            if value is not None:
                owner.allow_tf32 = value
        for owner, value in new:
            owner.fp32_precision = value


def _set_tf32(tf32: bool) -> None:
    """Set the old names of the setting, and then the new ones, which count where torch has them."""
    for owner in OLD:
        owner.allow_tf32 = tf32
    for owner in _list_new():
        owner.fp32_precision = "tf32" if tf32 else "ieee"


def _list_new() -> list[Any]:
    """Return what has the new name of the setting: nothing before torch 2.9."""
    cudnn = torch.backends.cudnn
    owners = (torch.backends.cuda.matmul, *(getattr(cudnn, name, None) for name in ("conv", "rnn")))
    return [owner for owner in owners if hasattr(owner, "fp32_precision")]


def _read(owner: Any, name: str) -> bool | None:
    """Return a setting; None if torch refuses to read its old name, because the process has used the new one."""
    try:
        return getattr(owner, name)
    except RuntimeError:
        return None
