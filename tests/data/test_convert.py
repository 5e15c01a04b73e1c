"""What the data of a client may be: every kind trains to the bits of the same data as tensors, or is refused in one line."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import feduhb
from data.wording import refused
from feduhb.errors import DataError, ModelError

X = torch.randn(18, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(18) % 3
PARTS = {"ant": slice(0, 6), "bee": slice(6, 11), "cat": slice(11, 18)}


def federation(make: Callable[[Tensor, Tensor], Any], model: Any = None) -> feduhb.Federation:
    clients = {client: make(X[rows], Y[rows]) for client, rows in PARTS.items()}
    return feduhb.Federation(clients, make(X, Y), model or nn.Linear(3, 3), seed=3)


def train(made: feduhb.Federation, **how: Any) -> feduhb.Run:
    return feduhb.train(made, 2, epochs=1, batch_size=4, lr=0.1, show=None, **how)


class Items(Dataset[Any]):
    """Items made by a function, one by one."""

    def __init__(
        self, x: Tensor, y: Tensor, make: Callable[[Tensor, Tensor], Any] = lambda x, y: (x, y)
    ) -> None:
        self.x, self.y, self.make = x, y, make

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        if place >= len(self):
            raise IndexError(place)
        return self.make(self.x[place], self.y[place])


class Stream(IterableDataset[Any]):
    """Items that can only be read one after another."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.x, self.y, strict=True))


class Drawn(Stream):
    """Items with noise that nobody can draw again."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.x + torch.rand_like(self.x), self.y, strict=True))


class Once(Stream):
    """Items that can be read only once."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.items = zip(x, y, strict=True)

    def __iter__(self) -> Iterator[Any]:
        return self.items


class Two(nn.Linear):
    """Adds up two inputs, given by name or by place."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(left + right)


def of_items(make: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    return lambda x, y: Items(x, y, make)


def to_pandas(x: Tensor, y: Tensor) -> tuple[pd.DataFrame, pd.Series]:
    odd = range(100, 100 + len(x))
    return pd.DataFrame(x.double().numpy(), columns=[*"abc"], index=odd), pd.Series(y.numpy(), name="y")


def subset(x: Tensor, y: Tensor) -> Subset[Any]:
    """The last rows, in their order, of a data set that holds others too."""
    whole = TensorDataset(torch.cat([X + 9, x]), torch.cat([Y, y]))
    return Subset(Subset(whole, range(10, len(X) + len(x))), range(len(X) - 10, len(X) - 10 + len(x)))


def to_huggingface(x: Tensor, y: Tensor) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist()})


def drop_names(items: list[Any]) -> Any:
    return torch.stack([x for x, _ in items]), torch.tensor([int(y) for _, y in items])


SINGLE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
    "numpy, backwards": lambda x, y: (x.flip(0).numpy()[::-1], y.flip(0).numpy()[::-1]),
    "numpy, other bytes": lambda x, y: (x.numpy().astype(">f4"), y.numpy().astype(">i8")),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "lists of tensors": lambda x, y: (list(x), list(y)),
    "lists of arrays": lambda x, y: (list(x.numpy()), y.tolist()),
    "a list of two": lambda x, y: [x, y],
    "pandas": to_pandas,
    "pandas, nullable": lambda x, y: (to_pandas(x, y)[0].astype("Float64"), pd.Series(y.numpy()).astype("Int32")),
    "TensorDataset": TensorDataset,
    "Subset of a Subset": subset,
    "Subset of items": lambda x, y: Subset(Items(torch.cat([X, x]), torch.cat([Y, y])), range(18, 18 + len(x))),
    "items": Items,
    "items with whole numbers": of_items(lambda x, y: (x.numpy(), int(y))),
    "items as dicts of lists": of_items(lambda x, y: {"x": x.tolist(), "label": int(y)}),
    "items after items": lambda x, y: ConcatDataset([Items(x[:2], y[:2]), Items(x[2:], y[2:])]),
    "a stream": Stream,
    "a stream that is read once": Once,
    "DataLoader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, drop_last=True),
    "DataLoader of a stream": lambda x, y: DataLoader(to_huggingface(x, y).to_iterable_dataset(), batch_size=4),  # pyright: ignore[reportArgumentType]
    "DataLoader with a function": lambda x, y: DataLoader(Items(x, y), batch_size=4, collate_fn=drop_names),
    "Hugging Face": to_huggingface,
    "Hugging Face, torch": lambda x, y: to_huggingface(x, y).with_format("torch"),
    "Hugging Face in a loader": lambda x, y: DataLoader(to_huggingface(x, y).with_format("torch")),  # pyright: ignore[reportArgumentType]
    "Subset of a Subset of Hugging Face": lambda x, y: Subset(Subset(to_huggingface(torch.cat([X, x]), torch.cat([Y, y])), range(4, len(X) + len(x))), range(len(X) - 4, len(X) - 4 + len(x))),  # pyright: ignore[reportArgumentType]
    "Subset of Hugging Face from its end": lambda x, y: Subset(to_huggingface(x.flip(0), y.flip(0)), range(-1, -len(x) - 1, -1)),  # pyright: ignore[reportArgumentType]
    "Subset of Hugging Face": lambda x, y: Subset(to_huggingface(x.flip(0), y.flip(0)), range(len(x))[::-1]),  # pyright: ignore[reportArgumentType]
    "Hugging Face with a function": lambda x, y: to_huggingface(x, y).with_transform(
        lambda rows: {"x": torch.tensor(rows["x"]), "label": rows["label"]}
    ),
}  # fmt: skip
DOUBLE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dict of pandas": lambda x, y: ({"left": to_pandas(x, y)[0], "right": x.numpy()}, y),
    "tuple of arrays": lambda x, y: ((x.numpy(), x), y),
    "items as dicts": of_items(lambda x, y: {"labels": y, "left": x, "right": x}),
    "items with dicts": of_items(lambda x, y: ({"left": x, "right": x}, y)),
    "items with tuples": of_items(lambda x, y: ((x, x), y)),
    "Hugging Face": lambda x, y: datasets.Dataset.from_dict(
        {"left": x.tolist(), "target": y.tolist(), "right": x.tolist()}
    ),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The weights of the same runs on tensors."""
    made = federation(lambda x, y: (x, y))
    return {name: run.params for name, run in serve(made, tmp_path_factory.mktemp("tensors")).items()}


def serve(made: feduhb.Federation, folder: Path) -> dict[str, feduhb.Run]:
    """Train, forget a client and some rows, and open the last run again."""
    trained = train(made, out=folder / "trained")
    without = feduhb.unlearn(trained, "bee", rounds=2, out=folder / "client", show=None)
    rows = feduhb.unlearn(without, "ant:0+3", rounds=2, out=folder / "rows", show=None)
    opened = feduhb.open_run(folder / "rows", made)
    return {"trained": trained, "client": without, "rows": rows, "opened": opened}


@pytest.mark.parametrize("kind", SINGLE)
def test_every_kind_trains_and_forgets_to_the_same_bits(kind, tmp_path, reference):
    made = federation(SINGLE[kind])
    for name, run in serve(made, tmp_path).items():
        assert torch.equal(run.params, reference[name]), name


@pytest.mark.parametrize("kind", DOUBLE)
def test_several_inputs_in_every_kind(kind):
    tensors = federation(lambda x, y: ({"left": x, "right": x}, y), Two(3, 3))
    assert torch.equal(train(federation(DOUBLE[kind], Two(3, 3))).params, train(tensors).params)


def test_a_leaver_with_extreme_values_changes_nothing_for_others():
    made = federation(to_pandas)
    odd = (pd.DataFrame({"a": [1e30], "b": [7], "c": [True]}), pd.Series([2], dtype="uint8"))
    other = made.replace(clients={**made.clients, "bee": odd})
    left = [some.without("bee").fingerprints() for some in (made, other)]
    assert left[0] == left[1]


def test_arrays_and_data_sets_of_tensors_are_not_copied(tmp_path):
    x, y = X.numpy().copy(), Y.numpy().copy()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    frozen = y.copy()
    frozen.flags.writeable = False
    tensors = TensorDataset(X, Y)
    clients = {
        "ant": (mapped, frozen),
        "bee": tensors,
        "cat": Subset(tensors, [5, 2]),
        "dog": DataLoader(tensors),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = feduhb.Federation(clients, (x, y), nn.Linear(3, 3))
    assert isinstance(mapped, np.memmap)
    assert np.shares_memory(made.clients["ant"].x.numpy(), mapped)
    assert np.shares_memory(made.clients["ant"].y.numpy(), frozen)
    for client in ("bee", "cat", "dog"):
        assert made.clients[client].x.data_ptr() == X.data_ptr()
    assert made.clients["cat"].targets.tolist() == [2, 2]
    assert torch.equal(made.clients["cat"].all()[0], X[[5, 2]])
    assert len(train(made).rounds) == 2


def test_types_of_pandas_come_from_columns():
    frame = pd.DataFrame({"age": [30, 41], "weight": [70.5, 60.25], "smokes": [True, False]})
    made = feduhb.Federation({"a": (frame, frame["smokes"])}, (frame, frame["age"]), nn.Linear(3, 50))
    x, y = made.clients["a"].all()
    assert x.tolist() == [[30, 70.5, 1], [41, 60.25, 0]]
    assert (x.dtype, y.dtype, made.test.y.dtype) == (torch.float32, torch.int64, torch.int64)
    targets = frame[["weight", "age"]]
    several = feduhb.Federation({"a": (frame["age"], targets)}, (frame["age"], targets), nn.Linear(3, 2))
    assert several.test.x.tolist() == [30, 41]
    assert several.test.y.tolist() == [[70.5, 30], [60.25, 41]]


def test_a_loader_pads_all_items_at_once():
    lines = [torch.arange(1, 2 + place % 3) for place in range(6)]

    def pad(items: list[Any]) -> dict[str, Tensor]:
        tokens = nn.utils.rnn.pad_sequence([line for line, _ in items], batch_first=True)
        return {"tokens": tokens, "mask": tokens > 0, "labels": torch.tensor([label for _, label in items])}

    items = list(zip(lines, [0, 1, 0, 1, 0, 1], strict=True))
    loader = DataLoader(items, batch_size=1, collate_fn=pad)  # pyright: ignore[reportArgumentType]
    with refused(
        DataError,
        "client a: the data is a list, which looks like a list of examples; give (x, y) of all of them, or a torch Dataset",
    ):
        feduhb.Federation({"a": items}, loader, nn.Linear(3, 3))
    made = feduhb.Federation({"a": loader}, loader, nn.Linear(3, 3))
    assert made.clients["a"].x["tokens"].tolist()[:3] == [[1, 0, 0], [1, 2, 0], [1, 2, 3]]
    assert made.clients["a"].x["mask"].sum().item() == 12
    assert made.clients["a"].targets.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_stream_that_two_clients_use_must_start_again():
    once = Once(X, Y)
    with refused(
        DataError, "client b: the Once yields nothing; it may have been read before: make __iter__ start"
    ):
        feduhb.Federation({"a": once, "b": once}, (X, Y), nn.Linear(3, 3))


def test_a_module_of_the_users_that_is_called_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(Dataset=Items))
    assert torch.equal(federation(Items).test.x, X)


def of_columns(**columns: Any) -> tuple[pd.DataFrame, list[int]]:
    frame = pd.DataFrame(columns)
    return frame, [0] * len(frame)


LIST = "torch Dataset or DataLoader, or a Hugging Face Dataset"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "text": (lambda: "digits.csv", f"client a: the data is a str; give (x, y) of tensors, arrays, lists or pandas objects, a {LIST}"),
    "a generator": (lambda: (row for row in X), "client a: the data is a generator; give (x, y)"),
    "three parts": (lambda: (X, X, Y), "client a: the data is a tuple; give (x, y)"),
    "one frame": (lambda: to_pandas(X, Y)[0], "a DataFrame alone does not say what the target is; give (frame[inputs], frame[target]), or use Federation.from_table"),
    "text as labels": (lambda: (X, ["cat"] * 18), "client a: the targets hold text ('cat'); declare the classes for all clients and give their numbers: [['no', 'yes'].index(one) for one in y]"),
    "text in an array": (lambda: (X, np.array(["cat"] * 18)), "the targets hold text ('cat'); declare"),
    "text as inputs": (lambda: (["one", "two"], [0, 1]), 'client a: the inputs hold text (\'one\'); give numbers, such as the tokens of a text with a mask: {"tokens": ..., "mask": ...}'),
    "ragged lists": (lambda: ([[1, 2], [3]], [0, 1]), 'client a: the inputs hold sequences of 1 to 2 values; pad them to one length and give a mask: {"tokens": ..., "mask": ...}'),
    "ragged tensors": (lambda: ([torch.ones(4), torch.ones(3)], [0, 1]), "the inputs hold sequences of 3 to 4 values; pad"),
    "ragged arrays": (lambda: ([np.ones(4), np.ones(3)], [0, 1]), "the inputs hold sequences of 3 to 4 values; pad"),
    "ragged objects": (lambda: (np.array([[1, 2], [3]], dtype=object), [0, 1]), "the inputs hold sequences of 1 to 2 values; pad"),
    "ragged inside": (lambda: ([[[1, 2]], [[3]]], [0, 1]), "the inputs hold sequences of different shapes; pad"),
    "ragged in a dict": (lambda: ({"tokens": [[1, 2], [3]]}, [0, 1]), "the inputs 'tokens' hold sequences of 1 to 2 values; pad"),
    "objects": (lambda: (X.numpy().astype(object), Y), 'the inputs are an array of objects; give numbers of one type: x.astype("float32"), or np.stack(x) of equal arrays'),
    "decimals": (lambda: ([[Decimal(1)]], [0]), "the inputs hold objects (Decimal); give numbers"),
    "None": (lambda: ([[1.0], [None]], [0, 1]), "the inputs hold a missing value (None); fill it with a value that you declare, or leave the row out"),
    "masked": (lambda: (np.ma.masked_less(X.numpy(), 0), Y), "the inputs hold a masked value; fill it with a value that you declare: x.filled(0)"),
    "dates": (lambda: (np.array(["2024-01-01"], dtype="M8[D]"), [0]), "the inputs hold dates; give numbers, such as days since a date that you declare for all clients"),
    "long doubles": (lambda: (X.numpy().astype(np.longdouble), Y), 'which torch does not have; give x.astype("float32")'),
    "sparse": (lambda: (X.to_sparse(), Y), "client a: the inputs are a sparse tensor; give one that is not: x.to_dense()"),
    "a number": (lambda: (object(), [1]), "the inputs are of the type object; give a tensor, an array, a list of numbers or a pandas object"),
    "text column": (lambda: of_columns(age=[1], ward=["north"]), "client a: column 'ward' of the inputs holds 'north' and not numbers; declare its categories (categories= of Federation.from_table), or give numbers"),
    "category column": (lambda: of_columns(ward=pd.Categorical([1])), "column 'ward' of the inputs holds category and not numbers; declare its categories"),
    "text target without a name": (lambda: (X[:2], pd.Series(["no", "yes"])), "client a: a column of the targets holds 'no' and not numbers; declare its classes"),
    "text target": (lambda: (X[:2], pd.Series(["no", "yes"], name="sick")), "column 'sick' of the targets holds 'no' and not numbers; declare its classes (classes= of Federation.from_table), or give numbers"),
    "date column": (lambda: of_columns(born=pd.to_datetime(["2001-02-03"])), "column 'born' of the inputs holds dates; declare how they become numbers (dates= of Federation.from_table), or give numbers"),
    "missing number": (lambda: of_columns(age=[30, 41, None]), "column 'age' of the inputs has no value in row 2; declare one (fills= of Federation.from_table), or leave the row out"),
    "missing Int64": (lambda: of_columns(age=pd.array([1, None], dtype="Int64")), "column 'age' of the inputs has no value in row 1"),
    "no columns": (lambda: (pd.DataFrame(index=range(2)), [0, 1]), "the inputs have no columns; name at least one"),
    "random items": (lambda: Items(X, Y, lambda x, y: (x + torch.randn(1), y)), "client a: the items change from one reading to the next; give them in a fixed order, and leave random changes of an item to the federation, which draws them by client and round: augment="),
    "random flips": (lambda: Items(X, Y, lambda x, y: (x * torch.randint(2, ()).mul(2).sub(1), y)), "augment="),
    "random padding": (lambda: DataLoader(Items(X, Y), collate_fn=lambda items: (torch.rand(len(items), 3), torch.zeros(len(items)))), "augment="),
    "items of three": (lambda: TensorDataset(X, X, Y), "the items are a tuple of 3; give (x, y), where x may be a tuple or a dict, or a dict with the target under label, labels or target"),
    "items without targets": (lambda: Items(X, Y, lambda x, _: x), "the items are a Tensor; give (x, y)"),
    "items with text in lists": (lambda: Items(X, Y, lambda _, y: (["one", "two"], y)), "the inputs hold text ('one')"),
    "items with other names": (lambda: Items(X, Y, lambda x, y: {"x": x, "y": y}), "the items are x, y; give inputs and one target, which is called label, labels or target"),
    "items with two targets": (lambda: Items(X, Y, lambda x, y: {"x": x, "label": y, "labels": y}), "the items are x, label, labels; give inputs and one target"),
    "items with text": (lambda: Items(X, Y, lambda x, _: (x, "cat")), "the targets hold text ('cat'); declare"),
    "ragged items": (lambda: Items(X, Y, lambda x, y: (x[: 1 + int(y)], y)), "the items cannot be combined (RuntimeError: stack expects each tensor to be equal size", ),
    "items of objects": (lambda: Items(X, Y, lambda _, y: (object(), y)), "return tensors of one shape, or give a DataLoader whose collate_fn pads them"),
    "items that fail": (lambda: Items(X, Y[:4]), "item 4 cannot be read (IndexError: index 4 is out of bounds for dimension 0 with size 4); dataset[4] must return it"),
    "no items": (lambda: Items(X[:0], Y[:0]), "the data set has no items; leave it out, or give it at least one"),
    "no length": (lambda: Dataset(), "the Dataset has no length; give it __len__, or make it an IterableDataset"),
    "a Subset beyond the end": (lambda: Subset(to_huggingface(X, Y), [18]), "client a: a Subset takes an item that its data set does not have: index 18 is out of"),  # pyright: ignore[reportArgumentType]
    "a Subset of a Subset beyond the end": (lambda: Subset(Subset(TensorDataset(X, Y), [4, 2]), [2]), "client a: a Subset takes an item that its data set does not have"),
    "a sampler": (lambda: DataLoader(TensorDataset(X, Y), sampler=SubsetRandomSampler([1, 2])), "the DataLoader chooses examples by a SubsetRandomSampler, which is not used here; choose them by torch.utils.data.Subset"),
    "a sampler of batches": (lambda: DataLoader(TensorDataset(X, Y), batch_sampler=[[1, 2]]), "the DataLoader chooses examples by a list, which is not used here"),
    "a sampler inside one of batches": (lambda: DataLoader(TensorDataset(X, Y), batch_sampler=BatchSampler(SubsetRandomSampler([1]), 2, drop_last=False)), "the DataLoader chooses examples by a SubsetRandomSampler"),
    "a part of the examples": (lambda: DataLoader(TensorDataset(X, Y), sampler=SequentialSampler(range(3))), "the DataLoader chooses examples by a SequentialSampler"),
    "examples that repeat": (lambda: DataLoader(TensorDataset(X, Y), sampler=RandomSampler(X, replacement=True)), "the DataLoader chooses examples by a RandomSampler"),
    "no length in a loader": (lambda: DataLoader(Dataset()), "the Dataset has no length; give it __len__, or make it an IterableDataset"),
    "a stream that breaks": (lambda: Stream(X, Y[:1]), "client a: the items cannot be read (ValueError: zip() argument 2 is shorter than argument 1); iter(dataset) must yield them"),
    "a stream that draws": (lambda: Drawn(X, Y), "client a: the items change from one reading to the next; give them in a fixed order"),
    "an empty stream": (lambda: Stream(X[:0], Y[:0]), "client a: the Stream yields nothing; it may have been read before: make __iter__ start again"),
    "a list of inputs": (lambda: ([X, X], Y), "client a: the inputs are a list of 2 parts with 18 rows each; if the model has several inputs, give a tuple of them: ((one, other), y)"),
    "items that are numbers": (lambda: Items(X, Y, lambda _, y: int(y)), "client a: the items are an int; give (x, y)"),
    "no batches": (lambda: DataLoader(TensorDataset(X, Y), batch_size=None), "the DataLoader makes no batches (batch_size=None); give its data set itself"),
    "columns without a target": (lambda: datasets.Dataset.from_dict({"x": [1.0], "y": [0]}), "the columns are x, y; give inputs and one target, which is called label, labels or target"),
    "ragged columns": (lambda: datasets.Dataset.from_dict({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]}), "client a: the values of column 'x' hold sequences of 1 to 2 values; pad"),
    "missing in a column": (lambda: datasets.Dataset.from_dict({"x": [[1.0], [None]], "label": [0, 1]}), "column 'x' has no value in row 1; fill it with a value that you declare, or leave the row out"),
    "text in a column": (lambda: datasets.Dataset.from_dict({"text": ["one"], "label": [0]}), "the values of column 'text' hold text ('one'); give numbers, such as the tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    make, words = REFUSED[name]
    with refused(DataError, words):
        feduhb.Federation({"a": make()}, (X, Y), nn.Linear(3, 3))


TARGETS = "the loss cannot read targets that are "
UNFIT: dict[str, tuple[Any, Any, nn.Module, Any, str]] = {
    "float64": (X.double().numpy(), Y, nn.Linear(3, 3), None, 'the inputs are float64 and the model\'s parameters float32; give x.float(), or x.astype("float32") of an array'),
    "float32": (X, Y, nn.Linear(3, 3).double(), None, 'the inputs are float32 and the model\'s parameters float64; give x.double(), or x.astype("float64") of an array'),
    "pixels": (X.abs().byte(), Y, nn.Linear(3, 3), None, 'the inputs are uint8 and the model\'s parameters float32; give x.float(), or x.astype("float32") of an array, and scale pixels by a constant: x.float() / 255'),
    "one of two": ({"left": X, "right": X.double()}, Y, Two(3, 3), None, "the inputs are float64 and the model's parameters float32"),
    "missing inputs": (X.where(X < 1, torch.nan), Y, nn.Linear(3, 3), None, "the inputs hold NaN or infinite values, and the model cannot be scored on them; correct them, fill"),
    "missing targets": (X, (X * torch.nan)[:, :1], nn.Linear(3, 1), "mse", "the targets hold NaN or infinite values"),
    "a column": (X, Y[:, None], nn.Linear(3, 3), None, f"{TARGETS}int64 [n, 1]; give y.squeeze(1)"),
    "a column of int32": (X, Y[:, None].int(), nn.Linear(3, 3), None, f"{TARGETS}int32 [n, 1]; give y.squeeze(1).long()"),
    "int32": (X, Y.int(), nn.Linear(3, 3), None, f'{TARGETS}int32 [n]; give y.long(), or y.astype("int64") of an array'),
    "bool": (X, Y > 0, nn.Linear(3, 3), None, f"{TARGETS}bool [n]; give y.long()"),
    "one-hot": (X, F.one_hot(Y), nn.Linear(3, 3), None, f'{TARGETS}int64 [n, 3]; give y.float(), or y.astype("float32") of an array'),
    "numbers": (X, Y.float(), nn.Linear(3, 3), None, "the targets are numbers (float32 [n]) and not classes"),
    "out of range": (X, Y + 1, nn.Linear(3, 3), None, "targets are classes from 0 to 2, but one is 3 (row 2); correct it"),
    "a missing class": (X, Y.where(Y > 0, -1), nn.Linear(3, 3), nn.CrossEntropyLoss(), "targets are classes from 0 to 2, but one is -1 (row 0); correct it"),
    "numbers of Python": (Items(X[:, 0], Y, lambda x, y: (float(x), int(y))), None, nn.Linear(1, 3), None, 'the inputs are float64 and the model\'s parameters float32; give x.float(), or x.astype("float32") of an array, as one column: x.unsqueeze(1)'),
    "one logit": (X, (Y > 0).float(), nn.Linear(3, 1), "bce_with_logits", f"{TARGETS}float32 [n]; give y.unsqueeze(1)"),
    "double weights": (X, Y, nn.Linear(3, 3), nn.CrossEntropyLoss(torch.ones(3).double()), "weight of the loss is float64 and the model's outputs float32; give weight.to(torch.float32)"),
    "double weights of a function": (X, Y, nn.Linear(3, 3), functools.partial(F.cross_entropy, weight=torch.ones(3).double()), "weight of the loss is float64"),
    "a class of losses": (X, Y, nn.Linear(3, 3), nn.CrossEntropyLoss, "the loss is the class CrossEntropyLoss; give an instance: loss=CrossEntropyLoss()"),
    "unknown token": (Y[:, None], Y, nn.Sequential(nn.Embedding(2, 3), nn.Flatten()), None, "cannot read this data (index out of range in self)"),
    "a column of numbers": (X, Y.float(), nn.Linear(3, 1), "mse", "make their shapes equal, such as y.unsqueeze(1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_data_that_the_model_cannot_read(name):
    x, y, model, loss, words = UNFIT[name]
    data = x if y is None else (x, y)
    made = feduhb.Federation({"a": data}, data, model, loss=loss or "cross_entropy")
    with refused(ModelError, words):
        made.fresh_model()


def test_types_that_fit_are_left_alone():
    def cast(x: Tensor) -> Any:
        return feduhb.Federation({"a": (x, Y)}, (x, Y), Casting(3, 3)).fresh_model()

    made = feduhb.Federation({"a": (X.double(), Y)}, (X.double(), Y), nn.Linear(3, 3).double())
    assert train(made).params.dtype == torch.float64
    cast(X.double())
    cast(X.byte())


class Casting(nn.Linear):
    """Reads inputs of any type."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype))


class Wrapping(nn.Linear):
    """Returns its logits in a dict, as models of other packages do."""

    def forward(self, input: Tensor) -> Any:
        return {"logits": super().forward(input)}


def test_a_model_that_returns_a_dict_is_told_to_return_its_logits():
    def loss(outputs: Any, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs["logits"], y)

    made = feduhb.Federation({"a": (X, Y)}, (X, Y), Wrapping(3, 3), loss=loss)
    with refused(ModelError, "the model returns a dict; return one tensor, such as its logits"):
        made.fresh_model()
