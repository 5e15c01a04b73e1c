"""One table of all runs, in every rendering the same cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feduhb.report.grids import HEADER_WIDTH, NOTHING, Grid
from feduhb.report.runs import RETRAIN, RunView, retrain_of
from feduhb.report.words import number, percent

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable
    from rich.text import Text

GAP, RUN_WIDTH, HEADER_COLUMN = 2, 18, 24  # characters in a terminal


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its raw value of a run, and how that is shown."""

    key: str
    header: str
    value: Callable[[RunView], Any]
    shown: Callable[[Any], str] = str
    text: bool = False  # left-aligned
    note: str = ""  # how to read it


def columns(views: Sequence[RunView]) -> list[Column]:
    """Choose the columns that these runs can fill."""
    found = [
        Column("run", "run", lambda v: v.label, text=True),
        Column("exact", "exact", lambda v: v.exact if v.unlearned else None, _yes_no),
        Column(
            "secure_aggregation",
            "secure aggregation",
            lambda v: v.result["needs"] == "sum",
            _yes_no,
            note="“Secure aggregation” says whether the method needs no more than the sum of the clients' answers.",
        ),
        Column("rounds", "rounds / max", lambda v: (len(v.rounds), v.result["scheduled_rounds"]), _of),
        Column("client_epochs", "client epochs", lambda v: v.result["client_epochs"], lambda n: f"{n:,}"),
        *_replayed(views),
        Column(
            "megabytes",
            "MB down + up",
            lambda v: v.megabytes,
            number,
            note="MB are units of a million bytes; down and up, of payload.",
        ),
        Column(
            "seconds",
            "seconds",
            lambda v: v.seconds,
            number,
            note="Seconds are wall clock of clients and server, evaluation apart.",
        ),
        Column("seconds_per_round", "seconds a round", lambda v: v.seconds / len(v.rounds), number),
        Column("test_accuracy", "test accuracy", lambda v: v.final("test_accuracy"), percent),
        Column("test_loss", "test loss", lambda v: v.final("test_loss"), number),
    ]
    if any(view.final("backdoor") is not None for view in views):
        found.append(Column("backdoor", "backdoor success", lambda v: v.final("backdoor"), percent))
    if any(view.role == RETRAIN for view in views):
        found.append(
            Column(
                "reaches_retrain",
                "reaches Retrain's final accuracy at round",
                lambda v: reaches(v, retrain_of(v, views)),
            )
        )
    if any(view.audit is not None for view in views):
        found.append(
            Column("audit", "audit", verdict, note="Audit: the verdict's word; its reasons stand with it.")
        )
    return found


def _replayed(views: Sequence[RunView]) -> Iterator[Column]:
    """Choose the columns on histories."""
    if any(view.saved > 0 for view in views):
        yield Column(
            "client_rounds_saved",
            "client rounds saved",
            lambda v: v.saved or None,
            percent,
            note="Client rounds saved: the share, in a run's own rounds, of client work that stored or estimated updates took the place of.",
        )
    if any(view.history_megabytes > 0 for view in views):
        yield Column(
            "history_megabytes",
            "history MB",
            lambda v: v.history_megabytes or None,
            number,
            note="History: what training kept of every client's updates, and what a method must find on disk to replay.",
        )


def reaches(view: RunView, retrain: RunView | None) -> int | str | None:
    """Give the earliest round with at least Retrain's final test accuracy; None: no Retrain to reach."""
    goal = retrain.final("test_accuracy") if retrain else None
    if goal is None:
        return None
    return next(
        (n for n, value in enumerate(view.accuracy, 1) if value is not None and value >= goal), "never"
    )


def verdict(view: RunView) -> str | None:
    """Give the word of a run's audit, never without saying that other weights were audited."""
    if view.audit is None:
        return None
    word = view.audit.verdict.word
    return word if view.audited else f"{word} (of other weights)"


def table(views: Sequence[RunView]) -> tuple[list[str], list[list[str]]]:
    """Give headers and rows, one row a run."""
    chosen = columns(views)
    return [column.header for column in chosen], [
        [_cell(column, view) for column in chosen] for view in views
    ]


def grid(views: Sequence[RunView]) -> Grid:
    """Give the table as words, with how to read its columns."""
    chosen = columns(views)
    headers, rows = table(views)
    text = frozenset(place for place, column in enumerate(chosen) if column.text)
    how = " ".join(column.note for column in chosen if column.note)
    return Grid("What it took, and what came out", headers, rows, text, how)


def markdown(views: Sequence[RunView]) -> str:
    """Render as a Markdown table."""
    return grid(views).markdown()


def latex(views: Sequence[RunView]) -> str:
    """Render as a LaTeX tabular; it needs the package booktabs."""
    return grid(views).latex()


@dataclass(frozen=True, slots=True)
class TerminalTable:
    """The table for a terminal: a row for each run where that fits, else a column for each run."""

    views: Sequence[RunView]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable]:
        yield self._wide() if sum(self._widths()) <= options.max_width else self._tall()

    def _widths(self) -> list[int]:
        """The characters each column needs, with the gap after it, if headers break between words."""
        headers, rows = table(self.views)
        needs = [
            max(map(len, [*header.split(), *cells])) for header, *cells in zip(headers, *rows, strict=True)
        ]
        return [GAP + (need if place else min(need, RUN_WIDTH)) for place, need in enumerate(needs)]

    def _wide(self) -> RichTable:
        drawn, (headers, rows) = _empty_table(), table(self.views)
        for column, header, width in zip(columns(self.views), headers, self._widths(), strict=True):
            side, most = ("left", None) if column.text else ("right", width - GAP)
            drawn.add_column(_verbatim(header), justify=side, overflow="fold", vertical="bottom", width=most)
        for row in rows:
            drawn.add_row(*map(_verbatim, row))
        return drawn

    def _tall(self) -> RichTable:
        drawn, (headers, rows) = _empty_table(), table(self.views)
        drawn.add_column(_verbatim(headers[0]), min_width=HEADER_WIDTH, max_width=HEADER_COLUMN)
        for row in rows:
            drawn.add_column(_verbatim(row[0]), justify="right", overflow="fold", vertical="bottom")
        for header, *cells in list(zip(headers, *rows, strict=True))[1:]:
            drawn.add_row(*map(_verbatim, [header, *cells]))
        return drawn


def rich_table(views: Sequence[RunView]) -> TerminalTable:
    """Render for a terminal, whatever its width: print it with a `rich.console.Console`."""
    return TerminalTable(views)


def _empty_table() -> RichTable:
    from rich import box
    from rich.table import Table as RichTable

    return RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")


def _verbatim(text: str) -> Text:
    """Keep rich from reading markup in a run's name."""
    from rich.text import Text

    return Text(text)


def as_json(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """Give the rows with their numbers unrounded, as values that `json.dumps` takes."""
    return [{column.key: column.value(view) for column in columns(views)} | _beside(view) for view in views]


def _beside(view: RunView) -> dict[str, Any]:
    executed, scheduled = len(view.rounds), view.result["scheduled_rounds"]
    return {
        "rounds": executed,
        "scheduled_rounds": scheduled,
        "stopped": view.result["stopped"],
        "folder": str(view.path),
    }


def _cell(column: Column, view: RunView) -> str:
    value = column.value(view)
    return NOTHING if value is None else column.shown(value)


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _of(value: tuple[int, int]) -> str:
    return f"{value[0]} / {value[1]}"
