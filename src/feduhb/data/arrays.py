"""Values that people have, as tensors: arrays of numpy, lists, and columns of pandas.

Nothing is inferred from the values of a client: types come from the columns, and text, dates and missing values are
refused, because the others would have to agree on their numbers.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from datetime import date
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feduhb.errors import DataError

NUMBERS = (int, float, complex, np.number, np.bool_, Tensor)
PADDING = 'pad them to one length and give a mask: {"tokens": ..., "mask": ...}'


def is_kind(value: Any, module: str, *names: str) -> bool:
    """Return whether a value is of one of the classes of a module, which is not imported for this."""
    found = sys.modules.get(module)
    return any(isinstance(value, getattr(found, name, ())) for name in names)


def to_tensor(values: Any, what: str, *, is_target: bool = False) -> Tensor:
    """Return values as a tensor, which shares the memory of an array.

    Args:
        what: the name of the values in errors, such as "the inputs".
        is_target: whether whole numbers of pandas become int64; they become torch's default type as inputs.
    """
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise DataError(f"{what} are a sparse tensor; give one that is not: x.to_dense()")
        return values
    if is_kind(values, "datasets", "Column"):
        return to_tensor(values[:], what, is_target=is_target)
    if is_kind(values, "pandas", "DataFrame", "Series"):
        return _read_frame(values, what, is_target=is_target)
    if isinstance(values, list | tuple):
        return _read_list(values, what, is_target=is_target)
    if np.ma.is_masked(values):
        raise DataError(f"{what} hold a masked value; fill it with a value that you declare: x.filled(0)")
    if hasattr(values, "__array__"):
        return _read_array(np.asarray(values), what, is_target=is_target)
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"{what} are of the type {type(values).__name__}; give a tensor, an array, a list of numbers or a pandas object"
        ) from None


def _read_array(array: np.ndarray, what: str, *, is_target: bool) -> Tensor:
    if array.dtype.kind not in "biufc":
        raise DataError(f"{what} {_explain(array, is_target=is_target)}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
            return torch.from_numpy(array)
    except TypeError:
        raise DataError(
            f'{what} are of the type {array.dtype}, which torch does not have; give x.astype("float32")'
        ) from None


def _read_list(values: list[Any] | tuple[Any, ...], what: str, *, is_target: bool) -> Tensor:
    try:
        if values and all(isinstance(part, Tensor) for part in values):
            return torch.stack(list(values))
        if values and all(isinstance(part, np.ndarray) for part in values):
            return _read_array(np.stack(values), what, is_target=is_target)
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"{what} {_explain(values, is_target=is_target)}") from None


def _explain(values: Any, *, is_target: bool) -> str:
    """Return why values cannot become one tensor, and what to do."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        return _explain_dates()
    odd = next((leaf for leaf in _walk(values) if not isinstance(leaf, NUMBERS)), 0)
    if isinstance(odd, str | bytes):
        text = f"hold text ({str(odd)!r})"
        if is_target:
            return f"{text}; declare the classes for all clients and give their numbers: [['no', 'yes'].index(one) for one in y]"
        return (
            f'{text}; give numbers, such as the tokens of a text with a mask: {{"tokens": ..., "mask": ...}}'
        )
    if isinstance(odd, date | np.datetime64):
        return _explain_dates()
    if odd is None or is_kind(odd, "pandas._libs.missing", "NAType"):
        return "hold a missing value (None); fill it with a value that you declare, or leave the row out"
    if not isinstance(odd, NUMBERS):
        return f"hold objects ({type(odd).__name__}); give numbers"
    sizes = {
        len(part) for part in values if isinstance(part, list | tuple | np.ndarray | Tensor) and np.ndim(part)
    }
    if len(sizes) > 1:
        return f"hold sequences of {min(sizes)} to {max(sizes)} values; {PADDING}"
    if isinstance(values, np.ndarray):
        return 'are an array of objects; give numbers of one type: x.astype("float32"), or np.stack(x) of equal arrays'
    return f"hold sequences of different shapes; {PADDING}"


def _explain_dates() -> str:
    return "hold dates; give numbers, such as days since a date that you declare for all clients"


def _walk(values: Any) -> Iterator[Any]:
    """Yield the values inside nested lists and arrays."""
    if isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.ndim):
        for part in values:
            yield from _walk(part)
    else:
        yield values


def _read_frame(values: Any, what: str, *, is_target: bool) -> Tensor:
    """Return a DataFrame [n, columns] or a Series [n] as a tensor."""
    from pandas.api import types

    columns = [values] if is_kind(values, "pandas", "Series") else [column for _, column in values.items()]
    if not columns:
        raise DataError(f"{what} have no columns; name at least one: frame[['age', 'weight']]")
    for column in columns:
        name = f"a column of {what}" if column.name is None else f"column {column.name!r} of {what}"
        _check_column(column, name, is_target=is_target)
    is_whole = is_target and all(
        types.is_integer_dtype(column.dtype) or types.is_bool_dtype(column.dtype) for column in columns
    )
    array = values.to_numpy(dtype="int64" if is_whole else "float64")
    tensor = _read_array(array, what, is_target=is_target)
    return tensor if is_whole else tensor.to(torch.get_default_dtype())


def _check_column(column: Any, name: str, *, is_target: bool) -> None:
    """Raise DataError if a column of pandas holds anything but numbers."""
    from pandas.api import types

    if types.is_datetime64_any_dtype(column.dtype) or types.is_timedelta64_dtype(column.dtype):
        raise DataError(
            f"{name} holds dates; declare how they become numbers (dates= of Federation.from_table), or give numbers"
        )
    if (missing := np.flatnonzero(column.isna())).size:
        raise DataError(
            f"{name} has no value in row {missing[0]}; declare one (fills= of Federation.from_table), or leave the row out"
        )
    if not types.is_numeric_dtype(column.dtype) or types.is_complex_dtype(column.dtype):
        example = (
            str(column.dtype) if column.dtype.name == "category" or not len(column) else repr(column.iloc[0])
        )
        declare = "classes" if is_target else "categories"
        raise DataError(
            f"{name} holds {example} and not numbers; declare its {declare} ({declare}= of Federation.from_table), or give numbers"
        )
