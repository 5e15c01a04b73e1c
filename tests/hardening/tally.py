"""What the instruments count: cases, and findings by kind."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "traceback", "hang", "exit code", "foreign", "weights", "history", "accepted", "not resumed", "mode"
]
KINDS: dict[Kind, str] = {
    "traceback": "tracebacks",
    "hang": "hangs",
    "exit code": "odd exit codes",
    "foreign": "foreign things touched",
    "weights": "other weights or answers with exit 0",
    "history": "updates of leavers, or models that know them, beside a finished run",
    "accepted": "damage that was accepted",
    "not resumed": "runs that could not be continued",
    "mode": "files that others may read",
}


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that should not have happened."""

    kind: Kind
    command: str
    case: str  # the file and what was done to it, or the moment of a kill
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.command} [{self.case}]: {self.detail}"


@dataclass
class Tally:
    """Cases and findings of one instrument. Threads may add at the same time."""

    name: str
    planned: int = 0
    cases: int = 0
    findings: list[Finding] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, found: Iterable[Finding]) -> None:
        """Count one case with what was found in it."""
        listed = list(found)
        with self._lock:
            self.cases += 1
            self.findings += listed

    def count(self, kind: Kind) -> int:
        """Return the number of findings of a kind."""
        return sum(one.kind == kind for one in self.findings)

    def list_distinct(self) -> list[str]:
        """Return one line for each kind, command and detail, with an example and how many cases there were."""
        groups: dict[tuple[str, str, str], list[Finding]] = {}
        for one in self.findings:
            groups.setdefault((one.kind, one.command, one.detail), []).append(one)
        return [
            f"{found[0]}" + (f" ({len(found)} cases)" if len(found) > 1 else "")
            for _, found in sorted(groups.items())
        ]


def format_table(tallies: Iterable[Tally]) -> str:
    """Return the closing table: one line for each instrument, one column for each kind."""
    rows = [["instrument", "cases", *KINDS]]
    rows += [
        [one.name, f"{one.cases} of {one.planned}", *(str(one.count(kind)) for kind in KINDS)]
        for one in tallies
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )
