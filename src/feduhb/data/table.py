"""A federation from a table: a file or a DataFrame in which one column names the client of each row.

Nothing is inferred from the rows. Categories, classes, scales and fills that depend on everybody's rows would carry a leaver
into the inputs of the others, so they are declared, and recorded with the run. Every error about an undeclared value
prints the declaration that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feduhb.core.flat import ModelSource
from feduhb.core.seeds import seed_for
from feduhb.core.types import ClientId
from feduhb.data.download import print_notice
from feduhb.data.federation import Examples, Federation
from feduhb.data.storage import RowWriter
from feduhb.data.table_files import Source
from feduhb.data.table_rows import RowReader, Rows
from feduhb.errors import ConfigError, DataError
from feduhb.models import make_model

FORBID = {"extra": "forbid"}  # pydantic refuses unknown keys
HASHED_AT_ONCE = 2**16  # rows
MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of SplitMix64


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
            if not pair[1] > 0:
                raise ConfigError(f"the scaling of {name} divides by {pair[1]:g}; divide by a number above 0")
        for name, values in {**self.categories, "the classes": self.classes or (0, 1)}.items():
            if len({*map(str, values)}) < len(values) or not values:
                raise ConfigError(
                    f"{name}: {list(values)!r} is empty or names a value twice; name each value once"
                )
        if self.classes is not None and len(self.classes) < 2:
            raise ConfigError(f"the classes are {list(self.classes)!r}; name at least two")

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


def read_table_federation(
    table: Any,
    settings: TableSettings,
    *,
    held_out: float,
    model: str | ModelSource | None,
    seed: int,
    **more: Any,
) -> Federation:
    """Return the federation of a table.

    Args:
        table: a file, or a DataFrame.
        held_out: the share of every client's rows that is neither trained on nor in the test set.
        model: the name of a model, a module or a factory; None: "mlp".
        seed: of the split of the rows, and of the runs.
        more: further arguments of `Federation`.
    """
    found = read_rows(table, settings)
    if model is None or isinstance(model, str):
        outputs = len(settings.named_classes if settings.is_classified else settings.targets)
        model = make_model(model or "mlp", found.x.shape[1:], outputs)
    parts = split_rows(found, seed, 0.0 if isinstance(settings.test, str) else settings.test, held_out)
    if not parts.trained:
        raise DataError(
            f"{found.name} holds no row to train on; give more rows, or a smaller test and held_out"
        )
    if alone := [client for client in found.clients if client not in parts.trained]:
        print_notice(
            f"client {alone[0]}{f' and {len(alone) - 1} others' if len(alone) > 1 else ''} takes no part in training, because "
            "all of its rows are held out or in the test set"
        )
    test: Any = parts.tested
    if isinstance(settings.test, str):
        own = read_rows(settings.test, replace(settings, row=None), needs_client=False)
        test = (own.x, own.y)
    elif not parts.tested:
        raise DataError(
            f"no row of {found.name} falls into the test set of {settings.test:g}; give a larger share, or a file: test='test.csv'"
        )
    standardized = found.reader.list_unscaled() if settings.standardize else []
    return Federation(
        parts.trained, test, model, seed=seed, held_out=parts.held_out, standardize=standardized or False,
        numbered_together=True, loss=settings.loss or "cross_entropy", **more,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of a table as tensors."""

    name: str  # of the file, for errors
    reader: RowReader
    x: Tensor  # [N, d]
    y: Tensor  # [N] classes, or [N, k] numbers
    owners: Tensor  # [N] positions in `clients`
    clients: tuple[ClientId, ...]
    keys: Tensor  # [N] by which requests name rows


def read_rows(table: Any, settings: TableSettings, *, needs_client: bool = True) -> Table:
    """Read all rows of a table, a part at a time."""
    reader = RowReader(Source.open(table), settings, needs_client)
    shape = () if settings.is_classified else (len(settings.targets),)
    clients: dict[ClientId, int] = {}
    with (
        RowWriter(torch.float32, (len(reader.features),)) as x,
        RowWriter(torch.int64 if settings.is_classified else torch.float32, shape) as y,
        RowWriter(torch.int32) as owners,
        RowWriter(torch.int64) as keys,
    ):
        for part in reader:
            x.append(part.x)
            y.append(part.y)
            owners.append(_number_clients(part, clients))
            keys.append(part.keys if part.keys is not None else np.zeros(0, np.int64))
        if not x.count:
            raise DataError(f"{reader.name} holds no rows; give a table with at least one")
        who = owners.finish()
        numbers = _count_rows(who, len(clients)) if settings.row is None else keys.finish()
        found = Table(reader.name, reader, x.finish(), y.finish(), who, tuple(clients), numbers)
    if settings.is_classified and needs_client and len(torch.unique(found.y)) < 2:
        only = settings.named_classes[int(found.y[0])]
        raise DataError(
            f"every row of {found.name} has {settings.targets[0]} = {only}, so there is nothing to learn; check target="
        )
    return found


def _number_clients(part: Rows, clients: dict[ClientId, int]) -> np.ndarray:
    """Return the position of each row's client; add new clients in the order of their first rows."""
    names, places = np.unique(part.clients, return_inverse=True)
    first = np.unique(places, return_index=True)[1]
    for place in np.argsort(first, kind="stable"):
        clients.setdefault(str(names[place]), len(clients))
    return np.array([clients[str(name)] for name in names], dtype=np.int32)[places]


def _count_rows(owners: Tensor, clients: int) -> Tensor:
    """Return the number of each row among the rows of its client, from 0, in the order of the table."""
    order = torch.argsort(owners, stable=True)
    sizes = torch.bincount(owners, minlength=clients)
    starts = torch.cumsum(sizes, 0) - sizes
    keys = torch.empty(len(owners), dtype=torch.int64)
    keys[order] = torch.arange(len(owners)) - starts[owners[order]]
    return keys


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of every client that has some, to train on, held out, and to test on."""

    trained: dict[ClientId, Examples]
    held_out: dict[ClientId, Examples]
    tested: dict[ClientId, Examples]


def split_rows(table: Table, seed: int, test: float, held_out: float) -> Split:
    """Split the rows of every client by a hash of (seed, client, row), so that no row moves when others are deleted.

    The row is its number in the column that names rows or, without such a column, its content: equal rows stay together.
    """
    parts = _choose_parts(table, seed, test, held_out)
    found = Split({}, {}, {})
    order = torch.argsort(table.owners, stable=True)
    sizes = torch.bincount(table.owners, minlength=len(table.clients)).tolist()
    for client, rows in zip(table.clients, order.split(sizes), strict=True):
        for number, part in enumerate((found.trained, found.held_out, found.tested)):
            chosen = rows[parts[rows] == number]
            if len(chosen):
                part[client] = Examples(table.x, table.y, chosen, table.keys[chosen])
    for client in {*found.held_out} - {*found.trained}:
        del found.held_out[client]
    return found


def _choose_parts(table: Table, seed: int, test: float, held_out: float) -> Tensor:
    """Return the part of each row: 0 to train on, 1 held out, 2 to test on."""
    salts = np.array([seed_for(seed, "split", client) for client in table.clients], dtype=np.uint64)
    found = torch.zeros(len(table.x), dtype=torch.uint8)
    for begin in range(0, len(found), HASHED_AT_ONCE):
        some = slice(begin, begin + HASHED_AT_ONCE)
        value = salts[table.owners[some].numpy()]
        for bits in _list_bits(table, some):
            value = _mix(value ^ _mix(bits + np.uint64(MIX[0])))
        share = (value >> np.uint64(11)) / np.float64(2**53)  # uniform in [0, 1)
        is_held = (share - test) / (1 - test) < held_out
        found[some] = torch.from_numpy(np.where(share < test, 2, np.where(is_held, 1, 0)))
    return found


def _list_bits(table: Table, part: slice) -> list[np.ndarray]:
    """Return what tells the rows of a part from others: their names, or all of their values."""
    if table.reader.settings.row is not None:
        return [table.keys[part].numpy().astype(np.uint64)]
    y = table.y[part].reshape(len(table.y[part]), -1).to(torch.float32)
    values = torch.cat([table.x[part], y], dim=1).add(0.0)  # -0 and 0 are equal
    return [*values.numpy().view(np.uint32).T.astype(np.uint64)]


def _mix(value: np.ndarray) -> np.ndarray:
    """Return the mixing function of SplitMix64, modulo 2^64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(MIX[1])
    value = (value ^ (value >> np.uint64(27))) * np.uint64(MIX[2])
    return value ^ (value >> np.uint64(31))
