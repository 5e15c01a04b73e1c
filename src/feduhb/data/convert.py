"""What the data of a client may be: a pair (x, y), a torch Dataset or DataLoader, or a Hugging Face data set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from feduhb.core.checks import name_kind
from feduhb.core.inputs import list_tensors
from feduhb.data.arrays import is_kind, to_tensor
from feduhb.data.columns import is_huggingface, is_transformed, read_inputs
from feduhb.errors import DataError

TARGETS = ("label", "labels", "target")  # names of the target in items and columns
SOME = 32  # items that are read twice, to find data sets that draw at random
ACCEPTED = "(x, y) of tensors, arrays, lists or pandas objects, a torch Dataset or DataLoader, or a Hugging Face Dataset"
# Inputs [N, ...], targets [N, ...], and the rows to take; None: all.
Parts = tuple[Any, Tensor, Tensor | None]


def read_data(data: Any) -> Parts:
    """Return the inputs and targets of a client's data, without a copy if they are tensors or arrays."""
    if isinstance(data, tuple | list) and len(data) == 2:
        inputs, targets = to_inputs(data[0]), to_tensor(data[1], "the targets", is_target=True)
        _check_several(data[0], targets)
        return inputs, targets, None
    if isinstance(data, DataLoader):
        return _read_loader(data)
    if is_huggingface(data):
        return _read_huggingface(data)
    if isinstance(data, Dataset):
        return _read_dataset(data)
    if is_kind(data, "pandas", "DataFrame"):
        raise DataError(
            "a DataFrame alone does not say what the target is; give (frame[inputs], frame[target]), or use Federation.from_table"
        )
    if (
        isinstance(data, list)
        and data
        and all(isinstance(one, tuple | list) and len(one) == 2 for one in data)
    ):
        raise DataError(
            "the data is a list, which looks like a list of examples; give (x, y) of all of them, or a torch Dataset"
        )
    raise DataError(f"the data is {name_kind(data)}; give {ACCEPTED}")


def _check_several(x: Any, targets: Tensor) -> None:
    """Raise DataError for a list of inputs that each have a row for every target."""
    count = targets.shape[:1]
    if (
        count
        and isinstance(x, list)
        and x
        and (len(x),) != count
        and all(np.shape(part)[:1] == count for part in x)
    ):
        raise DataError(
            f"the inputs are a list of {len(x)} parts with {count[0]} rows each; if the model has several inputs, give a tuple of "
            "them: ((one, other), y)"
        )


def to_inputs(x: Any) -> Any:
    """Return inputs with every part as a tensor: one, or several in a dict or tuple."""
    if isinstance(x, Mapping):
        return {str(name): to_tensor(part, f"the inputs {name!r}") for name, part in x.items()}
    if isinstance(x, tuple) and x and all(hasattr(part, "__array__") for part in x):
        return tuple(to_tensor(part, f"the inputs {place}") for place, part in enumerate(x))
    return to_tensor(x, "the inputs")


def _read_huggingface(data: Any) -> Parts:
    if is_transformed(data):
        return (*_read_items(data, default_collate), None)
    names = data.format["columns"]
    target = _find_target(names, "columns")
    inputs = read_inputs(data, [name for name in names if name != target])
    return inputs, read_inputs(data, [target]), None


def _find_target(names: Sequence[str], what: str) -> str:
    found = [name for name in TARGETS if name in names]
    if len(found) != 1 or len(names) < 2:
        raise DataError(
            f"the {what} are {', '.join(names)}; give inputs and one target, which is called label, labels or target"
        )
    return found[0]


def _read_loader(loader: DataLoader[Any]) -> Parts:
    """Return all examples of a loader's data set, in the order of the data set, combined by the loader's own function."""
    dataset, collate = loader.dataset, loader.collate_fn
    if loader.batch_sampler is None:
        raise DataError("the DataLoader makes no batches (batch_size=None); give its data set itself")
    sampler = getattr(loader.batch_sampler, "sampler", loader.batch_sampler)
    has_places = not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__")
    if has_places and not _takes_all(sampler, dataset):
        raise DataError(
            f"the DataLoader chooses examples by a {type(sampler).__name__}, which is not used here; "
            "choose them by torch.utils.data.Subset"
        )
    return read_data(dataset) if collate is default_collate else (*_read_items(dataset, collate), None)


def _takes_all(sampler: Any, dataset: Any) -> bool:
    """Return whether a sampler takes every item of a data set once."""
    if not isinstance(sampler, SequentialSampler | RandomSampler) or len(sampler) != len(dataset):
        return False
    return isinstance(sampler, SequentialSampler) or not sampler.replacement


def _read_dataset(dataset: Dataset[Any]) -> Parts:
    inner: Any = dataset
    rows: Tensor | None = None
    while type(inner) is Subset:
        positions = torch.tensor([int(row) for row in inner.indices], dtype=torch.long)
        rows = positions if rows is None else _pick(positions, rows)
        inner = inner.dataset
    if type(inner) is TensorDataset and len(inner.tensors) == 2:
        return *inner.tensors, rows
    if rows is not None and is_huggingface(inner) and not is_transformed(inner):
        chosen = _pick(torch.arange(len(inner)), rows)
        return _read_huggingface(inner.select(chosen.tolist()))  # pyright: ignore[reportAttributeAccessIssue]
    return (*_read_items(dataset, default_collate), None)


def _pick(positions: Tensor, rows: Tensor) -> Tensor:
    """Return the positions of some rows; negative rows count from the end."""
    try:
        return positions[rows]
    except IndexError as error:
        raise DataError(f"a Subset takes an item that its data set does not have: {error}") from error


def _read_items(dataset: Any, collate: Callable[[list[Any]], Any]) -> tuple[Any, Tensor]:
    """Return the inputs and targets of all items, read one by one and combined at once."""
    is_stream = isinstance(dataset, IterableDataset)
    if not is_stream and not hasattr(dataset, "__len__"):
        raise DataError(
            f"the {type(dataset).__name__} has no length; give it __len__, or make it an IterableDataset"
        )
    read = _read_stream if is_stream else _read_places
    items = read(dataset, None)
    if is_stream and not items:
        raise DataError(
            f"the {type(dataset).__name__} yields nothing; it may have been read before: make __iter__ start again"
        )
    found = _combine(items, collate)
    again = read(dataset, SOME)  # nothing of a stream that can be read only once
    if again and not _is_same(_combine(items[:SOME], collate), _combine(again, collate)):
        raise DataError(
            "the items change from one reading to the next; give them in a fixed order, and leave random changes of an item to the "
            "federation, which draws them by client and round: augment="
        )
    return found


def _read_stream(dataset: IterableDataset[Any], most: int | None) -> list[Any]:
    try:
        return [*islice(iter(dataset), most)]
    except Exception as error:
        raise DataError(
            f"the items cannot be read ({_describe(error)}); iter(dataset) must yield them"
        ) from error


def _read_places(dataset: Any, most: int | None) -> list[Any]:
    return [_read_item(dataset, place) for place in range(len(dataset))[:most]]


def _read_item(dataset: Any, place: int) -> Any:
    try:
        return dataset[place]
    except Exception as error:
        raise DataError(
            f"item {place} cannot be read ({_describe(error)}); dataset[{place}] must return it"
        ) from error


def _combine(items: list[Any], collate: Callable[[list[Any]], Any]) -> tuple[Any, Tensor]:
    if not items:
        raise DataError("the data set has no items; leave it out, or give it at least one")
    try:
        batch = collate(_make_tensors(items) if collate is default_collate else items)
    except Exception as error:
        raise DataError(
            f"the items cannot be combined ({_describe(error)}); return tensors of one shape, or give a DataLoader whose "
            "collate_fn pads them"
        ) from error
    if isinstance(batch, Mapping):
        parts = dict(batch)
        y = parts.pop(_find_target([str(name) for name in parts], "items"))
        x = parts if len(parts) > 1 else next(iter(parts.values()))
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        x, y = batch
    else:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise DataError(
            f"the items are {name_kind(items[0])}{size}; give (x, y), where x may be a tuple or a dict, or a dict with the target under label, "
            "labels or target"
        )
    is_several = isinstance(x, list) and all(isinstance(part, Tensor) for part in x)
    return to_inputs(tuple(x) if is_several else x), to_tensor(y, "the targets", is_target=True)


def _make_tensors(items: list[Any]) -> list[Any]:
    """Return items with each list of numbers in them as a tensor; torch would combine every number of it apart from the others."""

    def convert(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {name: convert(inner) for name, inner in part.items()}
        if isinstance(part, tuple):
            return tuple(map(convert, part))
        if isinstance(part, list) and not any(hasattr(inner, "__array__") for inner in part):
            with contextlib.suppress(
                TypeError, ValueError, RuntimeError
            ):  # text, None, or lists of different lengths
                return torch.as_tensor(part)
        return part

    return [[*map(convert, item)] if isinstance(item, list) else convert(item) for item in items]


def _is_same(one: tuple[Any, Tensor], other: tuple[Any, Tensor]) -> bool:
    pairs = zip((*list_tensors(one[0]), one[1]), (*list_tensors(other[0]), other[1]), strict=True)
    return all(a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def _describe(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
