"""A federation from a table: a file or a DataFrame in which one column names the client of each row.

Nothing is inferred from the rows. Categories, classes, scales and fills that depend on everybody's rows would carry a leaver
into the inputs of the others, so they are declared; the run of a file records them. Every error about an undeclared value
prints the declaration that is missing.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from feduhb.core.checks import check_share
from feduhb.core.flat import ModelSource
from feduhb.core.types import ClientId
from feduhb.data.download import print_notice
from feduhb.data.federation import Federation, check_id
from feduhb.data.split import Shared, number_rows, split_rows
from feduhb.data.storage import RowWriter
from feduhb.data.table_files import Source, count_at_once
from feduhb.data.table_rows import DAY, RowReader, Rows
from feduhb.errors import ConfigError, DataError
from feduhb.models import make_model

if TYPE_CHECKING:
    from feduhb.data.load import FederationSettings

Batch = list[tuple[int, int]]  # the first row of each range, and the row after it
# The last part of the place where pydantic found a wrong value, if the setting may be of several types.
KINDS = ("float", "int", "str", "bool", "tuple[str, ...]")
MOVED = "check the path of the table, or name the file if it was moved: --data FILE (in Python data=)"
MOVED_TEST = "it is the server's test table, which --data does not name; put that file back there"
FORBID = {"extra": "forbid"}  # pydantic refuses unknown keys


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """[federation.table]: a file with a row for each example, and what its columns mean."""

    path: str = ""  # of a .csv, .tsv or .parquet file
    client: str  # the column that names the client of a row
    target: str | tuple[str, ...]  # the column to predict, or several
    # The share of every client's rows on which models are scored, or a file of the server's own.
    test: float | str = 0.2
    # A column of whole numbers by which requests name rows; None: rows are counted from 0.
    row: str | None = None
    numbers: tuple[str, ...] | None = None  # columns of numbers; None: all columns that nothing else names
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the values of text columns
    dates: Mapping[str, str] = field(default_factory=dict)  # columns of dates, and the day to count from
    drop: tuple[str, ...] = ()  # columns to leave out
    classes: tuple[str | int, ...] | None = None  # the values of the target; None: 0 and 1
    # What to subtract, what to divide by.
    scaling: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fills: Mapping[str, float | str] = field(default_factory=dict)  # what stands for a missing value
    # Standardise each client's columns without declared scaling by its own mean and spread.
    standardize: bool = True
    loss: str | None = None  # None: cross-entropy, so the target is a class

    __pydantic_config__ = FORBID

    def __post_init__(self) -> None:
        if not isinstance(self.test, str):
            check_share("test", self.test, positive=True)
        for name, pair in self.scaling.items():
            if not (math.isfinite(pair[0]) and 0 < pair[1] < math.inf):
                raise ConfigError(
                    f"the scaling of {name} is {pair}; give what to subtract, and a number above 0 to divide by"
                )
        for column, day in self.dates.items():
            if not DAY.fullmatch(day):
                raise ConfigError(f"dates: {column} = {day!r} is not a day; write it as in 2000-01-31")
        for name, values in {**self.categories, "the classes": self.classes or (0, 1)}.items():
            if len({*map(str, values)}) < len(values) or not values:
                raise ConfigError(
                    f"{name}: {list(values)!r} is empty or names a value twice; name each value once"
                )
        if not self.targets:
            raise ConfigError("target names no column; name the one to predict: target='disease'")
        if self.classes is not None and len(self.classes) < 2:
            raise ConfigError(f"the classes are {list(self.classes)!r}; name at least two")

    @classmethod
    def of(cls, **given: Any) -> TableSettings:
        """Return settings from the values that users give in Python: also of numpy, dates and paths."""
        from pydantic import TypeAdapter, ValidationError

        categories = given["categories"]
        if isinstance(categories, Mapping):
            categories = {c: _list_texts(some) for c, some in categories.items()}
        values = {**given, "categories": categories}
        classes: Any = given.get("classes")
        classes = classes.tolist() if hasattr(classes, "tolist") else classes
        if isinstance(classes, list | tuple):
            values["classes"] = [_to_class(value) for value in classes]
        try:
            return TypeAdapter(cls).validate_json(json.dumps(values, default=_to_plain), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            *parents, last = map(str, first["loc"])
            place = ".".join(parents if parents and last in KINDS else (*parents, last))
            raise ConfigError(
                f"{place} = {reprlib.repr(first['input'])} is invalid: {first['msg'].lower()}"
            ) from None

    def resolve(self, folder: Path) -> TableSettings:
        """Return the settings with paths that are relative to a folder made absolute."""

        def find(path: str) -> str:
            return str((folder / Path(path).expanduser()).absolute())

        return replace(
            self, path=find(self.path), test=find(self.test) if isinstance(self.test, str) else self.test
        )

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.target,) if isinstance(self.target, str) else tuple(self.target)

    @property
    def is_classified(self) -> bool:
        """Whether the target is a class, and not a number."""
        return self.loss in {None, "cross_entropy"}

    @property
    def named_classes(self) -> tuple[str, ...]:
        """The values of a target that is a class, as text."""
        return tuple(map(str, self.classes or (0, 1)))


def _list_texts(values: Any) -> Any:
    """Return declared values as text. What has no order, such as a set, stays as it is: it is not valid."""
    is_listed = isinstance(values, Iterable) and not isinstance(values, str | set | frozenset)
    return [*map(str, values)] if is_listed else values


def _to_class(value: Any) -> Any:
    """Return a declared class as in a CSV file: truth values as text, and 1.0, as pandas reads whole numbers, as 1."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, bool):
        return str(plain)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def _to_plain(value: Any) -> Any:
    """Return an array, a number of numpy, a date or a path as a value that a config can hold."""
    if isinstance(value, datetime):
        return str(value.date() if value.time() == time() else value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


def read_table_federation(
    table: Any,
    settings: TableSettings,
    *,
    held_out: float,
    model: str | ModelSource | None,
    seed: int,
    test: Any = None,
    about: FederationSettings | None = None,
    in_config: bool = False,
    **more: Any,
) -> Federation:
    """Return the federation of a table.

    Args:
        table: a file, or a DataFrame.
        held_out: the share of every client's rows that is neither trained on nor in the test set.
        model: the name of a model, a module or a factory; None: "mlp".
        seed: of the split of the rows, and of the runs.
        test: a table of the server's own, a file or a DataFrame; None: as the settings say.
        about: the settings that describe the federation in a config file.
        in_config: whether the declarations come from a config, so that errors print them as there.
        more: further arguments of `Federation`.
    """
    advice = (MOVED, MOVED_TEST) if in_config else ("check the path of the table", "check the path in test=")
    reader = RowReader(Source.open(table, advice[0]), settings, in_config=in_config)
    rows = read_rows(reader)
    if model is None or isinstance(model, str):
        outputs = len(settings.named_classes if settings.is_classified else settings.targets)
        model = make_model(model or "mlp", rows.x.shape[1:], outputs)
    own = settings.test if test is None and isinstance(settings.test, str) else test
    share = 0.0 if own is not None or isinstance(settings.test, str) else settings.test
    split = split_rows(rows, seed=seed, test=share, held_out=held_out)
    server = None
    if own is not None:
        columns = replace(settings, row=None, numbers=reader.numbers)
        source = Source.open(own, advice[1])
        found = read_rows(RowReader(source, columns, needs_client=False, in_config=in_config))
        server = (found.x, found.y)
    if about is not None and about.table is not None:  # a column that is added to the file later is no input
        about = replace(about, table=replace(about.table, numbers=reader.numbers))
    return Federation(
        split.trained, server or split.tested, model, seed=seed, held_out=split.held_out, standardize=reader.list_standardized() or False,
        numbered_together=True, loss=settings.loss or "cross_entropy", about=about, **more,
    )  # fmt: skip


def read_rows(reader: RowReader) -> Shared:
    """Read all rows of a table, a part at a time, and lay them out client by client."""
    settings = reader.settings
    shape = () if settings.is_classified else (len(settings.targets),)
    clients: dict[ClientId, int] = {}
    counts = np.zeros(0, np.int64)  # rows of each client so far
    ends = [0]  # of the parts
    with (
        RowWriter(
            torch.float64 if reader.list_standardized() else torch.float32, (len(reader.features),)
        ) as x,
        RowWriter(torch.int64 if settings.is_classified else torch.float32, shape) as y,
        RowWriter(torch.int32) as owners,
        RowWriter(torch.int64) as keys,
    ):
        for part in reader:
            own = _number_clients(part, clients)
            order = np.argsort(own, kind="stable")
            own = own[order]
            counts = np.pad(counts, (0, len(clients) - len(counts)))
            counted = number_rows(torch.from_numpy(own), len(clients)).numpy() + counts[own]
            counts += np.bincount(own, minlength=len(clients))
            named = counted if part.keys is None else part.keys[order]
            for writer, values in ((x, part.x[order]), (y, part.y[order]), (owners, own), (keys, named)):
                writer.append(values)
            ends.append(x.count)
        if not x.count:
            raise DataError(f"{reader.source.name} holds no rows; give a table with at least one")
        batches = _list_batches(owners, ends, counts, count_at_once(len(reader.features)))
        found = Shared(
            reader.source.name, _merge(x, owners, batches), _merge(y, owners, batches), _merge(owners, owners, batches), tuple(clients),
            _merge(keys, owners, batches), settings.row is not None,
        )  # fmt: skip
    if settings.is_classified and reader.needs_client and found.y.min() == found.y.max():
        only = settings.named_classes[int(found.y[0])]
        print_notice(
            f"every row of {found.name} has {settings.targets[0]} = {only}, so there is nothing to learn; check target="
        )
    for client in clients:
        check_id(client)
    return found


def _list_batches(owners: RowWriter, ends: Sequence[int], counts: np.ndarray, size: int) -> list[Batch]:
    """Return the rows of the first clients, of the next clients, ...: in every part of the table a range of rows.

    A batch has at most ``size`` rows, or it is one client. In every part the rows are sorted by client.
    """
    after = np.cumsum(counts)
    places = np.stack([(after - counts) // size, (after - 1) // size])  # equal for clients of one batch
    first = np.flatnonzero(np.diff(places, prepend=-1).any(axis=0))  # client of each batch
    cuts = np.stack(
        [
            begin + np.searchsorted(owners.read(begin, end), np.append(first, len(counts)))
            for begin, end in pairwise(ends)
        ]
    )
    return [
        [(int(begin), int(end)) for begin, end in zip(cuts[:, k], cuts[:, k + 1], strict=True) if begin < end]
        for k in range(len(first))
    ]


def _merge(writer: RowWriter, owners: RowWriter, batches: Sequence[Batch]) -> Tensor:
    """Return rows in the order of their clients, and within a client in the order of the table."""
    with RowWriter(writer.dtype, writer.shape) as merged:
        for batch in batches:
            own = np.concatenate([owners.read(*rows) for rows in batch])
            if own[0] == own[-1]:  # one client, which may be large
                for rows in batch:
                    merged.append(writer.read(*rows))
            else:
                found = np.concatenate([writer.read(*rows) for rows in batch])
                merged.append(found[np.argsort(own, kind="stable")])
        return merged.finish()


def _number_clients(part: Rows, clients: dict[ClientId, int]) -> np.ndarray:
    """Return the position of each row's client; add new clients in the order of their first rows."""
    names, first, places = np.unique(part.clients, return_index=True, return_inverse=True)
    for place in np.argsort(first, kind="stable"):
        clients.setdefault(str(names[place]), len(clients))
    return np.array([clients[str(name)] for name in names], dtype=np.int32)[places]
