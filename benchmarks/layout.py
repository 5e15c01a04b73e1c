"""Format the tables of the benchmarks and the line that names their source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Results = dict[str, Any]


def format_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with a left-aligned first column."""
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def format_source(found: Results) -> str:
    """Return the command, date and machine of a result."""
    m = found["machine"]
    cores = f"{m['cores']} cores of an {m['processor']}, {m['memory_gib']:g} GiB"
    gpu = f"one {m['gpu']}, " if "gpu" in m else ""
    triton = f", Triton {m['triton']}" if "triton" in m else ""
    return f"`{found['command']}`, {found['date']}: {gpu}{cores}, Python {m['python']}, torch {m['torch']}{triton}."
