"""A run as a person watches it: a bar with loss, accuracy and the stop rule's state."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Literal

from feduhb.records import Round

Show = Literal["auto", "lines"] | Callable[[Round], None] | None


@contextlib.contextmanager
def watched(show: Show, label: str, rounds: int) -> Generator[Callable[[Round], None] | None]:
    """Give the function that shows a round: a progress bar on a terminal, plain lines, the caller's own, or None.

    "auto" draws a bar where standard error is a terminal and is silent elsewhere; "lines" writes a line a
    round there instead.
    """
    terminal = sys.stderr.isatty()
    if callable(show) or show is None:
        yield show
    elif terminal:
        with _bar(label, rounds) as tell:
            yield tell
    elif show == "lines":
        yield lambda record: _line(f"{label} {record.round + 1}/{rounds}  {told(record)}")
    else:
        yield None


def _line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def told(record: Round) -> str:
    """Say how a round went, in one line."""
    parts = [f"loss {record.scores['test_loss']:.3f}"] if "test_loss" in record.scores else []
    if "test_accuracy" in record.scores:
        parts.append(f"accuracy {record.scores['test_accuracy']:.1%}")
    parts.append(f"moved {record.moved:.3g}")
    if record.stopped:
        parts.append("stopped")
    elif record.threshold is not None:
        parts.append(f"stops below {record.threshold:.3g}")
    return "  ".join(parts)


@contextlib.contextmanager
def _bar(label: str, rounds: int) -> Generator[Callable[[Round], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[label]:<8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=rounds, label=label, now="")

        def tell(record: Round) -> None:
            done = record.round + 1
            progress.update(task, completed=done, total=done if record.stopped else rounds, now=told(record))

        yield tell
