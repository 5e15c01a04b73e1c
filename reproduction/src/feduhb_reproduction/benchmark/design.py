"""The design of a benchmark: a grid whose leavers carry canaries, and whose cells are audited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from feduhb.audit import AuditSettings
from feduhb.errors import ConfigError
from feduhb.methods import find_method, list_methods
from feduhb.runs import read_toml, validate
from feduhb_reproduction.cells import RETRAIN, Place
from feduhb_reproduction.grids import Grid, Part

FOLDER = Path(__file__).parents[1] / "experiments" / "benchmarks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark(Grid):
    """A grid of federations in which every method serves the same request."""

    title: str
    chosen: str = ""  # how its settings were chosen, for the page
    held_out: float = 0.25
    public: int | None = None  # unlabelled examples that the server holds, and no client
    relearn: int = 10
    shadows: Mapping[str, int] = field(default_factory=dict)  # shadow federations, by partition

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    def __post_init__(self) -> None:
        Grid.__post_init__(self)
        partitions = [partition for part in self.parts for partition in part.partitions]
        if unknown := [name for name in self.shadows if name not in partitions]:
            raise ConfigError(
                f"shadows names {unknown[0]!r}, which no part has; choose from {', '.join(partitions)}"
            )
        for count in (0, *self.shadows.values()):
            AuditSettings(relearn=self.relearn, shadows=count)

    def make_place(self, part: Part, partition: str, per_client: int | None, seed: int) -> Place:
        """Return a cell of one of the parts."""
        return replace(
            Grid.make_place(self, part, partition, per_client, seed), held_out=self.held_out, canaries=True, public=self.public,
            relearn=self.relearn, shadows=self.shadows.get(partition, 0),
        )  # fmt: skip


def read_benchmark(path: Path) -> Benchmark:
    """Return the benchmark in a file."""
    if not path.exists():
        raise ConfigError(
            f"there is no benchmark file {path}; write one; {FOLDER / 'mnist.toml'} is an example"
        )
    return validate(Benchmark, read_toml(path), str(path))


def find_benchmark(name: str) -> Path:
    """Return the file of a benchmark by name, or the path of a user's own."""
    if name.endswith(".toml"):
        return Path(name)
    found = FOLDER / f"{name}.toml"
    if not found.is_file():
        known = " or ".join(sorted(path.stem for path in FOLDER.glob("*.toml")))
        raise ConfigError(f"there is no benchmark {name!r}; choose {known}, or give the path of a .toml file")
    return found


def list_runs(own: Mapping[str, str]) -> dict[str, str]:
    """Return what is run in every cell, by the run's name: the registered methods, Retrain first, then the user's own.

    Rollback is left out. Without kept models, which only a training with sampled clients has, it is Retrain.
    """
    served = [name for name in list_methods() if not getattr(find_method(name), "continues_training", False)]
    return {name: name for name in (RETRAIN, *(name for name in served if name != RETRAIN))} | dict(own)


def name_runs(given: list[str]) -> dict[str, str]:
    """Return the user's own methods by the name of their runs: that of the class, or that of an entry point.

    Raises:
        ConfigError: a name is not registered, or two methods have one name.
    """
    found: dict[str, str] = {}
    for text in given:
        name = text.rpartition(":")[2]
        if ":" not in text:
            find_method(text)
        if name in found or (":" in text and name in list_methods()):
            raise ConfigError(
                f"two methods would have the name {name} in the table; rename the class of {text}"
            )
        found[name] = text
    return found
