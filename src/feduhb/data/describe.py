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

    def read(self, text: np.ndarray) -> None:
        found = {*text.tolist()}
        self.has_blank = self.has_blank or "" in found
        self.has_missing = self.has_missing or bool(found & {*MISSING})
        known = sorted(found - {*MISSING})
        self.is_number = self.is_number and not np.isnan(to_numbers(np.array(known, dtype=object))).any()
        self.is_date = self.is_date and all(map(ISO_DATE.match, known))
        self.values = {*sorted(self.values | found - {""})[: MOST + 1]}


def describe_table(table: Any, *, client: str, target: str | Sequence[str]) -> dict[str, Any]:
    """Return draft arguments for `Federation.from_table`: numbers, categories, classes, dates, fills, drop, loss.

    They are read from all rows, so they say which values occur. Read them before you declare them: what you declare is taken
    for public knowledge, and stays when a client leaves. A table of public rows is the better source.

    Args:
        table: a .csv, .tsv or .parquet file, or a pandas DataFrame.
        client: the column that names the client.
        target: the column to predict, or several.
    """
    source = Source.open(table)
    targets = (target,) if isinstance(target, str) else tuple(target)
    if unknown := [name for name in (client, *targets) if name not in source.header]:
        raise DataError(source.explain_missing(unknown[0]))
    if client in targets:
        raise ConfigError(f"column {client!r} is named for two purposes; name it once")
    columns = {name: _Column() for name in source.header if name != client}
    with explain_unreadable(source.name):
        for frame in source.read([*columns], ()):
            for name, column in columns.items():
                column.read(to_text(frame[name]))
    found: dict[str, Any] = {"numbers": [], "categories": {}, "dates": {}, "fills": {}, "drop": []}
    for name, column in columns.items():
        if name not in targets:
            _declare_input(found, name, column)
    found |= _declare_target([columns[name] for name in targets])
    return {key: value for key, value in found.items() if value}


def _declare_input(found: dict[str, Any], name: str, column: _Column) -> None:
    if not column.values or (not column.is_number and not column.is_date and len(column.values) > MOST):
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
