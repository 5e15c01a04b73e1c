"""A grid of experiments: a TOML file that names federations and seeds, and the cells that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from feduhb import Request
from feduhb.core import check_whole
from feduhb.data import list_datasets, make_client_ids, parse_partition
from feduhb.errors import ConfigError
from feduhb.runs import read_toml, validate
from feduhb_reproduction.cells import Place

FOLDER = "experiments"
FORBID = {"extra": "forbid"}  # pydantic: a key that is not a setting is an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """[[parts]]: some federations, and what is run on them besides the methods."""

    partitions: tuple[str, ...]
    per_client: tuple[int, ...] = ()  # empty: all images, shared out
    backdoor: bool = False  # the leavers plant one
    momenta: tuple[float, ...] = ()  # FedUHB without its rule with these, besides 0 and the grid's own
    steps: tuple[float, ...] = ()  # FedAvg with these server steps, besides 1
    timed: bool = False  # its cells run alone on the machine, for their seconds
    rows: bool = False  # of a benchmark: the leavers stay, and only what they planted is forgotten

    __pydantic_config__ = FORBID

    def __post_init__(self) -> None:
        for text in self.partitions:
            parse_partition(text)
        if not self.partitions:
            raise ConfigError("a part has no partitions; give some, such as ['iid', 'dirichlet:0.1']")
        _refuse_twice("partitions", self.partitions)
        _refuse_twice("per_client", self.per_client)
        _refuse_twice("momenta", map("{:g}".format, self.momenta))  # as their runs are named
        _refuse_twice("steps", map("{:g}".format, self.steps))
        _refuse_known("momenta", self.momenta, 0.0, "Retrain")
        _refuse_known("steps", self.steps, 1.0, "Retrain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A whole grid."""

    data: str
    parts: tuple[Part, ...]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    clients: int = 20
    forget: str = "c00,c01"
    rounds: int = 40
    epochs: int = 5
    batch_size: int = 64
    lr: float = 0.005
    momentum: float = 0.9
    scale: float = 0.6  # the stop rule's lambda
    model: str | None = None  # None: the data set's own
    fedrecover: Mapping[str, int | float] = field(default_factory=dict)  # such as warmup = 4

    __pydantic_config__ = FORBID

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds)
        check_whole("clients", self.clients)
        if self.data not in list_datasets():
            raise ConfigError(
                f"there is no data set {self.data!r}; choose one of {', '.join(list_datasets())}"
            )
        request = Request.parse(self.forget)
        if request.rows or request.classes:
            raise ConfigError(
                f"forget = {self.forget!r} names rows or a class, which FedEraser and FedRecover cannot forget; name clients"
            )
        everyone = make_client_ids(self.clients)
        if unknown := [client for client in request.clients if client not in everyone]:
            raise ConfigError(
                f"forget names {unknown[0]!r}, which is not a client; the clients are {everyone[0]} to {everyone[-1]}"
            )
        if len(set(request.clients)) == self.clients:
            raise ConfigError(f"no client would remain of {self.clients}; forget fewer")
        if not self.seeds or not self.parts:
            raise ConfigError("a grid needs seeds and [[parts]]; give at least one of each")
        _refuse_twice("seeds", self.seeds)
        for part in self.parts:
            _refuse_known("momenta", part.momenta, self.momentum, "FedUHB's own here")
        names = [place.name for place in self.places()]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"two parts make the cell {twice}; merge them")

    def places(self) -> Iterator[Place]:
        """Yield every cell: the timed ones first, then seed by seed, so that finished seeds are whole."""
        found = [
            self.make_place(part, partition, size, seed)
            for seed in self.seeds
            for part in self.parts
            for partition, size in product(part.partitions, part.per_client or (None,))
        ]
        yield from sorted(found, key=lambda place: not place.timed)

    def make_place(self, part: Part, partition: str, per_client: int | None, seed: int) -> Place:
        """Return a cell of one of the parts."""
        return Place(
            data=self.data, partition=partition, per_client=per_client, backdoor=part.backdoor, seed=seed,
            clients=self.clients, forget=self.forget, rounds=self.rounds, epochs=self.epochs, batch_size=self.batch_size,
            lr=self.lr, momentum=self.momentum, scale=self.scale, momenta=part.momenta, steps=part.steps,
            model=self.model, fedrecover=dict(self.fedrecover), timed=part.timed, rows=part.rows,
        )  # fmt: skip


def _refuse_twice(name: str, values: Iterable[object]) -> None:
    listed = list(values)
    if twice := [value for value in listed if listed.count(value) > 1]:
        raise ConfigError(f"{name} has {twice[0]} twice; name it once")


def _refuse_known(name: str, values: Sequence[float], known: float, what: str) -> None:
    """Raise ConfigError for a value whose run every cell has under another name."""
    if f"{known:g}" in map("{:g}".format, values):  # as their runs are named
        raise ConfigError(f"{name} has {known:g}, which is {what} and always run; leave it out")


def read_grid(path: Path) -> Grid:
    """Return the grid in a file."""
    if not path.exists():
        example = Path(__file__).with_name(FOLDER) / "mnist.toml"
        raise ConfigError(f"there is no grid file {path}; write one; {example} is an example")
    grid = validate(Grid, read_toml(path), str(path))
    if any(part.rows for part in grid.parts):
        raise ConfigError(
            f"{path} has a part with rows = true, which is for benchmarks: FedEraser and FedRecover cannot forget rows; leave it out"
        )
    return grid


def find_grid(name: str, *, quick: bool = False) -> Path:
    """Return the file of a grid by name, or the path of a user's own."""
    if name.endswith(".toml"):
        if quick:
            raise ConfigError("--quick is for the built-in grids; write a small grid of your own instead")
        return Path(name)
    file = f"{name}-quick.toml" if quick else f"{name}.toml"
    folder = Path(__file__).with_name(FOLDER)
    found = folder / file
    if not found.is_file():
        known = sorted(path.stem for path in folder.glob("*.toml") if not path.stem.endswith("-quick"))
        raise ConfigError(
            f"there is no grid {name!r}; choose {' or '.join(known)}, or give the path of a .toml file"
        )
    return found
