"""The types that server, clients and engines exchange.

All signs and indices follow this convention: round t turns w[t] into w[t+1], and a client's update is
``u = w[t] - w_client``. An update points uphill, like a gradient, and servers subtract it.
Letters in shapes: C clients, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from feduhb.core.local import Local as Local
from feduhb.core.local import Loss as Loss
from feduhb.core.tasks import Task
from feduhb.stopping import StopRule, never

ClientId = str
RECORDED: Final = "recorded"
# What the bits of the stacked engine depend on: how many clients it computes together, or "recorded", each one alone.
BlockSize = int | Literal["recorded"]


@dataclass(frozen=True, slots=True)
class Work:
    """The work that the server asks of the clients of a round."""

    params: Tensor  # [P] the parameters to start from
    epochs: int  # local passes; 0: answer with the full-batch gradient at params
    clients: tuple[ClientId, ...] | None = None  # None: everyone who takes part
    needed: bool = True  # False: the method continues even if no client answers
    task: Task | None = None  # None: plain training, or the gradient
    # True: leavers are asked, each to work on the data that it asked to forget. The method must declare `asks_leaver`.
    leavers: bool = False

    def __post_init__(self) -> None:
        if self.params.dim() != 1:
            raise ValueError(f"params must be flat [P], not {list(self.params.shape)}")
        if self.epochs < 0:
            raise ValueError(f"epochs must be 0 or more, not {self.epochs}")
        if self.task is not None and self.epochs == 0:
            raise ValueError(f"the task {self.task.name} needs epochs of 1 or more, not 0")


class Foreseen(NamedTuple):
    """The work of a round, as far as a method knows it before the run."""

    epochs: int = 0  # as in `Work`
    clients: tuple[ClientId, ...] | None = ()  # None: everyone who takes part
    leavers: bool = False  # whether they work on the data that they asked to forget
    more: bool = False  # whether further clients may be asked, depending on numbers that are not known yet

    @classmethod
    def of(cls, work: Work | None) -> Foreseen:
        """Return what a round asks for; None asks nobody."""
        return cls() if work is None else cls(work.epochs, work.clients, work.leavers)


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
    # Whether it starts from the model that is to forget. If so, it has the field `model`.
    needs_model: ClassVar[bool] = False
    # Whether it asks the leavers to work on the data that they asked to forget. If so, it has the fields `clients` and
    # `leavers`, of those that remain and of those that it may ask.
    asks_leaver: ClassVar[bool] = False
    needs_public: ClassVar[bool] = False  # whether the server must hold unlabelled data: `Federation.public`
    bound: ClassVar[tuple[str, ...]] = ()  # further fields that `feduhb.unlearn` fills in
    serves: ClassVar[tuple[str, ...]] = ("clients", "rows", "classes")  # what a request may name
    samples_clients: ClassVar[bool] = True  # asks only the sampled clients, if a run samples
    # Whether it repeats the training's own rule, so that it can continue from a model that the training kept.
    continues_training: ClassVar[bool] = False

    @property
    def needs(self) -> Literal["sum", "each"]:
        """ "sum" if the method works on summed answers, as under secure aggregation; "each" if not."""
        return "sum"

    @property
    def rounds(self) -> int | None:
        """The method's own number of rounds; None if the user chooses it."""
        return None

    @property
    def tasks(self) -> tuple[type[Task], ...]:
        """The kinds of tasks that it asks of clients, besides plain training and gradients."""
        return ()

    def default_stop(self) -> StopRule:
        """Return the stop rule to use if the user chooses none."""
        return never

    def foresee(self, rounds: Iterable[int], first: Work | None) -> Iterator[Foreseen]:
        """Yield the work of these rounds before the run, for forecasts; by default every one asks as the first does.

        Args:
            first: what the first round asks for; None if the method replays a history.
        """
        for _ in rounds:
            yield Foreseen.of(first)

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
    """Trains clients and streams their answers, block by block, in the order of the clients asked.

    An engine whose clients can do tasks has the attribute ``tasks``, with their kinds. See `get_tasks`.
    """

    @property
    def about(self) -> Mapping[str, Any]:
        """Name, precision, threads, block and local training, for the records of a run."""
        ...

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Yield the answers of these clients to this work."""
        ...


def get_tasks(engine: Engine) -> tuple[type[Task], ...]:
    """Return the kinds of tasks that the clients of an engine can do."""
    return tuple(getattr(engine, "tasks", ()))


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
