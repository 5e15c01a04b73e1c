"""The tables of all runs, for files, for the page and for a terminal: what came out, and what it took."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from feduhb.report.grids import HEADER_WIDTH, Grid
from feduhb.report.runs import RETRAIN, RunView, group_seeds, printable, retrain_of
from feduhb.report.words import NOTHING, choose_score, format_percent, is_low_best, list_scores
from feduhb.runs.scores import LOSS, format_number, format_score, name_score

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group
    from rich.table import Table as RichTable
    from rich.text import Text

GAP, RUN_WIDTH, HEADER_COLUMN = 2, 18, 24  # characters in a terminal
PHRASE_WIDTH = 26  # characters, beyond which a phrase is wrapped
TALL_AT_MOST = 6  # runs that fit side by side


NOTES = {
    "leaver_epochs": "Leavers' epochs: the part of the client epochs that leavers did on the data to forget.",
    "client_rounds_saved": "Client rounds saved: the share of client work that stored or estimated updates replaced.",
    "stored_megabytes": "Stored: the updates and models that training kept, or that a method had to read or keep on disk.",
    "megabytes": "MB: a million bytes of payload, down and up.",
    "seconds": "Seconds: wall clock of clients and server, without evaluation.",
    "needs": "Needs: what the server must have beyond sums of updates. Where it needs each update, secure aggregation is "
    "not possible.",
    "audit": "Audit: the verdict. The audit itself has its reasons.",
}
# Left out where no run has a value.
OPTIONAL = {
    "leaver_epochs", "client_rounds_saved", "history_megabytes", "stored_megabytes", "backdoor", "audit",
}  # fmt: skip
RESULTS, COSTS = "Results", "Costs and needs"
EXACT, APPROXIMATE = "Exact", "Approximate"
ONLY_SUMS = "only sums"
OVER_SEEDS = "Mean ± standard deviation over seeds; in brackets, of how many seeds, if not of all."


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the raw value of a run, its format, and the table that shows it; without one, it is only in JSON."""

    key: str
    header: str
    value: Callable[[RunView], Any]
    format: Callable[[Any], str] = str
    table: str = ""


def choose_columns(views: Sequence[RunView]) -> list[Column]:
    """Return the columns that these runs can fill; the first one names the run."""
    scores = list_scores(views) or ["test_accuracy"]
    reaches = f"reaches Retrain's final {_name(scores[0]).removeprefix('test ')} at round"
    every = [
        Column("run", "run", lambda v: v.label),
        Column("exact", "exact", lambda v: v.exact if v.unlearned else None, _format_flag, RESULTS),
        Column("secure_aggregation", "", lambda v: v.result["needs"] == "sum"),
        Column("rounds", "rounds / max", lambda v: (len(v.rounds), v.result["scheduled_rounds"]), table=RESULTS),
        *(_make_score_column(score) for score in dict.fromkeys((*scores, LOSS))),
        Column("backdoor", "backdoor success", lambda v: v.final("backdoor"), format_percent, RESULTS),
        Column(
            "reaches_retrain", reaches, lambda v: find_reaching_round(v, retrain_of(v, views), scores[0]), _format_count,
            RESULTS,
        ),
        Column("audit", "audit", get_verdict, table=RESULTS),
        Column("client_epochs", "client epochs", lambda v: v.result["client_epochs"], _format_count, COSTS),
        Column("leaver_epochs", "leavers' epochs", lambda v: v.result.get("leaver_epochs") or None, _format_count, COSTS),
        Column("client_rounds_saved", "client rounds saved", lambda v: v.saved or None, format_percent, COSTS),
        Column("megabytes", "MB down + up", lambda v: v.megabytes, format_number, COSTS),
        Column("history_megabytes", "", lambda v: v.history_megabytes or None),
        Column("stored_megabytes", "stored MB", lambda v: v.stored_megabytes or None, format_number, COSTS),
        Column("seconds", "seconds", lambda v: v.seconds, format_number, COSTS),
        Column("seconds_per_round", "seconds a round", _compute_pace, format_number, COSTS),
        Column("server_seconds", "server seconds", lambda v: v.result["server_seconds"], format_number, COSTS),
        Column("needs", "needs", lambda v: v.requires, _format_needs, COSTS),
    ]  # fmt: skip
    empty = {
        key for key in OPTIONAL for c in every if c.key == key and all(c.value(v) is None for v in views)
    }
    if all(view.role != RETRAIN for view in views):
        empty.add("reaches_retrain")
    return [column for column in every if column.key not in empty]


def _compute_pace(view: RunView) -> float | None:
    """Return the seconds of a round that the run did itself; None if a rollback inherited all of them."""
    done = len(view.rounds) - view.result.get("restart_round", 0)
    return view.seconds / done if done else None


def sort_views(views: Sequence[RunView]) -> tuple[list[RunView], dict[int, str]]:
    """Return originals, exact runs and approximate runs, in this order, and the headings of the groups by their first row.

    There are no headings if all unlearning runs are of one kind.
    """
    first = [view for view in views if not view.unlearned]
    exact = [view for view in views if view.unlearned and view.exact]
    rest = [view for view in views if view.unlearned and not view.exact]
    groups = {len(first): EXACT, len(first) + len(exact): APPROXIMATE} if exact and rest else {}
    return [*first, *exact, *rest], groups


def _make_score_column(score: str) -> Column:
    return Column(
        score, _name(score), lambda v: v.final(score), lambda value: format_score(score, value), RESULTS
    )


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


def make_grids(views: Sequence[RunView]) -> list[Grid]:
    """Return two tables with notes on how to read them: what came out, and what it took and needs.

    Runs that differ only in their seed share a row.
    """
    return [_make_grid(views, group_seeds(views), title) for title in (RESULTS, COSTS)]


def make_grids_of_each(views: Sequence[RunView]) -> list[Grid]:
    """Return the same tables with a row for each run, if runs share rows in `make_grids`; else nothing."""
    alone = [(view.label, [view]) for view in views]
    if len(group_seeds(views)) == len(alone):
        return []
    return [
        replace(grid, title=f"{grid.title}: each run")
        for grid in (_make_grid(views, alone, title) for title in (RESULTS, COSTS))
    ]


def _make_grid(views: Sequence[RunView], named: Sequence[tuple[str, list[RunView]]], title: str) -> Grid:
    """Return a table of all columns of this title, with a row for each named group of runs."""
    found = {runs[0].label: (name, runs) for name, runs in named}
    first, groups = sort_views([runs[0] for _, runs in named])
    ordered = [found[view.label] for view in first]
    is_shared = len(named) < len(views)
    # Headings say what is exact; with spreads, a column that others imply takes too much room.
    implied = {"exact"} if groups else set[str]()
    implied |= {"seconds_per_round"} if is_shared else set[str]()
    columns = [c for c in choose_columns(views) if c.table == title and c.key not in implied]
    headers = ["run", *(column.header for column in columns)]
    rows = [
        [name, *(_summarize(c, [c.value(view) for view in runs]) for c in columns)] for name, runs in ordered
    ]
    text = frozenset({0, *(place for place, column in enumerate(columns, 1) if column.key == "needs")})
    notes = [NOTES[column.key] for column in columns if column.key in NOTES]
    if is_shared:
        notes = [OVER_SEEDS, *notes]
        if title == RESULTS:
            headers[1:1] = ["seeds"]
            rows = [[row[0], str(len(runs)), *row[1:]] for row, (_, runs) in zip(rows, ordered, strict=True)]
    return Grid(title, headers, rows, text, " ".join(notes), groups=groups)


def _summarize(column: Column, values: Sequence[Any]) -> str:
    """Return the value of one run, or of several: mean and standard deviation of numbers, and how often each word occurs."""
    known = [value for value in values if value is not None]
    if column.key == "rounds":
        done, most = zip(*known, strict=True)
        return f"{_format_spread(_format_count, done)} / {max(most)}"
    numbers = [value for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    words = Counter(column.format(value) for value in known if value not in numbers)
    parts = [_format_spread(column.format, numbers)] if numbers else []
    parts += [word if count == len(values) else f"{word} ({count})" for word, count in words.items()]
    return ", ".join(parts) or NOTHING


def _format_spread(format: Callable[[Any], str], values: Sequence[float]) -> str:
    if len({*values}) == 1:
        return format(values[0])
    mean, spread = format(statistics.fmean(values)), statistics.stdev(values)
    decimals = re.fullmatch(r"[\d,]+\.(\d+)", mean)
    return f"{mean} ± {f'{spread:,.{len(decimals[1])}f}' if decimals else format(spread)}"


@dataclass(frozen=True, slots=True)
class TerminalTable:
    """A table for a terminal: a row for each run if that fits, else a column for each run; of many runs, several tables."""

    grid: Grid

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RichTable | str]:
        if sum(self._measure_widths()) <= options.max_width:
            yield self._make_wide(range(len(self.grid.headers)))
        elif len(self.grid.rows) <= TALL_AT_MOST:
            yield self._make_tall()
        else:
            for number, places in enumerate(self._split_columns(options.max_width)):
                if number:
                    yield ""
                yield self._make_wide(places)

    def _split_columns(self, width: int) -> list[list[int]]:
        """Return the columns of tables that fit, each with the run first; a phrase that does not fit has its own table."""
        first, *rest = self._measure_widths()
        parts, used = [[0]], first
        for place, need in enumerate(rest, 1):
            if used + need > width and len(parts[-1]) > 1:
                parts.append([0])
                used = first
            parts[-1].append(place)
            used += need
        return parts

    def _measure_widths(self) -> list[int]:
        """Return the characters that each column needs with its gap, if headers and phrases break between words."""
        needs = [
            min(PHRASE_WIDTH, max(map(len, [header, *cells])))
            if self._is_phrase(place)
            else max(map(len, [*header.split(), *cells]))
            for place, (header, *cells) in enumerate(zip(self.grid.headers, *self.grid.rows, strict=True))
        ]  # fmt: skip
        return [GAP + (need if place else min(need, RUN_WIDTH)) for place, need in enumerate(needs)]

    def _is_phrase(self, place: int) -> bool:
        return place > 0 and place in self.grid.text

    def _make_wide(self, places: Sequence[int]) -> RichTable:
        from rich.align import Align

        drawn, widths = _make_table(), self._measure_widths()
        for place in places:
            header, width = self.grid.headers[place], widths[place]
            side = "left" if place in self.grid.text else "right"
            most, least = (None, width - GAP) if side == "left" else (width - GAP, None)
            drawn.add_column(
                Align(_to_text(header), side, vertical="bottom"),  # cells stay at the top, beside their run
                justify=side,
                overflow="fold",
                width=most,
                min_width=least,
            )
        for at, row in enumerate(self.grid.rows):
            if at in self.grid.groups:
                drawn.add_row(_to_text(self.grid.groups[at]), style="italic")
            drawn.add_row(*(_to_text(row[place]) for place in places))
        return drawn

    def _make_tall(self) -> RichTable:
        drawn, grid = _make_table(), self.grid
        drawn.add_column(_to_text(grid.headers[0]), min_width=HEADER_WIDTH, max_width=HEADER_COLUMN)
        for row in grid.rows:
            drawn.add_column(_to_text(row[0]), justify="right", overflow="fold", vertical="bottom")
        if grid.groups:  # this layout has no headings
            kinds = [
                [name for first, name in grid.groups.items() if first <= at] for at in range(len(grid.rows))
            ]
            flags = [_format_flag(found[-1] == EXACT) if found else NOTHING for found in kinds]
            drawn.add_row(*map(_to_text, ["exact", *flags]))
        for header, *cells in list(zip(grid.headers, *grid.rows, strict=True))[1:]:
            drawn.add_row(*map(_to_text, [header, *cells]))
        return drawn


def make_terminal_tables(views: Sequence[RunView]) -> Group:
    """Return the tables for a terminal of any width: print them with a `rich.console.Console`."""
    from rich.console import Group

    results, costs = map(TerminalTable, make_grids(views))
    return Group(results, "", costs)


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


def _format_count(value: float | str) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else value if isinstance(value, str) else f"{value:,}"


def _format_needs(value: Sequence[str]) -> str:
    return printable(", ".join(value)) or ONLY_SUMS


def _format_flag(value: bool) -> str:
    return "yes" if value else "no"
