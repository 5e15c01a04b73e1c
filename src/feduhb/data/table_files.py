"""Open a table, a CSV or Parquet file or a DataFrame, and read it a part at a time."""

from __future__ import annotations

import csv
import difflib
import gzip
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feduhb.errors import DataError

VALUES_AT_ONCE = 2**19  # of a part
UNREADABLE = (ValueError, TypeError, OSError, EOFError, Warning)  # what a damaged file raises
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")  # in columns of numbers and dates


@dataclass(frozen=True, slots=True)
class Source:
    """A table that can be read several times, in parts."""

    name: str  # for errors
    header: tuple[str, ...]
    # DataFrames, of (columns, columns of numbers).
    read: Callable[[Sequence[str], Sequence[str]], Iterator[Any]]
    is_text: bool  # whether errors count rows from 1 after a header, without blank lines; else from 0

    @classmethod
    def open(cls, table: Any, advice: str = "check the path of the table") -> Source:
        """Return the source of a file or DataFrame.

        Args:
            advice: what to do if there is no such file.
        """
        if not isinstance(table, str | Path):
            return _open_frame(table)
        path = Path(table).expanduser()
        if not path.is_file():
            raise DataError(f"there is no file {path}; {advice}")
        suffixes = [one.lower() for one in path.suffixes]
        if suffixes[-1:] in ([".parquet"], [".pq"]):
            return _open_parquet(path)
        kind = next(iter(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:]), "")
        if kind not in {".csv", ".tsv"}:
            raise DataError(
                f"{path.name} is not a table that can be read; give a .csv, .tsv, .csv.gz or .parquet file, or a DataFrame"
            )
        return _open_csv(path, "\t" if kind == ".tsv" else ",")

    def explain_missing(self, column: str) -> str:
        """Return what an error says about a column that the table does not have."""
        shown = {name: name if name == name.strip() else repr(name) for name in self.header}
        near = difflib.get_close_matches(column, shown, n=1)
        meant = f"did you mean {shown[near[0]]}? It has" if near else "it has"
        return f"{self.name} has no column {column!r}; {meant} {', '.join([*shown.values()][:20])}"


@contextmanager
def explain_unreadable(name: str) -> Generator[None]:
    """Turn what a damaged file raises into a DataError, in one line."""
    try:
        yield
    except UNREADABLE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, Warning):  # the only one that is raised
            reason = "its lines have more values than its header"
        raise DataError(f"{name} cannot be read ({reason}); correct the file") from error


def _open_frame(table: Any) -> Source:
    if not hasattr(table, "iloc") or not hasattr(table, "columns"):
        raise DataError(
            f"a table is a file or a pandas DataFrame, not a {type(table).__name__}; give the path of a .csv or .parquet file, "
            "or a frame: pandas.DataFrame(...), table.to_pandas()"
        )
    header = tuple(map(str, table.columns))
    named = table.set_axis(list(header), axis=1)

    def read(columns: Sequence[str], _: Sequence[str]) -> Iterator[Any]:
        size = count_at_once(len(columns))
        return (named[[*columns]].iloc[begin : begin + size] for begin in range(0, len(named), size))

    return Source("the table", _check_header("the table", header), read, is_text=False)


def _open_csv(path: Path, separator: str) -> Source:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            header = tuple(next(filter(None, csv.reader(file, delimiter=separator)), ()))
    except (UnicodeDecodeError, OSError, EOFError, csv.Error) as error:
        raise DataError(f"{path.name} cannot be read ({error}); save it as text in UTF-8") from None
    _check_separator(path.name, header, separator)

    def read(columns: Sequence[str], numbers: Sequence[str]) -> Iterator[Any]:
        import pandas

        # All columns are read: pandas drops what is too much in a line if it is to read only some.
        with pandas.read_csv(
            path, sep=separator, encoding="utf-8-sig", chunksize=count_at_once(len(header)), index_col=False,
            dtype={column: "float64" if column in numbers else "str" for column in header}, keep_default_na=False,
            na_values=dict.fromkeys(numbers, MISSING),
        ) as parts:  # fmt: skip
            while True:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", pandas.errors.ParserWarning)
                    part = next(parts, None)
                if part is None:
                    return
                yield part[list(columns)]

    return Source(path.name, _check_header(path.name, header), read, is_text=True)


def _open_parquet(path: Path) -> Source:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(
            f"{path.name} is a Parquet file, which needs the package pyarrow; in a clone: pip install -c constraints.txt '.[parquet]'"
        ) from None
    try:
        header = tuple(ParquetFile(path).schema_arrow.names)
    except (ArrowInvalid, OSError) as error:
        raise DataError(f"{path.name} cannot be read ({error}); give a Parquet file") from None

    def read(columns: Sequence[str], _: Sequence[str]) -> Iterator[Any]:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(count_at_once(len(columns)), columns=list(columns)):
                yield batch.to_pandas(ignore_metadata=True)  # which could turn a column into an index

    return Source(path.name, _check_header(path.name, header), read, is_text=False)


def _check_separator(name: str, header: tuple[str, ...], separator: str) -> None:
    """Raise DataError if a header is a single name that holds another separator, such as the semicolons of spreadsheets."""
    found = next((other for other in ";,\t|" if len(header) == 1 and other in header[0]), None)
    if found is not None:
        raise DataError(
            f"{name} separates its values by {found!r} and not by {separator!r}; save it with {separator!r} and decimal points, or "
            f"give the DataFrame pandas.read_csv({name!r}, sep={found!r})"
        )


def _check_header(name: str, header: tuple[str, ...]) -> tuple[str, ...]:
    if not header:
        raise DataError(f"{name} is empty; give a table with a header and rows")
    if "" in header:
        raise DataError(
            f"{name} has a column without a name, as pandas writes an index; name it, or write the table with index=False"
        )
    if twice := [column for column in header if header.count(column) > 1]:
        raise DataError(f"{name} has two columns {twice[0]!r}; rename one")
    return header


def count_at_once(columns: int) -> int:
    """Return how many rows of a table are read at once."""
    return max(1000, VALUES_AT_ONCE // max(1, columns))
