"""Columns of a Hugging Face data set as tensors. Types come from the features that the data set declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from feduhb.data.arrays import is_kind, to_tensor
from feduhb.errors import DataError

MODES = {"L": 1, "RGB": 3}  # of images, with their channels


def is_huggingface(data: Any) -> bool:
    """Return whether data is a Hugging Face data set, and not of a module that is called datasets too."""
    return is_kind(data, "datasets", "Dataset") and hasattr(data, "select_columns")


def is_transformed(data: Any) -> bool:
    """Return whether a data set computes its items by a function of the user."""
    return data.format["type"] == "custom"


def read_inputs(data: Any, names: Sequence[str]) -> Any:
    """Return one column as a tensor [n, ...], or several as a dict of tensors by their names."""
    found = {name: read_column(data, name) for name in names}
    return found if len(found) > 1 else found[names[0]]


def list_values(data: Any, name: str) -> list[Any]:
    """Return the values of a column as Python has them, None where one is missing; of classes their numbers."""
    return data.select_columns([name]).with_format(None)[:][name]


def read_column(data: Any, name: str) -> Tensor:
    """Return a column as a tensor: floats of torch's default type, int64, bool, or pixels in [-1, 1]."""
    feature = data.features[name]
    if type(feature).__name__ == "Image":
        return _read_images(list_values(data, name), name)
    if (missing := find_missing(data, name)) is not None:
        _refuse_missing(name, missing)
    is_float = find_type(feature).startswith(("float", "double"))
    how = {"dtype": np.float64} if is_float else {}
    array = data.select_columns([name]).with_format("numpy", **how)[:][name]
    found = to_tensor(array, f"the values of column {name!r}")
    if found.is_floating_point():
        found = found.to(torch.get_default_dtype())
        empty = found.isnan().flatten(1).any(1) if found.dim() > 1 else found.isnan()
        if bool(empty.any()):
            _refuse_missing(name, int(empty.nonzero()[0]))
    return found


def find_missing(data: Any, name: str) -> int | None:
    """Return the first row without a value in a column; None if there is none."""
    values = data.select_columns([name]).with_format("arrow")[:].column(name)
    return values.is_null().to_pylist().index(True) if values.null_count else None


def _refuse_missing(name: str, row: int) -> NoReturn:
    raise DataError(
        f"column {name!r} has no value in row {row}; fill it with a value that you declare, or leave the row out"
    )


def find_type(feature: Any) -> str:
    """Return the type of the values inside a feature, such as "int64"; "" if it has none."""
    while (inner := getattr(feature, "feature", None)) is not None:
        feature = inner
    found = getattr(feature, "dtype", "")
    return found if isinstance(found, str) else ""


def is_scalar(feature: Any) -> bool:
    """Return whether a column holds one value a row: a number, a text, a date or a class."""
    return type(feature).__name__ in ("Value", "ClassLabel")


def _read_images(images: list[Any], name: str) -> Tensor:
    """Return images as pixels [n, channels, height, width] in [-1, 1]."""
    from feduhb.data.load import scale_pixels

    column = f"column {name!r}"
    for row, image in enumerate(images):
        mode, size = getattr(image, "mode", None), getattr(image, "size", None)
        if mode not in MODES:
            found = "not an image" if mode is None else f"an image of mode {mode}"
            raise DataError(
                f"{column} holds {found} in row {row}; decode all images alike: ds.cast_column({name!r}, datasets.Image(mode='RGB'))"
            )
        if (mode, size) != (images[0].mode, images[0].size):
            raise DataError(
                f"{column} holds images of {images[0].mode} {images[0].size} and {mode} {size} (row {row}); resize and convert them "
                "with ds.map"
            )
    if not images:
        raise DataError(f"{column} has no rows; leave the data set out, or give it at least one")
    pixels = np.stack([np.asarray(image) for image in images])
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return scale_pixels(pixels, 255).contiguous()
