"""Read the rows of a table a part at a time, and turn its columns into numbers as they were declared."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feduhb.data.table_files import MISSING, UNREADABLE, Source, explain_unreadable
from feduhb.errors import ConfigError, DataError

if TYPE_CHECKING:
    from feduhb.data.table import TableSettings

# Values that no declaration turns into numbers.
NOT_DECLARED: dict[Any, str] = {
    (list, tuple, np.ndarray): "lists", dict: "records", bytes: "bytes", datetime.time: "times", datetime.timedelta: "durations"
}  # fmt: skip
NAMED_AT_MOST = 12  # values in an error
LARGEST = float(np.finfo(np.float32).max)
OTHERS = "*"  # the category of every value that is not declared
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")  # the dates that are read
# A declared day; runs may have recorded a Timestamp with its time.
DAY = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T]00:00:00)?")
WHOLE = re.compile(r"([-+]?\d+)\.0*")  # 1.0, as pandas writes whole numbers of a column with missing values


class Rows(NamedTuple):
    """A part of a table's rows."""

    x: np.ndarray  # [n, d] float64
    y: np.ndarray  # [n] classes, or [n, k] numbers
    clients: np.ndarray  # [n] text
    keys: np.ndarray | None  # [n] of the column that names rows; None if there is none


@dataclass(frozen=True, slots=True)
class RowReader:
    """The rows of a table, read a part at a time: iterate over it."""

    source: Source
    settings: TableSettings
    needs_client: bool = True
    in_config: bool = False  # whether errors print declarations of a config, and not of Python

    def __post_init__(self) -> None:
        self._check_columns()
        self._check_values()

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of numbers, in the order of the table or as declared."""
        if self.settings.numbers is not None:
            return self.settings.numbers
        named = {*self._list_named()}
        return tuple(column for column in self.source.header if column not in named)

    @property
    def features(self) -> list[str]:
        """The names of the inputs: numbers, dates, then one for each category."""
        declared = self.settings.categories.items()
        return [
            *self.numbers,
            *self.settings.dates,
            *(f"{c}={value}" for c, some in declared for value in some),
        ]

    def list_standardized(self) -> list[int]:
        """Return the places of numbers and dates that each client standardises: those that have no declared scaling."""
        if not self.settings.standardize:
            return []
        numeric = (*self.numbers, *self.settings.dates)
        return [place for place, column in enumerate(numeric) if column not in self.settings.scaling]

    def __iter__(self) -> Iterator[Rows]:
        done = 0
        try:
            for part in self._read(fast=True):
                yield part
                done += 1
        except UNREADABLE:  # without the place, or for spaces around a word such as NA: read the rest as text
            with explain_unreadable(self.source.name):
                yield from islice(self._read(fast=False), done, None)

    def _read(self, *, fast: bool) -> Iterator[Rows]:
        """Read all rows.

        Args:
            fast: let the reader of files convert numbers, to the same bits; its errors do not name the place.
        """
        begin = 0
        for frame in self.list_frames(fast=fast):
            yield self._convert(frame, begin)
            begin += len(frame)

    def list_frames(self, *, fast: bool = False) -> Iterator[Any]:
        """Yield the columns that are used, as DataFrames."""
        s = self.settings
        numbers = [*self.numbers, *(() if s.is_classified else s.targets)]
        used = {*self._list_named(), *self.numbers} - {*s.drop}
        columns = [column for column in self.source.header if column in used]
        return self.source.read(columns, numbers if fast else ())

    def _convert(self, frame: Any, begin: int) -> Rows:
        settings, part = self.settings, _Part(self, frame, begin)
        columns = [part.read_scaled(column, part.read_numbers(column)) for column in self.numbers]
        columns += [part.read_scaled(c, part.read_dates(c, day)) for c, day in settings.dates.items()]
        for column, values in settings.categories.items():
            columns += [*part.read_categories(column, values).T]
        x = np.stack(columns, axis=1)
        clients = part.read_clients() if self.needs_client else np.full(len(frame), "server")
        keys = None if settings.row is None else part.read_keys(settings.row)
        return Rows(x, part.read_targets(), clients, keys)

    def declare(self, what: str, column: str, value: str) -> str:
        """Return a declaration for a column, to paste into [federation.table] or a call."""
        if not self.in_config:
            return f"{what}={{{column!r}: {value}}}"
        is_bare = re.fullmatch(r"[\w-]+", column, re.ASCII)
        return f"under [federation.table.{what}]: {column if is_bare else self.quote(column)} = {value}"

    def quote(self, text: str) -> str:
        """Return text as a config or Python writes it."""
        return json.dumps(text, ensure_ascii=False) if self.in_config else repr(text)

    def _list_named(self) -> list[str]:
        """Return the columns that the settings name, apart from numbers."""
        s = self.settings
        row = [] if s.row is None else [s.row]
        return [s.client, *s.targets, *row, *s.categories, *s.dates, *s.drop]

    def _check_columns(self) -> None:
        s, named = self.settings, [*self._list_named(), *(self.settings.numbers or ())]
        required = [c for c in named if c != s.client or self.needs_client]
        if missing := [column for column in required if column not in self.source.header]:
            raise DataError(self.source.explain_missing(missing[0]))
        if twice := [column for column in named if named.count(column) > 1]:
            raise ConfigError(f"column {twice[0]!r} is named for two purposes; name it once")
        if not self.features:
            raise DataError(f"{self.source.name} has no column of inputs; name some: numbers=['age']")
        for what, columns in (("scaling", s.scaling), ("fills", s.fills)):
            more = s.categories if what == "fills" else () if s.is_classified else s.targets
            possible = (*self.numbers, *s.dates, *more)
            if strange := [column for column in columns if column not in possible]:
                raise ConfigError(f"{what} names {strange[0]!r}, which is not an input; leave it out")

    def _check_values(self) -> None:
        s = self.settings
        for column, value in s.fills.items():
            is_number = column not in s.categories
            if value == "mean" and is_number:
                if not s.standardize or column in s.scaling:
                    raise ConfigError(
                        f"fills: {column} cannot take the client's mean, because it is not standardised; give a number"
                    )
            elif is_number and isinstance(value, str):
                raise ConfigError(f"fills: {column} = {value!r} is not a number; give a number, or 'mean'")
            elif is_number and not np.isfinite(float(value)):
                raise ConfigError(f"fills: {column} = {value} is not finite; give a number, or 'mean'")


class _Part:
    """A part of a table, whose columns are converted one at a time."""

    def __init__(self, reader: RowReader, frame: Any, begin: int) -> None:
        self.reader, self.frame, self.begin = reader, frame, begin

    def read_numbers(self, column: str) -> np.ndarray:
        """Return a column of numbers [n] in float64, NaN where a value is missing."""
        import pandas

        series: Any = self.frame[column]
        if pandas.api.types.is_datetime64_any_dtype(series):
            raise self._make_text_error(column, 0, series.astype(str).str[:10].to_numpy())
        if pandas.api.types.infer_dtype(series) == "boolean":  # of Python, beside missing values
            series = series.astype("boolean")
        if pandas.api.types.is_numeric_dtype(series) and not pandas.api.types.is_complex_dtype(
            series
        ):  # bool too
            found = series.to_numpy(np.float64, na_value=np.nan)
        else:
            text = to_text(series)
            found = to_numbers(text)
            strange = np.isnan(found) & ~np.isin(text, MISSING)
            if strange.any():
                raise self._make_text_error(column, int(np.argmax(strange)), text)
        self._check_size(column, found, np.isinf(found))
        return found

    def read_dates(self, column: str, day: str) -> np.ndarray:
        """Return the days from a given day to the dates of a column [n], NaN where one is missing."""
        import pandas

        try:
            first = pandas.Timestamp(day).tz_localize("UTC")
        except (ValueError, TypeError):
            raise ConfigError(f"dates: {column} = {day!r} is not a day; write it as in 2000-01-31") from None
        text = to_text(self.frame[column])
        found: Any = pandas.to_datetime(pandas.Series(text), errors="coerce", format="ISO8601", utc=True)
        # pandas reads "today" as a date, and -1 as a year.
        is_odd = np.array([not value[:1].isdigit() for value in text], dtype=bool)
        strange = (found.isna().to_numpy() | is_odd) & ~np.isin(text, MISSING)
        if strange.any():
            where = int(np.argmax(strange))
            raise DataError(
                f"{self.reader.source.name}: column {column} holds {text[where]!r} in {self._find(where)}, which is not a date such as "
                "2000-01-31; correct it"
            )
        # In one unit: that of pandas depends on the most precise date, which may be somebody else's.
        return ((found.dt.as_unit("us") - first) / pandas.Timedelta(days=1)).to_numpy(np.float64)

    def read_scaled(self, column: str, values: np.ndarray) -> np.ndarray:
        """Return numbers with missing ones filled, and scaled, as it was declared."""
        settings = self.reader.settings
        missing = np.isnan(values)
        if missing.any():
            fill = settings.fills.get(column)
            if fill is None:
                mean = ", or the client's own mean: 'mean'" if settings.standardize else ""
                raise DataError(
                    f"{self.reader.source.name}: column {column} has no value in {self._find(int(np.argmax(missing)))}; declare what "
                    f"stands for missing values: {self.reader.declare('fills', column, '0')}{mean}"
                )
            values = np.where(missing, np.nan if fill == "mean" else float(fill), values)
        scaled = self._scale(column, values)
        if column in settings.scaling or not settings.standardize:
            self._check_size(column, scaled, np.abs(scaled) > LARGEST)
        return scaled

    def _scale(self, column: str, values: np.ndarray) -> np.ndarray:
        less, size = self.reader.settings.scaling.get(column, (0.0, 1.0))
        return (values - less) / size

    def _check_size(self, column: str, values: np.ndarray, too_large: np.ndarray) -> None:
        """Raise DataError if values of a column are infinite, or would be in float32."""
        if too_large.any():
            where = int(np.argmax(too_large))
            raise DataError(
                f"{self.reader.source.name}: column {column} is {values[where]:g} in {self._find(where)}, which is too large; correct it"
            )

    def read_categories(self, column: str, declared: Sequence[str]) -> np.ndarray:
        """Return a column [n, k] of 0 and 1 for each declared value of a text column."""
        import pandas

        text = to_text(self.frame[column])
        fill = self.reader.settings.fills.get(column)
        text = np.where(text == "", "" if fill is None else str(fill), text)
        places = pandas.Index([str(value) for value in declared]).get_indexer(pandas.Index(text))
        if OTHERS in declared:
            places = np.where(places < 0, [*declared].index(OTHERS), places)
        if (places < 0).any():
            where = int(np.argmax(places < 0))
            self._raise_undeclared(column, where, text[where], declared)
        return np.eye(len(declared), dtype=np.float32)[places]

    def read_clients(self) -> np.ndarray:
        """Return the client of each row."""
        text = to_text(self.frame[self.reader.settings.client])
        blank = text == ""
        if blank.any():
            raise DataError(
                f"{self.reader.source.name} names no client in {self._find(int(np.argmax(blank)))}; fill in its column "
                f"{self.reader.settings.client}, or delete the row"
            )
        return text

    def read_keys(self, column: str) -> np.ndarray:
        """Return the numbers by which requests name rows."""
        text = to_text(self.frame[column])
        values = to_numbers(text)
        strange = ~(values >= 0) | (values != np.floor(values)) | (values >= 2**53)
        if strange.any():
            where = int(np.argmax(strange))
            raise DataError(
                f"{self.reader.source.name}: column {column} holds {text[where]!r} in {self._find(where)}, but requests name rows by whole "
                "numbers from 0; number the rows, or leave row= out"
            )
        return values.astype(np.int64)

    def read_targets(self) -> np.ndarray:
        """Return classes [n], or numbers [n, k]."""
        settings = self.reader.settings
        if settings.is_classified:
            return self._read_classes(settings.targets, settings.named_classes)
        columns = [self._scale(column, self.read_numbers(column)) for column in settings.targets]
        for column, values in zip(settings.targets, columns, strict=True):
            if np.isnan(values).any():
                where = self._find(int(np.argmax(np.isnan(values))))
                raise DataError(
                    f"{self.reader.source.name}: target {column} has no value in {where}; delete that row"
                )
            self._check_size(column, values, np.abs(values) > LARGEST)
            if settings.loss == "bce_with_logits" and not np.isin(values, (0, 1)).all():
                where = int(np.argmax(~np.isin(values, (0, 1))))
                raise DataError(
                    f"{self.reader.source.name}: target {column} is {values[where]:g} in {self._find(where)}, but bce_with_logits "
                    "needs 0 or 1; correct it, or choose another loss"
                )
        return np.stack(columns, axis=1).astype(np.float32)

    def _read_classes(self, targets: Sequence[str], declared: Sequence[str]) -> np.ndarray:
        import pandas

        if len(targets) > 1:
            raise ConfigError(
                f"several targets ({', '.join(targets)}) are not one class; give loss='bce_with_logits' for labels of 0 and 1, "
                "or loss='mse' for numbers"
            )
        text = to_text(self.frame[targets[0]])
        index = pandas.Index(list(declared))
        places = index.get_indexer(pandas.Index(text))
        if (places < 0).any():
            whole = np.array([WHOLE.sub(r"\1", v) if WHOLE.fullmatch(v) else v for v in text], dtype=object)
            places = np.where(places < 0, index.get_indexer(pandas.Index(whole)), places)
        if (places < 0).any():
            where = int(np.argmax(places < 0))
            if not text[where]:
                raise DataError(
                    f"{self.reader.source.name}: target {targets[0]} has no value in {self._find(where)}; delete that row"
                )
            values = self._list_values(targets[0])
            numbers = all(
                re.fullmatch(r"[-+]?\d*\.?\d+(e[-+]?\d+)?", value, re.IGNORECASE) for value in values
            )
            numeric = ", or loss='mse' if it is a number to predict" if numbers else ""
            alone = " (it is the only one in the table: add the others)" if len(values) == 1 else ""
            raise DataError(
                f"{self.reader.source.name}: target {targets[0]} is {text[where]!r} in {self._find(where)}, and not one of the classes "
                f"{', '.join(declared)}; declare them, {self._suggest('classes', values)}{alone}{numeric}"
            )
        return places.astype(np.int64)

    def _make_text_error(self, column: str, where: int, text: np.ndarray) -> DataError:
        """Return the error for a value that is not a number in a column of numbers."""
        reader, value = self.reader, text[where]
        if column in reader.settings.targets:
            return DataError(
                f"{reader.source.name}: target {column} holds {value!r} in {self._find(where)}, but the loss {reader.settings.loss} "
                "needs numbers; correct it, or leave loss= out and declare its classes: classes=[...]"
            )
        given, leave = self.frame[column].iloc[where], f"leave the column out, drop=[{column!r}]"
        if (
            kind := next((words for some, words in NOT_DECLARED.items() if isinstance(given, some)), None)
        ) is not None:
            return DataError(f"{reader.source.name}: column {column} holds {kind}; {leave}")
        if DATE.match(value):
            rewrite = "" if ISO_DATE.match(value) else "write them as 2000-01-31 and "
            return DataError(
                f"{reader.source.name}: column {column} holds dates ({value}); {rewrite}declare the day to count from, "
                f"{reader.declare('dates', column, reader.quote('2000-01-01'))}, or {leave}"
            )
        values = self._list_values(column)
        return DataError(
            f"{reader.source.name}: column {column} holds {value!r} in {self._find(where)}, which is not a number; correct it, "
            f"{leave}, or declare its values, {self._suggest('categories', values, column)}"
        )

    def _raise_undeclared(self, column: str, where: int, value: str, declared: Sequence[str]) -> None:
        if not value:
            raise DataError(
                f"{self.reader.source.name}: column {column} has no value in {self._find(where)}; declare what stands for missing values: "
                f"{self.reader.declare('fills', column, self.reader.quote(declared[0]))}"
            )
        raise DataError(
            f"{self.reader.source.name}: column {column} holds {value!r} in {self._find(where)}, which is not among its categories "
            f"{', '.join(declared)}; declare it, or {OTHERS!r} for all other values"
        )

    def _list_values(self, column: str) -> list[str]:
        """Return the values of a column in the whole table, as far as an error can name them."""
        found: set[str] = set()
        for frame in self.reader.list_frames():
            found.update(to_text(frame[column]))
            if len(found) > NAMED_AT_MOST:
                break
        return sorted(found - {""})

    def _suggest(self, what: str, values: Sequence[str], column: str | None = None) -> str:
        """Return a declaration of these values to paste."""
        if len(values) > NAMED_AT_MOST:
            named = ", ".join(map(self.reader.quote, values[:3]))
            listed = f"[{named}, ...] (there are more than {NAMED_AT_MOST})"
        else:
            listed = f"[{', '.join(map(self.reader.quote, values))}]"
        return f"{what}={listed}" if column is None else self.reader.declare(what, column, listed)

    def _find(self, where: int) -> str:
        """Return the place of a row in words."""
        number = self.begin + where
        return f"row {number + 1} after the header" if self.reader.source.is_text else f"row {number}"


def to_numbers(text: np.ndarray) -> np.ndarray:
    """Return text as float64, NaN where it is not a number."""
    import pandas

    parsed: Any = pandas.to_numeric(pandas.Series(text), errors="coerce")
    return parsed.to_numpy(np.float64)


def to_text(series: Any) -> np.ndarray:
    """Return the values of a column as text without spaces around, "" where one is missing; 1.0 becomes "1"."""
    import pandas

    values = series.astype(float) if pandas.api.types.is_float_dtype(series) else series
    text = np.array([_to_word(value) for value in values.to_numpy(dtype=object)], dtype=object)
    return np.where(series.isna().to_numpy(), "", text)


def _to_word(value: Any) -> str:
    """Return a value as text, which is the same in a column of numbers and beside text of others."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
