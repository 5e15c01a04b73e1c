"""GPU kernels in Triton. Without Triton the kernels can be imported and read, but not run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


triton: Any = _import("triton")
tl: Any = _import("triton.language")
HAS_TRITON = triton is not None


def compile_kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel with Triton, or return it unchanged without Triton."""
    return triton.jit(function) if HAS_TRITON else function


def count_tiles(size: int, tile: int) -> int:
    """Return how many tiles cover a size."""
    return -(-size // tile)
