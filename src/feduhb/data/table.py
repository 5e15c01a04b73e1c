"""A federation from a table: a file or a DataFrame in which one column names the client of each row.

Nothing is inferred from the rows. Categories, classes, scales and fills that depend on everybody's rows would carry a leaver
into the inputs of the others, so they are declared, and recorded with the run. Every error about an undeclared value
prints the declaration that is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from feduhb.core.flat import ModelSource
from feduhb.core.types import ClientId
from feduhb.data.download import print_notice
from feduhb.data.federation import Federation, check_id
from feduhb.data.split import Shared, number_rows, split_rows
from feduhb.data.storage import RowWriter
from feduhb.data.table_files import Source
from feduhb.data.table_rows import RowReader, Rows
from feduhb.errors import ConfigError, DataError
from feduhb.models import make_model

if TYPE_CHECKING:
    from feduhb.data.load import FederationSettings

FORBID = {"extra": "forbid"}  # pydantic refuses unknown keys


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """[federation.table]: a file with a row for each example, and what its columns mean."""

    path: str = ""  # of a .csv, .tsv or .parquet file
    client: str  # the column that names the client of a row
    target: str | tuple[str, ...]  # the column to predict, or several
    test: float | str = (
        0.2  # the share of every client's rows on which models are scored, or a file of the server's own
    )
    row: str | None = (
        None  # a column of whole numbers by which requests name rows; None: rows are counted from 0
    )
    numbers: tuple[str, ...] | None = None  # columns of numbers; None: all columns that nothing else names
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the values of text columns
    dates: Mapping[str, str] = field(default_factory=dict)  # columns of dates, and the day to count from
    drop: tuple[str, ...] = ()  # columns to leave out
    classes: tuple[str | int, ...] | None = None  # the values of the target; None: 0 and 1
    scaling: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  # what to subtract, what to divide by
    fills: Mapping[str, float | str] = field(default_factory=dict)  # what stands for a missing value
    standardize: bool = (
        True  # standardise each client's columns without declared scaling by its own mean and spread
    )
    loss: str | None = None  # None: cross-entropy, so the target is a class

    __pydantic_config__ = FORBID

    def __post_init__(self) -> None:
        if not isinstance(self.test, str) and not 0 < self.test < 1:
            raise ConfigError(
                f"test is {self.test}; give a share between 0 and 1, such as 0.2, or a file of the server's own"
            )
        for name, pair in self.scaling.items():
            if not (math.isfinite(pair[0]) and 0 < pair[1] < math.inf):
                raise ConfigError(
                    f"the scaling of {name} is {pair}; give what to subtract, and a number above 0 to divide by"
                )
        for name, values in {**self.categories, "the classes": self.classes or (0, 1)}.items():
            if len({*map(str, values)}) < len(values) or not values:
                raise ConfigError(
                    f"{name}: {list(values)!r} is empty or names a value twice; name each value once"
                )
        if self.classes is not None and len(self.classes) < 2:
            raise ConfigError(f"the classes are {list(self.classes)!r}; name at least two")

    @classmethod
    def of(cls, **given: Any) -> TableSettings:
        """Return settings from the values that users give in Python: also of numpy, dates and paths."""
        from pydantic import TypeAdapter, ValidationError

        values = {**given, "categories": {c: [*map(str, some)] for c, some in given["categories"].items()}}
        try:
            return TypeAdapter(cls).validate_json(json.dumps(values, default=_to_plain), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ConfigError(f"{place} = {first['input']!r} is invalid: {first['msg'].lower()}") from None

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


def _to_plain(value: Any) -> Any:
    """Return an array, a number of numpy, a date or a path as a value that a config can hold."""
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
        more: further arguments of `Federation`.
    """
    reader = RowReader(Source.open(table), settings)
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
        found = read_rows(RowReader(Source.open(own), columns, needs_client=False))
        server = (found.x, found.y)
    if about is not None and about.table is not None:  # a column that is added to the file later is no input
        about = replace(about, table=replace(about.table, numbers=reader.numbers))
    return Federation(
        split.trained, server or split.tested, model, seed=seed, held_out=split.held_out, standardize=reader.list_standardized() or False,
        numbered_together=True, loss=settings.loss or "cross_entropy", about=about, **more,
    )  # fmt: skip


def read_rows(reader: RowReader) -> Shared:
    """Read all rows of a table, a part at a time."""
    settings = reader.settings
    shape = () if settings.is_classified else (len(settings.targets),)
    clients: dict[ClientId, int] = {}
    counts = np.zeros(0, np.int64)  # rows of each client so far
    with (
        RowWriter(
            torch.float64 if reader.list_standardized() else torch.float32, (len(reader.features),)
        ) as x,
        RowWriter(torch.int64 if settings.is_classified else torch.float32, shape) as y,
        RowWriter(torch.int32) as owners,
        RowWriter(torch.int64) as keys,
    ):
        for part in reader:
            x.append(part.x)
            y.append(part.y)
            own = _number_clients(part, clients)
            owners.append(own)
            counts = np.pad(counts, (0, len(clients) - len(counts)))
            counted = number_rows(torch.from_numpy(own), len(clients)).numpy() + counts[own]
            keys.append(counted if part.keys is None else part.keys)
            counts += np.bincount(own, minlength=len(clients))
        if not x.count:
            raise DataError(f"{reader.name} holds no rows; give a table with at least one")
        found = Shared(
            reader.name, x.finish(), y.finish(), owners.finish(), tuple(clients), keys.finish(), settings.row is not None
        )  # fmt: skip
    if settings.is_classified and reader.needs_client and len(torch.unique(found.y)) < 2:
        only = settings.named_classes[int(found.y[0])]
        print_notice(
            f"every row of {found.name} has {settings.targets[0]} = {only}, so there is nothing to learn; check target="
        )
    for client in clients:
        check_id(client)
    return found


def _number_clients(part: Rows, clients: dict[ClientId, int]) -> np.ndarray:
    """Return the position of each row's client; add new clients in the order of their first rows."""
    names, first, places = np.unique(part.clients, return_index=True, return_inverse=True)
    for place in np.argsort(first, kind="stable"):
        clients.setdefault(str(names[place]), len(clients))
    return np.array([clients[str(name)] for name in names], dtype=np.int32)[places]
