"""Triton where there is one; without it the kernels can be imported and read, but not run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def _found(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


triton: Any = _found("triton")
tl: Any = _found("triton.language")


def kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel with Triton, or leave it alone where there is none."""
    return triton.jit(function) if triton else function


def tiles(size: int, tile: int) -> int:
    """How many tiles cover a size."""
    return -(-size // tile)
