"""The table of all runs, for files, for the page and for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from feduhb.report.grids import HEADER_WIDTH, Grid
from feduhb.report.runs import RETRAIN, RunView, printable, retrain_of
from feduhb.report.words import NOTHING, choose_score, format_percent, is_low_best, list_scores
from feduhb.runs.scores import LOSS, format_number, format_score, name_score

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable
    from rich.text import Text

GAP, RUN_WIDTH, HEADER_COLUMN = 2, 18, 24  # characters in a terminal


NOTES = {
    "secure_aggregation": "Secure aggregation: the method needs only the sum of the clients' answers.",
    "client_rounds_saved": "Client rounds saved: the share of client work that stored or estimated updates replaced.",
    "history_megabytes": "History: the updates that training kept, or that a method had to read from disk.",
    "megabytes": "MB: a million bytes of payload, down and up.",
    "seconds": "Seconds: wall clock of clients and server, without evaluation.",
    "audit": "Audit: the verdict; its reasons stand with it.",
}
OPTIONAL = {
    "client_rounds_saved",
    "history_megabytes",
    "backdoor",
    "audit",
}  # left out where no run has a value


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the raw value of a run, and its format."""

    key: str
    header: str
    value: Callable[[RunView], Any]
    format: Callable[[Any], str] = str


def choose_columns(views: Sequence[RunView]) -> list[Column]:
    """Return the columns that these runs can fill; the first one names the run."""
    scores = list_scores(views) or ["test_accuracy"]
    reaches = f"reaches Retrain's final {_name(scores[0]).removeprefix('test ')} at round"
    every = [
        Column("run", "run", lambda v: v.label),
        Column("exact", "exact", lambda v: v.exact if v.unlearned else None, _format_flag),
        Column(
            "secure_aggregation", "secure aggregation", lambda v: v.result["needs"] == "sum", _format_flag
        ),
        Column(
            "rounds", "rounds / max", lambda v: (len(v.rounds), v.result["scheduled_rounds"]), _format_rounds
        ),
        Column("client_epochs", "client epochs", lambda v: v.result["client_epochs"], lambda n: f"{n:,}"),
        Column("client_rounds_saved", "client rounds saved", lambda v: v.saved or None, format_percent),
        Column("history_megabytes", "history MB", lambda v: v.history_megabytes or None, format_number),
        Column("megabytes", "MB down + up", lambda v: v.megabytes, format_number),
        Column("seconds", "seconds", lambda v: v.seconds, format_number),
        Column("seconds_per_round", "seconds a round", lambda v: v.seconds / len(v.rounds), format_number),
        *(_make_score_column(score) for score in dict.fromkeys((*scores, LOSS))),
        Column("backdoor", "backdoor success", lambda v: v.final("backdoor"), format_percent),
        Column("reaches_retrain", reaches, lambda v: find_reaching_round(v, retrain_of(v, views), scores[0])),
        Column("audit", "audit", get_verdict),
    ]
    empty = {
        key for key in OPTIONAL for c in every if c.key == key and all(c.value(v) is None for v in views)
    }
    if all(view.role != RETRAIN for view in views):
        empty.add("reaches_retrain")
    return [column for column in every if column.key not in empty]


def _make_score_column(score: str) -> Column:
    return Column(score, _name(score), lambda v: v.final(score), lambda value: format_score(score, value))


def _name(score: str) -> str:
    return printable(name_score(score))


def find_reaching_round(view: RunView, retrain: RunView | None, score: str | None = None) -> int | str | None:
    """Return the first round as good as Retrain's last, or "never"; None without a Retrain run that has the score.

    Args:
        score: None compares Retrain's main score, or the test loss if it has none.
    """
    if retrain is None:
        return None
    score = score or choose_score([retrain])
    goal = retrain.final(score)
    if goal is None:
        return None
    sign = -1 if is_low_best([view, retrain], score) else 1
    known = ((n, value) for n, value in enumerate(view.scored(score), 1) if value is not None)
    return next((n for n, value in known if sign * value >= sign * goal), "never")


def get_verdict(view: RunView) -> str | None:
    """Return the verdict of a run's audit, marked if other weights were audited; None without an audit."""
    if view.audit is None:
        return None
    word = view.audit.verdict.word
    return word if view.audited else f"{word} (of other weights)"


def make_rows(views: Sequence[RunView]) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows, one row a run."""
    chosen = choose_columns(views)
    values = [[(column, column.value(view)) for column in chosen] for view in views]
    rows = [[NOTHING if value is None else column.format(value) for column, value in row] for row in values]
    return [column.header for column in chosen], rows


def make_grid(views: Sequence[RunView]) -> Grid:
    """Return the table with a note on how to read its columns."""
    headers, rows = make_rows(views)
    notes = [NOTES[column.key] for column in choose_columns(views) if column.key in NOTES]
    return Grid("What it took, and what came out", headers, rows, note=" ".join(notes))


@dataclass(frozen=True, slots=True)
class TerminalTable:
    """The table for a terminal: a row for each run if that fits, else a column for each run."""

    views: Sequence[RunView]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable]:
        yield self._make_wide() if sum(self._measure_widths()) <= options.max_width else self._make_tall()

    def _measure_widths(self) -> list[int]:
        """Return the characters that each column needs with its gap, if headers break between words."""
        headers, rows = make_rows(self.views)
        needs = [
            max(map(len, [*header.split(), *cells])) for header, *cells in zip(headers, *rows, strict=True)
        ]
        return [GAP + (need if place else min(need, RUN_WIDTH)) for place, need in enumerate(needs)]

    def _make_wide(self) -> RichTable:
        drawn, (headers, rows) = _make_table(), make_rows(self.views)
        for header, width in zip(headers, self._measure_widths(), strict=True):
            side, most = ("left", None) if header == headers[0] else ("right", width - GAP)
            drawn.add_column(_to_text(header), justify=side, overflow="fold", vertical="bottom", width=most)
        for row in rows:
            drawn.add_row(*map(_to_text, row))
        return drawn

    def _make_tall(self) -> RichTable:
        drawn, (headers, rows) = _make_table(), make_rows(self.views)
        drawn.add_column(_to_text(headers[0]), min_width=HEADER_WIDTH, max_width=HEADER_COLUMN)
        for row in rows:
            drawn.add_column(_to_text(row[0]), justify="right", overflow="fold", vertical="bottom")
        for header, *cells in list(zip(headers, *rows, strict=True))[1:]:
            drawn.add_row(*map(_to_text, [header, *cells]))
        return drawn


def make_terminal_table(views: Sequence[RunView]) -> TerminalTable:
    """Return the table for a terminal of any width: print it with a `rich.console.Console`."""
    return TerminalTable(views)


def _make_table() -> RichTable:
    from rich import box
    from rich.table import Table as RichTable

    return RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")


def _to_text(text: str) -> Text:
    """Return text in which rich reads no markup."""
    from rich.text import Text

    return Text(text)


def list_json_rows(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return the rows of the table of runs with unrounded numbers, for `json.dumps`."""
    rows = [{column.key: column.value(view) for column in choose_columns(views)} for view in views]
    for row, view in zip(rows, views, strict=True):
        row |= {"rounds": len(view.rounds), "test_accuracy": view.final("test_accuracy")}
        row |= {key: view.result[key] for key in ("scheduled_rounds", "stopped")} | {"folder": str(view.path)}
    return rows


def _format_flag(value: bool) -> str:
    return "yes" if value else "no"


def _format_rounds(value: tuple[int, int]) -> str:
    return f"{value[0]} / {value[1]}"
