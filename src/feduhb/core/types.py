"""The types that server, clients and engines exchange.

All signs and indices follow this convention: round t turns w[t] into w[t+1], and a client's update is
``u = w[t] - w_client``. An update points uphill, like a gradient, and servers subtract it.
Letters in shapes: C clients, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from feduhb.core.local import Local as Local
from feduhb.core.local import Loss as Loss
from feduhb.stopping import StopRule, never

ClientId = str


@dataclass(frozen=True, slots=True)
class Work:
    """The work that the server asks of the clients of a round."""

    params: Tensor  # [P] the parameters to start from
    epochs: int  # local passes; 0: answer with the full-batch gradient at params
    clients: tuple[ClientId, ...] | None = None  # None: everyone who takes part
    needed: bool = True  # False: the method continues even if no client answers

    def __post_init__(self) -> None:
        if self.params.dim() != 1:
            raise ValueError(f"params must be flat [P], not {list(self.params.shape)}")
        if self.epochs < 0:
            raise ValueError(f"epochs must be 0 or more, not {self.epochs}")


@dataclass(frozen=True, slots=True)
class Updates:
    """A block of answers, one row for each client.

    A summed block (secure aggregation) has one row for all of its clients: their weighted mean, with their
    total weight. FedExP also needs the mean of their squared lengths, which a sum no longer shows.
    """

    clients: tuple[ClientId, ...]
    values: Tensor  # [C, P] params - local params; [1, P] when summed
    weights: Tensor  # [C] examples held; [1] when summed
    mean_square: float | None = None  # when summed: the weighted mean of ‖u_c‖², without statistics

    def __post_init__(self) -> None:
        rows = self.values.shape[0] if self.values.dim() == 2 else -1
        if rows != len(self.clients) and rows != 1:
            raise ValueError(
                f"values must be [C, P] or [1, P] with C = {len(self.clients)}, not {list(self.values.shape)}"
            )
        if self.weights.shape != (rows,):
            raise ValueError(f"{rows} rows of values need as many weights, not {list(self.weights.shape)}")

    @property
    def summed(self) -> bool:
        """Whether one row stands for several clients."""
        return self.values.shape[0] != len(self.clients)

    def select(self, rows: Sequence[int]) -> Updates:
        """Return some rows of a block that is not summed."""
        chosen = torch.tensor(rows)
        return Updates(tuple(self.clients[i] for i in rows), self.values[chosen], self.weights[chosen])


class State(Protocol):
    """A method's memory: a NamedTuple of tensors and ints that always has ``params``."""

    @property
    def params(self) -> Tensor:
        """The model, flat [P]."""
        ...


S = TypeVar("S", bound=State)


class Method(Protocol[S]):
    """The server's part of training or unlearning, as a frozen dataclass without mutable state.

    A subclass defines ``name``, ``exact``, ``init``, ``ask`` and ``tell``. Everything else has a default.
    """

    name: ClassVar[str]  # what the user types
    exact: ClassVar[bool]  # whether it retrains from a fresh model without the forgotten data
    # Whether it replays what training stored. If so, it has the fields `history` and `clients`.
    needs_history: ClassVar[bool] = False
    samples_clients: ClassVar[bool] = True  # asks only the sampled clients, if a run samples

    @property
    def needs(self) -> Literal["sum", "each"]:
        """ "sum" if the method works on summed answers, as under secure aggregation; "each" if not."""
        return "sum"

    @property
    def rounds(self) -> int | None:
        """The method's own number of rounds; None if the user chooses it."""
        return None

    def default_stop(self) -> StopRule:
        """Return the stop rule to use if the user chooses none."""
        return never

    def init(self, params: Tensor) -> S:
        """Return the initial state at these parameters."""
        ...

    def ask(self, state: S) -> Work | None:
        """Return the work for the clients in this round; None if no client is needed."""
        ...

    def tell(self, state: S, answers: Iterable[Updates]) -> S:
        """Return the next state, given the answers to the work. Change none of the arguments.

        The answers are empty if ``ask`` returned None, and may be empty if the work is not ``needed``.
        """
        ...


class Engine(Protocol):
    """Trains clients and streams their answers, block by block, in the order of the clients asked."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Name, precision, threads, block and local training, for the records of a run."""
        ...

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Yield the answers of these clients to this work."""
        ...


class History(Protocol):
    """The model before each round of a training and every client's update, for methods that replay them."""

    @property
    def rounds(self) -> Sequence[int]:
        """The complete rounds, in order."""
        ...

    @property
    def bytes(self) -> int:
        """The size on disk."""
        ...

    def clients(self, round: int) -> tuple[ClientId, ...]:
        """Return the clients that answered in a round."""
        ...

    def params(self, round: int) -> Tensor:
        """Return the model [P] that the round started from."""
        ...

    def read(self, round: int, clients: Sequence[ClientId]) -> Iterator[Updates]:
        """Yield the stored updates and weights of these clients, without clients that did not answer."""
        ...
