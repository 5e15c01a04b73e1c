"""The design of a study: a TOML file with federations, candidates, stop rules, and groups of seeds.

Settings are chosen on the seeds of ``tune`` and reported on those of ``report``. No seed may be in two groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

import feduhb
from feduhb import Method
from feduhb.core import check_positive, check_whole
from feduhb.data import list_datasets, parse_partition
from feduhb.errors import ConfigError
from feduhb.methods import make_method
from feduhb.runs import read_toml, validate
from feduhb.stopping import StopRule
from feduhb_reproduction.cells import RETRAIN, Place

FOLDER = Path(__file__).parents[1] / "experiments" / "studies"
SMOOTH = 5  # rounds in the mean that a stop rule is compared with
FORBID = {"extra": "forbid"}  # pydantic: a key that is not a setting is an error
PAPER = "feduhb"  # the run with the paper's settings
BESIDE = ("federaser", "fedrecover")  # approximate methods, run on the reported seeds for their client work
Values = Mapping[str, tuple[int | float, ...]]
Keep = Literal["last", "best"]
NAMES = {
    "retrain": "Retrain", "feduhb": "heavy ball", "nesterov": "Nesterov", "fedadam": "FedAdam", "fednadam": "FedNadam",
    "fedyogi": "FedYogi", "fedexp": "FedExP", "federaser": "FedEraser", "fedrecover": "FedRecover",
}  # fmt: skip
SHORT = {"step_size": "step", "scale": "λ"}  # names of settings in labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """[[federations]]: partitions of one data set."""

    data: str
    partitions: tuple[str, ...]
    per_client: tuple[int, ...] = ()  # images of a client, with the held-out part; empty: all, shared out

    __pydantic_config__ = FORBID

    def __post_init__(self) -> None:
        if self.data not in list_datasets():
            raise ConfigError(
                f"there is no data set {self.data!r}; choose one of {', '.join(list_datasets())}"
            )
        for text in self.partitions:
            parse_partition(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """[[candidates]]: an exact method. Every combination of the values of its settings is a candidate."""

    family: str  # one candidate of each family is chosen and reported
    method: str
    settings: Values = field(default_factory=dict)

    __pydantic_config__ = FORBID


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends: by a stop rule, with the last model or the one with the best held-out score."""

    rule: StopRule
    keep: Keep = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """[[rules]]: a kind of stop rule. Every combination of the values of its settings is tried."""

    family: str
    rule: Literal["patience", "distance_stop", "dynamic_stop"]
    watch: str | None = None  # of patience
    keep: Keep = "last"
    settings: Values = field(default_factory=dict)

    __pydantic_config__ = FORBID

    def make(self) -> dict[str, Ending]:
        """Return the rules by their settings in words."""
        kind = getattr(feduhb, self.rule)
        more = {} if self.watch is None else {"watch": self.watch}
        made = ((_join_settings(each), kind(**more, **each)) for each in _combine(self.settings))
        return {words or "default": Ending(rule, self.keep) for words, rule in made}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One method with its settings."""

    family: str
    method: str
    settings: Mapping[str, int | float]

    @property
    def name(self) -> str:
        """The name of its runs: "retrain" and "feduhb" are the methods with their own settings."""
        return "-".join([self.method, *(f"{key}-{value:g}" for key, value in self.settings.items())])

    @property
    def label(self) -> str:
        """The name for tables."""
        if self.name == PAPER:
            return "FedUHB"
        return ", ".join(
            [NAMES.get(self.method, self.method), *filter(None, [_join_settings(self.settings)])]
        )

    @property
    def is_control(self) -> bool:
        """Whether it is reported however slow it is: Retrain, with any step, and FedUHB with the paper's settings."""
        return self.method == RETRAIN or self.name == PAPER

    def make(self, epochs: int) -> Method[Any]:
        """Return the method; raise ConfigError if it is not one that starts from a fresh model without the forgotten data."""
        method = make_method(self.method, epochs=epochs, **self.settings)
        if not method.exact or method.continues_training:
            raise ConfigError(
                f"{self.method} cannot be a candidate, because it does not start from a fresh model; name an exact method such as nesterov"
            )
        return method


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A whole study."""

    title: str
    federations: tuple[Part, ...]
    candidates: tuple[Candidates, ...]
    rules: tuple[Rules, ...]
    tune: tuple[int, ...] = (1, 2)
    # Rounds that a candidate may need on the first data set, on the first tuning seed, to be run on the others; None: any.
    limit: int | None = None
    # Candidates, besides Retrain, that run on the tuning seeds after the first; None: all.
    finalists: int | None = None
    report: tuple[int, ...] = (3, 4, 5, 6, 7)
    # Seeds on which alone the chosen stop rule is judged, if rules were changed after the reported seeds had been seen.
    confirm: tuple[int, ...] = ()
    clients: int = 20
    forget: str = "c00,c01"
    rounds: int = 40
    long: int = 80  # rounds of the runs on which stop rules are replayed
    epochs: int = 5
    batch_size: int = 64
    lr: float = 0.005
    held_out: float = 0.25
    model: str | None = None  # None: the data set's own

    __pydantic_config__ = FORBID

    def __post_init__(self) -> None:
        for name in ("rounds", "epochs", "batch_size", "clients", "limit", "finalists"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        check_whole("long", self.long, least=max(self.rounds, SMOOTH))
        check_positive("lr", self.lr, 0.005)
        if not 0 < self.held_out < 1:
            raise ConfigError(
                f"held_out is {self.held_out!r}; give a share between 0 and 1, such as 0.25: stop rules are compared on held-out data"
            )
        groups = {"tune": self.tune, "report": self.report, "confirm": self.confirm}
        for name, seeds in groups.items():
            if (not seeds and name != "confirm") or len({*seeds}) < len(seeds):
                raise ConfigError(f"{name} is {[*seeds]}; give at least one seed, and each once")
        for (name, seeds), (other, others) in combinations(groups.items(), 2):
            if both := sorted({*seeds} & {*others}):
                raise ConfigError(
                    f"seed {both[0]} is in {name} and in {other}; settings must be chosen on other seeds than those reported"
                )
        names = [candidate.name for candidate in self.list_candidates()]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"two candidates are {twice}; name it once")
        if lost := [name for name in (RETRAIN, PAPER) if name not in names]:
            raise ConfigError(
                f"the candidates lack {lost[0]} with its own settings, which the others are compared with; add it"
            )
        for candidate in self.list_candidates():
            candidate.make(self.epochs)
        if self.limit is not None and len(self.data) < 2:
            raise ConfigError(
                f"limit is {self.limit}, but there is one data set; remove limit, or add another data set"
            )
        families = [rules.family for rules in self.rules]
        if not families or len({*families}) < len(families):
            raise ConfigError("[[rules]] must name each family of stop rules once, and at least one")
        for rules in self.rules:
            rules.make()
        places = [label_place(place) for place in self.places(self.tune)]
        if twice := next((name for name in places if places.count(name) > 1), None):
            raise ConfigError(f"two parts make the cell {twice}; merge them")

    def list_candidates(self) -> list[Candidate]:
        """Return every candidate, in the order of the file."""
        return [
            Candidate(part.family, part.method, settings)
            for part in self.candidates
            for settings in _combine(part.settings)
        ]

    def list_families(self) -> dict[str, list[Candidate]]:
        """Return the candidates by family."""
        found: dict[str, list[Candidate]] = {}
        for candidate in self.list_candidates():
            found.setdefault(candidate.family, []).append(candidate)
        return found

    @property
    def data(self) -> list[str]:
        """The data sets, in the order of the file."""
        return [*dict.fromkeys(part.data for part in self.federations)]

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds: those to choose on, then those to report."""
        return (*self.tune, *self.report, *self.confirm)

    def places(self, seeds: Sequence[int] | None = None) -> Iterator[Place]:
        """Yield the cells of these seeds, or of all, seed by seed."""
        for seed in self.seeds if seeds is None else seeds:
            for part in self.federations:
                for partition, size in product(part.partitions, part.per_client or (None,)):
                    yield Place(
                        data=part.data, partition=partition, per_client=size, backdoor=False, seed=seed, clients=self.clients,
                        forget=self.forget, rounds=self.rounds, epochs=self.epochs, batch_size=self.batch_size, lr=self.lr,
                        momentum=0.9, scale=0.6, model=self.model, held_out=self.held_out,
                    )  # fmt: skip

    def count_federations(self) -> int:
        """Return the number of federations."""
        return sum(1 for _ in self.places(self.tune[:1]))


def label_place(place: Place) -> str:
    """Return the name of a cell with its data set."""
    return f"{place.data}/{place.name}"


def read_study(path: Path) -> Study:
    """Return the study in a file."""
    if not path.exists():
        raise ConfigError(f"there is no study file {path}; write one; {find_study('study')} is an example")
    return validate(Study, read_toml(path), str(path))


def find_study(name: str) -> Path:
    """Return the file of a study by name, or the path of a user's own."""
    if name.endswith(".toml"):
        return Path(name)
    found = FOLDER / f"{name}.toml"
    if not found.is_file():
        known = " or ".join(sorted(path.stem for path in FOLDER.glob("*.toml")))
        raise ConfigError(f"there is no study {name!r}; choose {known}, or give the path of a .toml file")
    return found


def _combine(settings: Values) -> Iterator[dict[str, int | float]]:
    for values in product(*settings.values()):
        yield dict(zip(settings, values, strict=True))


def _join_settings(settings: Mapping[str, int | float]) -> str:
    return ", ".join(f"{SHORT.get(key, key)} {value:g}" for key, value in settings.items())
