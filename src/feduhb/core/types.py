"""The types that server, clients and engines exchange.

Signs and indices are fixed here, once. Round t turns w[t] into w[t+1]. A client's update is
``u = w[t] - w_client``, what it started from minus what it arrived at: it points uphill, like a
gradient, and servers subtract it. Letters in shapes: C clients, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from feduhb.core.checks import check_whole, is_finite
from feduhb.errors import ConfigError
from feduhb.stopping import StopRule, never

ClientId = str
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Work:
    """The work that the server asks of the clients of a round."""

    params: Tensor  # [P] start here
    epochs: int  # local passes; 0: answer with the full-batch gradient at params
    clients: tuple[ClientId, ...] | None = None  # None: everyone who takes part
    needed: bool = True  # False: the method continues where nobody answers

    def __post_init__(self) -> None:
        if self.params.dim() != 1:
            raise ValueError(f"params must be flat [P], not {list(self.params.shape)}")
        if self.epochs < 0:
            raise ValueError(f"epochs must be 0 or more, not {self.epochs}")


@dataclass(frozen=True, slots=True)
class Updates:
    """A block of answers: one row a client, or one row for all of them where only their mean is known.

    A pre-summed block (secure aggregation) holds the weighted mean of its clients as its only row and
    their total as its only weight.
    """

    clients: tuple[ClientId, ...]
    values: Tensor  # [C, P] params - local params: uphill, like a gradient; [1, P] when summed
    weights: Tensor  # [C] examples held; [1] when summed

    def __post_init__(self) -> None:
        rows = self.values.shape[0] if self.values.dim() == 2 else -1
        if rows != len(self.clients) and rows != 1:
            raise ValueError(
                f"{len(self.clients)} clients need values [C, P] or [1, P], not {list(self.values.shape)}"
            )
        if self.weights.shape != (rows,):
            raise ValueError(f"{rows} rows of values need as many weights, not {list(self.weights.shape)}")

    @property
    def summed(self) -> bool:
        """Whether one row stands for several clients."""
        return self.values.shape[0] != len(self.clients)


class State(Protocol):
    """A method's memory: a NamedTuple of tensors and ints that always has ``params``."""

    @property
    def params(self) -> Tensor:
        """The model, flat [P]."""
        ...


S = TypeVar("S", bound=State)


class Method(Protocol[S]):
    """A server rule as a frozen dataclass: it asks, is told, and keeps nothing to itself.

    A class that inherits from this one has the defaults below and writes only what differs: a name, whether it is
    exact, and ``init``, ``ask`` and ``tell``.
    """

    name: ClassVar[str]  # what the user types
    exact: ClassVar[bool]  # whether it may claim: retrained without the forgotten data from a fresh model
    needs_history: ClassVar[bool] = (
        False  # replays what training stored; has the fields `history` and `clients`
    )
    samples_clients: ClassVar[bool] = True  # asks only the clients sampled for a round, where a run samples

    @property
    def needs(self) -> Literal["sum", "each"]:
        """ "sum" works on a pre-summed answer, and so under secure aggregation; "each" needs every update."""
        return "sum"

    @property
    def rounds(self) -> int | None:
        """The method's own number of rounds; None if the user chooses it."""
        return None

    def default_stop(self) -> StopRule:
        """Return the stop rule of a run for which the user chose none."""
        return never

    def init(self, params: Tensor) -> S:
        """Return the state to start with at these parameters."""
        ...

    def ask(self, state: S) -> Work | None:
        """Return the work wanted in this round; None if nobody is needed."""
        ...

    def tell(self, state: S, answers: Iterable[Updates]) -> S:
        """Return the next state, from the answers to the work. Pure.

        The answers are ``()`` after None, and may be empty after work that needs no answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Local:
    """How a client trains: plain SGD on its own batches."""

    batch_size: int = 64
    lr: float = 0.005
    loss: Loss = torch.nn.functional.cross_entropy  # the mean over a batch
    l2: float = 0.0  # adds l2/2 * ‖w‖² to the loss, biases included

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size)
        if not (is_finite(self.lr) and self.lr > 0):
            raise ConfigError(f"lr is {self.lr!r}; give a positive number, such as 0.005")
        if not (is_finite(self.l2) and self.l2 >= 0):
            raise ConfigError(f"l2 is {self.l2!r}; give 0 or more")


class Engine(Protocol):
    """Trains clients and streams their answers, block by block, in the order of the clients asked."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Name, precision, threads, block and local training: goes into records."""
        ...

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Return the answers of these clients to this work."""
        ...


class History(Protocol):
    """What training left for methods that replay it: the model before each round and every client's update."""

    @property
    def rounds(self) -> Sequence[int]:
        """The complete rounds, in order."""
        ...

    @property
    def bytes(self) -> int:
        """What it takes up on disk."""
        ...

    def clients(self, round: int) -> tuple[ClientId, ...]:
        """Who answered in a round."""
        ...

    def params(self, round: int) -> Tensor:
        """The model [P] that the round started from."""
        ...

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:
        """Stream the stored updates of those of these clients who answered, with their weights."""
        ...
