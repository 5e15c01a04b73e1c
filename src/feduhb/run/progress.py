"""A run as a person watches it: a bar with loss, accuracy and the stop rule's state."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Literal

from feduhb.records import Round

if TYPE_CHECKING:
    from rich.progress import Progress

Show = Literal["auto", "lines"] | Callable[[Round], None] | None
Step = Callable[[str, int], Callable[[Round], None]]


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


@contextlib.contextmanager
def stepped(show: Show, name: str, steps: int) -> Generator[Step]:
    """Give the function that begins a step of longer work, (what, its rounds), and gives what shows them.

    One bar over all steps on a terminal, with the step and its round beside it; "lines" writes a line a step.
    """
    begun = itertools.count(1)
    if not callable(show) and show is not None and sys.stderr.isatty():
        with _steps_bar(name, steps) as bar:
            yield bar
        return

    def step(what: str, rounds: int) -> Callable[[Round], None]:  # noqa: ARG001
        number = next(begun)
        if show == "lines":
            _line(f"{name} {number}/{steps}  {what}")
        return show if callable(show) else lambda record: None  # noqa: ARG005

    yield step


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
def _progress(counted: str) -> Generator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    texts = (TextColumn("{task.fields[label]:<8}"), BarColumn(), TextColumn(counted))
    with Progress(
        *texts, TimeElapsedColumn(), TextColumn("{task.fields[now]}"), console=Console(stderr=True)
    ) as shown:
        yield shown


@contextlib.contextmanager
def _steps_bar(name: str, steps: int) -> Generator[Step]:
    with _progress("{task.fields[done]}/{task.total:.0f}") as progress:
        task = progress.add_task(name, total=steps, label=name, now="", done=0)
        begun = itertools.count(1)

        def step(what: str, rounds: int) -> Callable[[Round], None]:
            number = next(begun)
            progress.update(task, completed=number - 1, done=number, now=what)

            def tell(record: Round) -> None:
                done = 1.0 if record.stopped else (record.round + 1) / rounds
                now = f"{what}  {record.round + 1}/{rounds}  {told(record)}"
                progress.update(task, completed=number - 1 + done, now=now)

            return tell

        yield step
        progress.update(task, completed=steps)


@contextlib.contextmanager
def _bar(label: str, rounds: int) -> Generator[Callable[[Round], None]]:
    with _progress("{task.completed:.0f}/{task.total:.0f}") as progress:
        task = progress.add_task(label, total=rounds, label=label, now="")

        def tell(record: Round) -> None:
            done = record.round + 1
            progress.update(task, completed=done, total=done if record.stopped else rounds, now=told(record))

        yield tell
