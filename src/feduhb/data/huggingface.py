"""A federation from a Hugging Face data set, one column of which names the client of each row.

Classes come from the data set's features or from the caller, never from the rows: a class that only a leaver holds would
otherwise change the model of the others. Where a row goes depends on nothing but the seed, its client and its key: its
position among the rows of the client, or a number that stays when other rows are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from feduhb.core.checks import check_share, name_kind
from feduhb.core.flat import ModelSource
from feduhb.core.types import ClientId
from feduhb.data.columns import (
    find_missing,
    find_type,
    is_scalar,
    is_transformed,
    list_values,
    read_column,
    read_inputs,
)
from feduhb.data.split import Shared, number_rows, split_rows
from feduhb.errors import DataError
from feduhb.models import make_model

if TYPE_CHECKING:
    from feduhb.data.federation import Federation

TEST_SHARE = 0.2  # of each client's rows, if there is no test set
OF_TABLES = ("categories", "dates", "drop", "fills", "numbers", "scaling")  # further arguments, for a table
SHOWN = 20  # classes in an error that shows how to declare them


@dataclass(frozen=True, slots=True)
class Roles:
    """Which columns of a data set hold what."""

    client: str
    target: str
    inputs: list[str]
    row: str | None  # the keys of rows; None: their positions among the rows of the client
    classes: list[Any] | None  # in the order of their numbers; None: the targets are numbers

    def read(self, data: Any) -> tuple[Any, Tensor]:
        """Return the inputs [n, ...] and targets [n, ...] of a data set."""
        return read_inputs(data, self.inputs), _read_targets(data, self.target, self.classes)


def read_huggingface(
    data: Any,
    *,
    client: str,
    target: str,
    columns: Sequence[str] | None,
    row: str | None,
    test: Any,
    held_out: float,
    classes: Sequence[Any] | None,
    model: str | ModelSource,
    seed: int,
    more: Mapping[str, Any],
) -> Federation:
    """Return the federation of a data set; `feduhb.Federation.from_huggingface` lists the arguments."""
    from feduhb.data.federation import PASSED, Federation, check_passed

    trained, tested = _choose_splits(data, test)
    if any(is_transformed(some) for some in (trained, tested) if not isinstance(some, float)):
        raise DataError(
            "the data set has a transform of its own, which would run on every read; apply it once: ds.map(function)"
        )
    chosen = _choose_columns(trained, client, target, columns, row, classes)
    if not isinstance(tested, float):
        _check_columns(tested, [target, *chosen.inputs], "test set")
    else:
        check_share("test", tested, positive=True)
    check_share("held_out", held_out)
    is_table = all(is_scalar(trained.features[name]) for name in chosen.inputs)
    check_passed(
        "Federation.from_huggingface",
        more,
        (*PASSED, "loss", "standardize", *(OF_TABLES if is_table else ())),
    )
    _check_text(
        trained, chosen.inputs, {*more.get("categories", {}), *more.get("dates", {})}, is_table=is_table
    )
    if is_table:
        return _read_as_table(trained, chosen, tested, held_out=held_out, model=model, seed=seed, more=more)
    x, y = chosen.read(trained)
    if isinstance(model, str):
        model = _make_named(model, x, y, chosen)
    ids = _read_ids(trained, client)
    names = {name: place for place, name in enumerate(dict.fromkeys(ids))}
    owners = torch.tensor([names[name] for name in ids])
    keys = number_rows(owners, len(names)) if row is None else torch.tensor(_read_keys(trained, row))
    rows = Shared("the data set", x, y, owners, tuple(names), keys, row is not None)
    share = tested if isinstance(tested, float) else 0.0
    split = split_rows(rows, seed=seed, test=share, held_out=held_out)
    return Federation(
        split.trained, split.tested if isinstance(tested, float) else chosen.read(tested), model, seed=seed,
        held_out=split.held_out, numbered_together=True, **more,
    )  # fmt: skip


def _choose_splits(data: Any, test: Any) -> tuple[Any, Any]:
    """Return the data set to train on, and the test set or its share."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            "Federation.from_huggingface needs the package datasets; in a clone: pip install -c constraints.txt '.[huggingface]'"
        ) from None
    if isinstance(data, datasets.DatasetDict):
        if "train" not in data or ("test" not in data and test is None):
            raise DataError(
                f"the splits are {', '.join(map(str, data)) or 'none'}; give those called train and test, or one data set: "
                "ds['train'], with test= a data set or a share"
            )
        data, test = data["train"], data["test"] if test is None else test
    test = TEST_SHARE if test is None else test
    for what, given in (("data", data), ("test set", test)):
        if not isinstance(given, datasets.Dataset) and not (given is test and isinstance(given, float | int)):
            raise DataError(
                f"the {what} is {name_kind(given)}; give a datasets.Dataset, which load_dataset returns without "
                "streaming=True"
            )
    if not len(data):
        raise DataError("the data holds no rows; give a data set with at least one")
    return data, float(test) if isinstance(test, int | float) else test


def _check_columns(data: Any, names: Sequence[str], what: str) -> None:
    if missing := [name for name in names if name not in data.column_names]:
        raise DataError(
            f"there is no column {missing[0]!r} in the {what}; the columns are {', '.join(data.column_names)}"
        )


def _choose_columns(
    data: Any,
    client: str,
    target: str,
    columns: Sequence[str] | None,
    row: str | None,
    classes: Sequence[Any] | None,
) -> Roles:
    named = [client, target] if row is None else [client, target, row]
    columns = [columns] if isinstance(columns, str) else columns
    inputs = [name for name in data.column_names if name not in named] if columns is None else [*columns]
    _check_columns(data, [*named, *inputs], "data")
    if len({*named, *inputs}) < len(named) + len(inputs) or not inputs:
        raise DataError(
            f"client is {client!r}, target {target!r}, row {row!r} and columns {inputs}; name each column once, and at least one input"
        )
    return Roles(client, target, inputs, row, _choose_classes(data, target, classes))


def _is_text(feature: Any) -> bool:
    return is_scalar(feature) and find_type(feature) in ("string", "large_string")


def _check_text(data: Any, inputs: Sequence[str], declared: set[str], *, is_table: bool) -> None:
    for name in inputs:
        if _is_text(data.features[name]) and name not in declared:
            declare = f", or declare its categories: categories={{{name!r}: [...]}}" if is_table else ""
            raise DataError(
                f"column {name!r} holds text; turn it into tokens with ds.map, or name the other inputs: columns=[...]{declare}"
            )


def _choose_classes(data: Any, target: str, classes: Sequence[Any] | None) -> list[Any] | None:
    """Return the classes that the data set or the caller declares; None if there are none."""
    feature = data.features[target]
    names = getattr(feature, "names", None)
    if names is not None and classes is not None and [*classes] != names:
        raise DataError(f"column {target!r} declares the classes {names}; leave classes= out")
    if (declared := names or classes) is not None:
        return [*declared]
    if _is_text(feature):
        found = sorted({str(value) for value in data.unique(target) if value is not None})
        raise DataError(
            f"the targets in column {target!r} are text; declare their classes, so that they stay when a client leaves: {_show_classes(found)}"
        )
    return None


def _show_classes(found: Sequence[Any]) -> str:
    """Return a declaration of classes to paste."""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"classes={[*found[:SHOWN]]}{more}"


def _read_targets(data: Any, target: str, classes: list[Any] | None) -> Tensor:
    names = getattr(data.features[target], "names", None)
    if (missing := find_missing(data, target)) is not None:
        raise DataError(f"row {missing} has no target; leave the row out")
    if classes is None or (names is not None and names == classes):
        found = read_column(data, target)
        if classes is not None and bool((found < 0).any()):
            raise DataError(
                f"row {int((found < 0).nonzero()[0])} has no class ({target!r} is -1); leave it out: ds.filter(lambda row: row[{target!r}] >= 0)"
            )
        return found
    if names is not None:
        raise DataError(
            f"column {target!r} declares the classes {names} in the test set, and {classes} in the data; make them alike"
        )
    numbers = {value: number for number, value in enumerate(classes)}
    values = list_values(data, target)
    if (odd := next((row for row, value in enumerate(values) if value not in numbers), None)) is not None:
        raise DataError(
            f"row {odd} has the target {values[odd]!r}, which is not one of the classes {classes}; add it to classes=, or leave the "
            "row out"
        )
    return torch.tensor([numbers[value] for value in values])


def _read_ids(data: Any, client: str) -> list[ClientId]:
    """Return the client of each row, as text."""
    feature = data.features[client]
    names, kind = getattr(feature, "names", None), find_type(feature)
    if not is_scalar(feature) or not kind.startswith(("int", "uint", "string", "large_string")):
        raise DataError(
            f"column {client!r} cannot name clients: it is a {feature}; give text or whole numbers"
        )
    found = list_values(data, client)
    for row, value in enumerate(found):
        if value is None or not str(value).strip() or (names is not None and value < 0):
            raise DataError(f"row {row} names no client in column {client!r}; name one, or leave the row out")
    return [ClientId(names[value] if names is not None else str(value)) for value in found]


def _read_keys(data: Any, row: str) -> list[int]:
    """Return the number of each row in the column that names rows."""
    found = list_values(data, row)
    for place, key in enumerate(found):
        if type(key) is not int or not 0 <= key < 2**63:
            raise DataError(f"row {place} has the key {key!r} in column {row!r}; give whole numbers from 0")
    return found


def _make_named(name: str, x: Any, y: Tensor, chosen: Roles) -> ModelSource:
    if chosen.classes is None and not y.is_floating_point():
        raise DataError(
            f"the model {name!r} returns classes; declare those of column {chosen.target!r}, so that they stay when a client leaves: "
            f"{_show_classes(y.unique().tolist())}, or give a module of your own: model=net"
        )
    if not isinstance(x, Tensor) or not x.is_floating_point() or chosen.classes is None:
        raise DataError(
            f"the model {name!r} reads one column of numbers or images and returns classes; give a module of your own: model=net"
        )
    return make_model(name, x.shape[1:], len(chosen.classes))


def _read_as_table(
    data: Any, chosen: Roles, test: Any, *, held_out: float, model: Any, seed: int, more: Mapping[str, Any]
) -> Federation:
    """Return the federation of a data set whose inputs are numbers, text or dates: a table."""
    from feduhb.data.federation import Federation

    declared = {
        name: names
        for name in chosen.inputs
        if (names := getattr(data.features[name], "names", None)) is not None
    }
    categories = {**declared, **more.get("categories", {})}
    keyed = {} if chosen.row is None else {"row": chosen.row}
    frames = [_to_frame(some, chosen) for some in (data, test) if not isinstance(some, float)]
    return Federation.from_table(
        frames[0], client=chosen.client, target=chosen.target, classes=chosen.classes, categories=categories,
        test=test if isinstance(test, float) else frames[1], held_out=held_out, model=model, seed=seed,
        **keyed, **{name: value for name, value in more.items() if name != "categories"},
    )  # fmt: skip


def _to_frame(data: Any, chosen: Roles) -> Any:
    """Return the chosen columns as a DataFrame, with classes by their names."""
    wanted = [chosen.client, chosen.target, *chosen.inputs, chosen.row]
    names = [name for name in wanted if name in data.column_names]
    frame = data.select_columns(names).with_format(None).to_pandas()
    for name in names:
        if (labels := getattr(data.features[name], "names", None)) is not None:
            numbers = list_values(data, name)
            frame[name] = [None if number is None or number < 0 else labels[number] for number in numbers]
    return frame
