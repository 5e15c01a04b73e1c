"""How the tables of the benchmarks are laid out, and how they name their source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Results = dict[str, Any]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table, the first column to the left."""
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def source(found: Results) -> str:
    """Say where numbers come from."""
    m = found["machine"]
    cores = f"{m['cores']} cores of an {m['processor']}, {m['memory_gib']:g} GiB"
    gpu = f"one {m['gpu']}, " if "gpu" in m else ""
    triton = f", Triton {m['triton']}" if "triton" in m else ""
    return f"`{found['command']}`, {found['date']}: {gpu}{cores}, Python {m['python']}, torch {m['torch']}{triton}."
