"""The schedule of a block and the runner that carries it out; on a GPU it records a step as a graph and replays that.

The clients with the most steps come first in the stack, which shrinks as the others finish.
Letters in shapes: C clients of a block, T steps of the longest client, B examples in a batch.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from feduhb.core.draws import make_key
from feduhb.core.inputs import Inputs as ModelInputs
from feduhb.core.local import scale_lr
from feduhb.core.types import ClientId, Local
from feduhb.engines.batches import draw_order, list_sizes
from feduhb.engines.stacked.data import ExampleStore
from feduhb.engines.stacked.networks import Network
from feduhb.engines.stacked.optimizers import RATES, list_rates
from feduhb.engines.triton import HAS_TRITON
from feduhb.engines.triton.elementwise import gather_batches

STRIDE = 8  # steps in one graph
REPEATS = 3  # measurements of a step, of which the shortest counts
WASTE = 0.05  # share of the places in steps that may be masked, to need fewer graphs


class NotRecordableError(Exception):
    """The reason why the steps of a model cannot be recorded, in words."""


@contextlib.contextmanager
def explain_recording() -> Generator[None]:
    """Raise NotRecordableError if a step cannot be recorded as a CUDA graph. Memory that runs out is an error of its own."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise NotRecordableError(f"its steps cannot be recorded ({why})") from error


@dataclass(frozen=True, slots=True)
class Phase:
    """A number of steps in which the first ``clients`` clients of the stack take part."""

    clients: int
    steps: int


def plan_phases(totals: Sequence[int], waste: float = 0.0) -> tuple[Phase, ...]:
    """Divide the steps of clients into phases; ``totals`` is in descending order.

    Without waste every client leaves as soon as it finishes. A GPU needs one graph for each number of clients, so
    finished clients may stay, masked, as long as at most the share ``waste`` of all places in steps is lost.
    """
    ends = sorted(set(totals))
    exact = [
        Phase(sum(total >= end for total in totals), end - begin)
        for begin, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    spare = waste * sum(totals)
    while len(exact) > 1:
        costs = [(a.clients - b.clients) * b.steps for a, b in itertools.pairwise(exact)]
        cheapest = min(range(len(costs)), key=costs.__getitem__)
        spare -= costs[cheapest]
        if spare < 0:
            break
        first, second = exact[cheapest : cheapest + 2]
        exact[cheapest : cheapest + 2] = [Phase(first.clients, first.steps + second.steps)]
    return tuple(exact)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The batches of a block of clients, in descending order of their numbers of examples."""

    clients: tuple[ClientId, ...]
    counts: tuple[int, ...]  # [C] examples
    size: int  # B
    epochs: int
    batch_size: int
    joins: bool  # whether a last batch of one joins the batch before it

    @classmethod
    def of(
        cls,
        clients: Sequence[ClientId],
        counts: Sequence[int],
        batch_size: int,
        epochs: int,
        *,
        joins: bool = False,
    ) -> Schedule:
        """Return the schedule of these clients; clients with equally many examples keep their order."""
        pairs = sorted(zip(clients, counts, strict=True), key=lambda pair: -pair[1])
        names, sizes = zip(*pairs, strict=True)
        return cls(names, sizes, min(batch_size + joins, max(sizes)), epochs, batch_size, joins)

    def list_sizes(self, count: int) -> list[int]:
        """Return the sizes of the batches in one epoch of ``count`` examples."""
        return list_sizes(count, self.batch_size, joins=self.joins)

    @property
    def epoch_steps(self) -> tuple[int, ...]:
        """The number of steps in one epoch of each client [C]."""
        return tuple(len(self.list_sizes(count)) for count in self.counts)

    @property
    def totals(self) -> tuple[int, ...]:
        """The number of all steps of each client [C]."""
        return tuple(steps * self.epochs for steps in self.epoch_steps)

    def shares(self, dtype: torch.dtype) -> Tensor:
        """Return the weight of each example in the mean of its batch [C, T, B]: 1 / batch size, and 0 for padding."""
        found = torch.zeros(len(self.clients), self.totals[0], self.size, dtype=dtype)
        for row, count in enumerate(self.counts):
            sizes = torch.tensor(self.list_sizes(count)).unsqueeze(1)
            epoch = (torch.arange(self.size) < sizes).to(dtype) / sizes
            found[row, : len(sizes) * self.epochs] = epoch.repeat(self.epochs, 1)
        return found

    def keys(self, seed: int, round: int) -> Tensor:
        """Return the keys of the random draws in each step [C, T] int64."""
        found = torch.zeros(len(self.clients), self.totals[0], dtype=torch.long)
        for row, (client, steps) in enumerate(zip(self.clients, self.epoch_steps, strict=True)):
            places = itertools.product(range(self.epochs), range(steps))
            keys = [make_key(seed, client, round, epoch, step) for epoch, step in places]
            found[row, : len(keys)] = torch.tensor(keys)
        return found

    def rates(self, local: Local, round: int) -> Tensor:
        """Return what the optimiser needs in each step [C, T, RATES]; 0 where a client has finished."""
        found = torch.zeros(len(self.clients), self.totals[0], RATES, dtype=torch.float64)
        for row, total in enumerate(self.totals):
            scales = (scale_lr(local.schedule, round, step, total) for step in range(total))
            rates = [list_rates(local, scale, step) for step, scale in enumerate(scales, start=1)]
            found[row, :total] = torch.tensor(rates, dtype=torch.float64)
        return found

    def count_ready_steps(self, epoch: int) -> int:
        """Return how many steps can run once the batches of this epoch are drawn."""
        return self.totals[0] if epoch == self.epochs - 1 else self.epoch_steps[-1] * (epoch + 1)

    def pad(self, order: Tensor, rows: Sequence[Tensor]) -> None:
        """Fill an order [C, T, B] with each client's first example, which has a share of 0 there."""
        for own, positions in zip(order, rows, strict=False):
            own.fill_(int(positions[0]))

    def draw(self, order: Tensor, rows: Sequence[Tensor], seed: int, round: int, epoch: int) -> None:
        """Write the batches of one epoch into an order [C, T, B]; ``rows`` are positions in the store."""
        for row, (client, count) in enumerate(zip(self.clients, self.counts, strict=True)):
            sizes = self.list_sizes(count)
            shuffled = rows[row][draw_order(count, seed, client, round, epoch)]
            begin = epoch * len(sizes) * self.size
            if len(sizes) == 1 or self.size == self.batch_size:  # no padding between batches
                order[row].view(-1)[begin : begin + count] = shuffled
                continue
            for step, batch in enumerate(shuffled.split(sizes), start=epoch * len(sizes)):
                order[row, step, : len(batch)] = batch


@dataclass
class Inputs:
    """What a step reads, at fixed addresses: the batches of every step, and the number of the step."""

    store: ExampleStore
    order: Tensor  # [C, T, B] positions in the store
    shares: Tensor  # [C, T, B] weight of each example in the mean of its batch
    now: Tensor  # [1] number of the step
    draft: Tensor  # [C, T, B] the order on the host, in pinned memory if there is a GPU
    keys: Tensor | None = None  # [C, T] of the steps' random draws; None if they draw nothing
    rates: Tensor | None = None  # [C, T, RATES] of the optimiser; None for plain SGD
    graphs: dict[tuple[int, int], Any] = field(default_factory=dict)  # by the numbers of clients and steps
    memory: Any = None  # shared by the graphs, which run one after another
    written: Schedule | None = None  # the schedule of the shares

    def fit(self, store: ExampleStore, schedule: Schedule) -> bool:
        """Return whether a schedule fits in, so that the graphs can be used again."""
        _, steps, size = self.order.shape
        return self.store is store and steps >= schedule.totals[0] and size == schedule.size


class Runner:
    """Train the clients of a block on a network that holds up to ``clients`` of them.

    Args:
        draws: whether the steps draw random numbers.
    """

    def __init__(
        self, network: Network, clients: int, dtype: torch.dtype, device: torch.device, *, draws: bool = False
    ) -> None:
        self.network = network
        self.clients = clients
        self.draws = draws
        self.dtype = dtype
        self.device = device
        self._inputs: Inputs | None = None

    def run(self, schedule: Schedule, store: ExampleStore, start: Tensor, seed: int, round: int) -> Tensor:
        """Train from the parameters [P]; return the parameters of each client [C, P] in the order of the schedule."""
        inputs = self._prepare(schedule, store)
        self._write_settings(inputs, schedule, seed, round)
        rows = [store.rows[client] for client in schedule.clients]
        plan = plan_phases(schedule.totals, WASTE if self.device.type == "cuda" else 0.0)
        if self.device.type == "cuda":
            for phase in plan:
                self._record_graphs(inputs, phase.clients)
        self.network.begin(start)
        inputs.now.zero_()
        schedule.pad(inputs.draft, rows)
        done = 0
        for epoch in range(schedule.epochs):
            schedule.draw(inputs.draft, rows, seed, round, epoch)
            inputs.order.copy_(inputs.draft, non_blocking=True)
            ready = schedule.count_ready_steps(epoch)
            for phase in _clip_phases(plan, done, ready):
                self._advance(inputs, phase)
            done = ready
        return self.network.end()[: len(schedule.clients)]

    def time_step(self, schedule: Schedule, store: ExampleStore, start: Tensor) -> float:
        """Return the seconds that a GPU needs for one step of all clients of a schedule."""
        inputs = self._prepare(schedule, store)
        self._write_settings(inputs, schedule, 0, 0)
        inputs.draft.zero_()
        schedule.pad(inputs.draft, [store.rows[client] for client in schedule.clients])
        inputs.order.copy_(inputs.draft)
        clients = len(schedule.clients)
        self.network.begin(start)
        self._record_graphs(inputs, clients)
        taken = []
        for _ in range(REPEATS + 1):
            inputs.now.zero_()
            torch.cuda.synchronize(self.device)
            began = time.perf_counter()
            inputs.graphs[clients, 1].replay()
            torch.cuda.synchronize(self.device)
            taken.append(time.perf_counter() - began)
        return min(taken[1:])

    def _advance(self, inputs: Inputs, phase: Phase) -> None:
        if self.device.type != "cuda":
            for _ in range(phase.steps):
                self._step(inputs, phase.clients)
            return
        for _ in range(phase.steps // STRIDE):
            inputs.graphs[phase.clients, STRIDE].replay()
        for _ in range(phase.steps % STRIDE):
            inputs.graphs[phase.clients, 1].replay()

    def _step(self, inputs: Inputs, clients: int) -> None:
        """Take the step with the number ``now``, and increase it."""
        x, y, share, on = self._batches(inputs, clients)
        keys, rates = (
            None if part is None else part[:clients].index_select(1, inputs.now).squeeze(1)
            for part in (inputs.keys, inputs.rates)
        )
        self.network.step(x, y, share, on, keys, rates)
        inputs.now += 1

    def _batches(self, inputs: Inputs, clients: int) -> tuple[ModelInputs, Tensor, Tensor, Tensor]:
        """Return inputs [C, B, ...], targets [C, B, ...], shares [C, B], and which clients still train [C]."""
        store = inputs.store
        if isinstance(store.x, Tensor) and store.x.is_cuda and HAS_TRITON and store.y.dim() == 1:
            last = self.network.batch_last and store.x.dim() == 4
            return gather_batches(
                inputs.now, inputs.order, inputs.shares, store.x, store.y, clients, batch_last=last
            )
        rows = inputs.order[:clients].index_select(1, inputs.now).squeeze(1)
        share = inputs.shares[:clients].index_select(1, inputs.now).squeeze(1)
        on = (share.sum(1) > 0).to(share.dtype)
        return *store.gather(rows), share, on

    def _record_graphs(self, inputs: Inputs, clients: int) -> None:
        """Record one step of this many clients as a CUDA graph, and `STRIDE` steps as another, after a warm-up step."""
        if (clients, 1) in inputs.graphs:
            return
        inputs.now.zero_()
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with explain_recording(), torch.cuda.stream(aside):
            self._step(inputs, clients)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        for steps in (1, STRIDE):
            graph = torch.cuda.CUDAGraph()
            with explain_recording(), torch.cuda.graph(graph, pool=inputs.memory):
                for _ in range(steps):
                    self._step(inputs, clients)
            inputs.memory = graph.pool()
            inputs.graphs[clients, steps] = graph

    def _prepare(self, schedule: Schedule, store: ExampleStore) -> Inputs:
        """Return inputs with the shares of a schedule; reuse those of the last block if they are large enough."""
        if self._inputs is None or not self._inputs.fit(store, schedule):
            shape = self.clients, schedule.totals[0], schedule.size
            self._inputs = Inputs(
                store,
                order=torch.zeros(shape, dtype=torch.long, device=self.device),
                shares=torch.zeros(shape, dtype=self.dtype, device=self.device),
                now=torch.zeros(1, dtype=torch.long, device=self.device),
                draft=torch.zeros(shape, dtype=torch.long, pin_memory=self.device.type == "cuda"),
            )
            if self.draws:
                self._inputs.keys = torch.zeros(shape[:2], dtype=torch.long, device=self.device)
            if not self.network.local.is_plain:
                self._inputs.rates = torch.zeros((*shape[:2], RATES), dtype=self.dtype, device=self.device)
        elif self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the draft may still be being copied
        inputs = self._inputs
        if inputs.written != schedule:
            shares = schedule.shares(self.dtype).to(self.device)
            inputs.shares.zero_()
            inputs.shares[: len(schedule.clients), : schedule.totals[0]] = shares
            inputs.written = schedule
        return inputs

    def _write_settings(self, inputs: Inputs, schedule: Schedule, seed: int, round: int) -> None:
        """Write the keys and the rates of a round."""
        if inputs.keys is not None:
            keys = schedule.keys(seed, round)
            inputs.keys[: keys.shape[0], : keys.shape[1]] = keys.to(self.device)
        if inputs.rates is not None:
            rates = schedule.rates(self.network.local, round).to(self.dtype)
            inputs.rates[: rates.shape[0], : rates.shape[1]] = rates.to(self.device)


def _clip_phases(plan: Sequence[Phase], begin: int, end: int) -> list[Phase]:
    """Return the parts of phases that lie between two steps."""
    found, at = [], 0
    for phase in plan:
        steps = min(end, at + phase.steps) - max(begin, at)
        if steps > 0:
            found.append(Phase(phase.clients, steps))
        at += phase.steps
    return found
