"""Draft the declarations of a table from all of its rows, for a person to read and to declare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feduhb.data.table_files import MISSING, Source, explain_unreadable
from feduhb.data.table_rows import ISO_DATE, to_numbers, to_text
from feduhb.errors import ConfigError, DataError

MOST = 50  # values of a text column; one with more, such as names, is dropped
FEWEST_WHOLE = 20  # whole numbers without repeats that look like identifiers
MOST_WHOLE = 10**5  # of these that are compared
MOST_CLASSES = 20  # values of a target; one with more is a number to predict
FIRST_DAY = "2000-01-01"
UNKNOWN = "missing"  # the category of missing values


@dataclass(slots=True)
class _Column:
    """What the values of a column are, as far as it has been read."""

    values: set[str] = field(default_factory=set)  # at most `MOST` and one more
    is_number: bool = True
    is_date: bool = True
    has_blank: bool = False
    has_missing: bool = False  # also as a word, such as NA, which counts as missing among numbers and dates
    whole: set[str] | None = field(default_factory=set)  # numbers without repeats; None if there are others

    @property
    def is_name(self) -> bool:
        """Whether the values look like identifiers: whole numbers without repeats."""
        return self.whole is not None and len(self.whole) >= FEWEST_WHOLE

    def read(self, text: np.ndarray) -> None:
        found = {*text.tolist()}
        self.has_blank = self.has_blank or "" in found
        self.has_missing = self.has_missing or bool(found & {*MISSING})
        known = sorted(found - {*MISSING})
        self.is_number = self.is_number and not np.isnan(to_numbers(np.array(known, dtype=object))).any()
        self.is_date = self.is_date and all(map(ISO_DATE.match, known))
        if self.whole is not None and len(self.whole) < MOST_WHOLE:
            is_new = len(known) == len(text) and all(map(str.isdigit, known)) and not self.whole & {*known}
            self.whole = {*self.whole, *known} if is_new else None
        self.values = {*sorted(self.values | found - {""})[: MOST + 1]}


def describe_table(
    table: Any, *, client: str, target: str | Sequence[str], row: str | None = None
) -> dict[str, Any]:
    """Return draft arguments for `Federation.from_table`: numbers, categories, classes, dates, fills, drop, loss.

    They are read from all rows, so they say which values occur. Read them before you declare them: what you declare is taken
    for public knowledge, and stays when a client leaves. A table of public rows is the better source.

    Args:
        table: a .csv, .tsv or .parquet file, or a pandas DataFrame.
        client: the column that names the client.
        target: the column to predict, or several.
        row: the column by which requests name rows, which is not an input. Other columns of at least 20 whole numbers
            without repeats may be identifiers too; they are dropped.
    """
    return draft_table(table, client=client, target=target, row=row)[0]


def draft_table(
    table: Any, *, client: str, target: str | Sequence[str], row: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments that `describe_table` drafts, and the dropped columns that may be identifiers."""
    source = Source.open(table)
    targets = (target,) if isinstance(target, str) else tuple(target)
    named = [client, *targets, *([] if row is None else [row])]
    if unknown := [name for name in named if name not in source.header]:
        raise DataError(source.explain_missing(unknown[0]))
    if twice := [name for name in named if named.count(name) > 1]:
        raise ConfigError(f"column {twice[0]!r} is named for two purposes; name it once")
    columns = {name: _Column() for name in source.header if name not in (client, row)}
    with explain_unreadable(source.name):
        for frame in source.read([*columns], ()):
            for name, column in columns.items():
                column.read(to_text(frame[name]))
    found: dict[str, Any] = {"numbers": [], "categories": {}, "dates": {}, "fills": {}, "drop": []}
    for name, column in columns.items():
        if name not in targets:
            _declare_input(found, name, column)
    found |= _declare_target([columns[name] for name in targets])
    asked = [name for name in found["drop"] if columns[name].is_name]
    return {key: value for key, value in found.items() if value}, asked


def _declare_input(found: dict[str, Any], name: str, column: _Column) -> None:
    if (
        not column.values
        or column.is_name
        or (not column.is_number and not column.is_date and len(column.values) > MOST)
    ):
        found["drop"].append(name)
    elif column.is_number or column.is_date:
        if column.is_number:
            found["numbers"].append(name)
        else:
            found["dates"][name] = FIRST_DAY
        if column.has_missing:
            found["fills"][name] = "mean"
    else:
        found["categories"][name] = sorted(column.values | ({UNKNOWN} if column.has_blank else set()))
        if column.has_blank:
            found["fills"][name] = UNKNOWN


def _declare_target(columns: Sequence[_Column]) -> dict[str, Any]:
    if len(columns) > 1 and not all(column.is_number for column in columns):
        raise DataError(
            "several targets must be numbers, such as 0 and 1; write them as numbers, or name one"
        )
    values = set[str]().union(*(column.values for column in columns))
    if values <= {"0", "1"}:
        return {"loss": "bce_with_logits"} if len(columns) > 1 else {}
    if len(columns) > 1 or (columns[0].is_number and len(values) > MOST_CLASSES):
        return {"loss": "mse"}
    if len(values) > MOST:
        raise DataError(f"the target has more than {MOST} values and is not a number; check target=")
    return {"classes": sorted(values)}
