"""What a config file can say. Plain dataclasses, so that code and TOML share one definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from feduhb.core.checks import whole
from feduhb.data.backdoor import Backdoor
from feduhb.data.canaries import Canaries
from feduhb.errors import ConfigError
from feduhb.stopping import DynamicStop

KeepHistory = bool | Literal["float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationSettings:
    """[federation]: a data set that has a name, and how it is shared out."""

    data: str = "mnist-5k"
    clients: int = 20
    partition: str = "iid"
    per_client: int | None = None  # images of each client, the held-out part included
    held_out: float = 0.25  # share of every client's images that is never trained on
    model: str | None = None  # None: the data set's own
    backdoor: Backdoor | None = None
    canaries: Canaries | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ConfigError(
                f"held_out is {self.held_out}; give a share of at least 0 and below 1, such as 0.25"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """[train]: how the clients of a federation train, first and in every unlearning."""

    rounds: int = 40
    epochs: int = 5
    batch_size: int = 64
    lr: float = 0.005
    l2: float = 0.0
    aggregate: str = "weighted_mean"
    clients_per_round: int | None = None  # None: everyone
    engine: str = "auto"
    keep_history: KeepHistory = False  # for methods that replay it; "float16" takes half the room

    def __post_init__(self) -> None:
        whole("rounds", self.rounds)
        whole("epochs", self.epochs, least=0)
        if self.clients_per_round is not None:
            whole("clients_per_round", self.clients_per_round)
        if not (isinstance(self.keep_history, bool) or self.keep_history == "float16"):
            raise ConfigError(f"keep_history is {self.keep_history!r}; give true, false or 'float16'")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlearnSettings:
    """[unlearn]: what was forgotten, and how. Written into the folder of an unlearning run."""

    forget: str
    method: str = "feduhb"
    rounds: int = 40
    settings: Mapping[str, float | int | str] = field(default_factory=dict)
    stop: DynamicStop | None = None  # None: every scheduled round

    def __post_init__(self) -> None:
        whole("rounds", self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole config file. Without [federation] it belongs to data that only Python code can bring."""

    seed: int = 0
    federation: FederationSettings | None = None
    train: TrainSettings = field(default_factory=TrainSettings)
    unlearn: UnlearnSettings | None = None
    made_by: str = ""  # engine, device, precision and torch's version: what equal bits depend on
    clients: Mapping[str, str] = field(
        default_factory=dict
    )  # size and digest of the data of everyone who took part
