"""What the data of a client may be: a pair (x, y), a torch Dataset or DataLoader, or a Hugging Face data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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

from feduhb.core.inputs import list_tensors
from feduhb.data.arrays import is_kind, to_tensor
from feduhb.data.columns import is_huggingface, is_transformed, read_inputs
from feduhb.errors import DataError

TARGETS = ("label", "labels", "target")  # names of the target in items and columns
SOME = 32  # items that are read twice, to find data sets that draw at random
ACCEPTED = "(x, y) of tensors, arrays, lists or pandas objects, a torch Dataset or DataLoader, or a Hugging Face Dataset"
Parts = tuple[
    Any, Tensor, Tensor | None
]  # inputs [N, ...], targets [N, ...], and the rows to take; None: all


def read_data(data: Any) -> Parts:
    """Return the inputs and targets of a client's data, without a copy if they are tensors or arrays."""
    if isinstance(data, tuple | list) and len(data) == 2:
        return _make_parts(data[0]), to_tensor(data[1], "the targets", is_target=True), None
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
    raise DataError(f"the data is a {type(data).__name__}; give {ACCEPTED}")


def _make_parts(x: Any) -> Any:
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
    is_iterable = isinstance(dataset, IterableDataset)
    if not is_iterable and not isinstance(loader.sampler, SequentialSampler | RandomSampler):
        raise DataError(
            f"the DataLoader chooses examples by a {type(loader.sampler).__name__}, which is not used here; "
            "choose them by torch.utils.data.Subset"
        )
    return read_data(dataset) if collate is default_collate else (*_read_items(dataset, collate), None)


def _read_dataset(dataset: Dataset[Any]) -> Parts:
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        x, y = dataset.tensors
        return x, y, None
    if type(dataset) is Subset:
        inner, chosen = dataset.dataset, [int(row) for row in dataset.indices]
        if is_huggingface(inner) and not is_transformed(inner):
            return _read_huggingface(inner.select(chosen))  # pyright: ignore[reportAttributeAccessIssue]
        if type(inner) in (TensorDataset, Subset) and _is_made_of_tensors(inner):
            x, y, rows = _read_dataset(inner)
            positions = torch.tensor(chosen, dtype=torch.long)
            return x, y, positions if rows is None else rows[positions]
    return (*_read_items(dataset, default_collate), None)


def _is_made_of_tensors(dataset: Any) -> bool:
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset and len(dataset.tensors) == 2


def _read_items(dataset: Any, collate: Callable[[list[Any]], Any]) -> tuple[Any, Tensor]:
    """Return the inputs and targets of all items, read one by one and combined at once."""
    if isinstance(dataset, IterableDataset):
        return _combine(list(dataset), collate)
    if not hasattr(dataset, "__len__"):
        raise DataError(
            f"the {type(dataset).__name__} has no length; give it __len__, or make it an IterableDataset"
        )
    items = [_read_item(dataset, place) for place in range(len(dataset))]
    found = _combine(items, collate)
    again = [_read_item(dataset, place) for place in range(min(SOME, len(items)))]
    if not _is_same(_combine(items[:SOME], collate), _combine(again, collate)):
        raise DataError(
            "the items change from one reading to the next; leave the random changes out of the data set, and give them to the "
            "federation, which draws them by client and round: augment="
        )
    return found


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
        batch = collate(items)
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
        kind = (
            f"{type(items[0]).__name__} of {len(batch)}"
            if isinstance(batch, tuple | list)
            else type(items[0]).__name__
        )
        raise DataError(
            f"the items are a {kind}; give (x, y), where x may be a tuple or a dict, or a dict with the target under label, "
            "labels or target"
        )
    is_several = isinstance(x, list) and all(isinstance(part, Tensor) for part in x)
    return _make_parts(tuple(x) if is_several else x), to_tensor(y, "the targets", is_target=True)


def _is_same(one: tuple[Any, Tensor], other: tuple[Any, Tensor]) -> bool:
    pairs = zip((*list_tensors(one[0]), one[1]), (*list_tensors(other[0]), other[1]), strict=True)
    return all(a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def _describe(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
