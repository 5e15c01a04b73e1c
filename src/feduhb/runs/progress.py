"""Progress bars on a terminal, over the rounds of a run or the steps of longer work."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING

from feduhb.core.checks import list_shows, wants_lines
from feduhb.runs.folder import Round
from feduhb.runs.plan import Observer, Show, ShowOne

if TYPE_CHECKING:
    from rich.progress import Progress

BeginStep = Callable[[str, int], Callable[[Round], None]]  # of a step's name and number of rounds


@contextlib.contextmanager
def show_steps(show: Show, name: str, steps: int | Callable[[], int]) -> Generator[BeginStep]:
    """Yield a function that starts a step and returns the function that shows a round of it.

    On a terminal, one bar is drawn over all steps. Elsewhere "lines" writes one line for each step.

    Args:
        steps: the number of steps; or a function that returns how many are left, if the number is not known yet.
    """
    with contextlib.ExitStack() as stack:
        begins = [stack.enter_context(_show_once(one, name, steps)) for one in list_shows(show)]

        def step(what: str, rounds: int) -> Callable[[Round], None]:
            tells = [begin(what, rounds) for begin in begins]

            def tell_all(record: Round) -> None:
                for tell in tells:
                    tell(record)

            return tell_all

        yield step


@contextlib.contextmanager
def _show_once(
    show: ShowOne, name: str, steps: int | Callable[[], int]
) -> Generator[Callable[[str, int], Callable[[Round], object]]]:
    """Yield what `show_steps` yields, for one way to show rounds."""
    if isinstance(show, Observer):
        with contextlib.ExitStack() as current:

            def watch(what: str, rounds: int) -> Callable[[Round], object]:  # noqa: ARG001
                current.close()  # the step before has ended
                return current.enter_context(show.watch(what))

            yield watch
        return
    begun = itertools.count(1)

    def total(number: int) -> int:
        return max(number, steps) if isinstance(steps, int) else number + steps()

    if not callable(show) and show is not None and sys.stderr.isatty():
        with _steps_bar(name, total) as bar:
            yield bar
        return

    def step(what: str, rounds: int) -> Callable[[Round], object]:  # noqa: ARG001
        number = next(begun)
        if show == "lines":
            sys.stderr.write(f"{name} {number}/{total(number)}  {what}\n")
            sys.stderr.flush()
        return show if callable(show) else lambda record: None  # noqa: ARG005

    yield step


def show_lines(show: Show, lines: Iterable[str]) -> None:
    """Write lines for a person, if they are wanted."""
    if wants_lines(show):
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


@contextlib.contextmanager
def _progress(counted: str) -> Generator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[label]:<8}"), BarColumn(), TextColumn(counted), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[now]}"), console=Console(stderr=True)) as progress:
        yield progress


@contextlib.contextmanager
def _steps_bar(name: str, total: Callable[[int], int]) -> Generator[BeginStep]:
    with _progress("{task.fields[done]}/{task.total:.0f}") as progress:
        task = progress.add_task(name, total=total(0), label=name, now="", done=0)
        begun = itertools.count(1)

        def step(what: str, rounds: int) -> Callable[[Round], None]:
            number = next(begun)
            progress.update(task, completed=number - 1, done=number, now=what, total=total(number))

            def tell(record: Round) -> None:
                done = 1.0 if record.stopped else (record.round + 1) / rounds
                now = f"{what}  {record.round + 1}/{rounds}  {record}"
                progress.update(task, completed=number - 1 + done, now=now)

            return tell

        yield step
        progress.update(task, completed=progress.tasks[task].total)


@contextlib.contextmanager
def round_bar(label: str, rounds: int) -> Generator[Callable[[Round], None]]:
    """Draw a bar over the rounds of a run; yield the function that shows a round."""
    with _progress("{task.completed:.0f}/{task.total:.0f}") as progress:
        task = progress.add_task(label, total=rounds, label=label, now="")

        def tell(record: Round) -> None:
            done = record.round + 1
            progress.update(task, completed=done, total=done if record.stopped else rounds, now=str(record))

        yield tell
