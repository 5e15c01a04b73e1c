"""Runs the schedule of a block. On a GPU a step is recorded once as a graph, and the host only replays it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from feduhb.engines.kernels import language
from feduhb.engines.kernels.fetch import fetch
from feduhb.engines.stacking.networks import Network
from feduhb.engines.stacking.schedule import Phase, Schedule, phases
from feduhb.engines.stacking.shelf import Shelf

STRIDE = 8  # steps that one graph takes
WASTE = 0.05  # of the places in steps that may be masked, for fewer graphs


@dataclass
class Inputs:
    """What a step reads: the batches of every step, and which step it is, at fixed addresses."""

    shelf: Shelf
    order: Tensor  # [C, T, B] positions on the shelf
    shares: Tensor  # [C, T, B] the weight of each example in its batch's mean
    now: Tensor  # [1] the step
    draft: Tensor  # [C, T, B] the order on the host, pinned where it goes to a GPU
    graphs: dict[tuple[int, int], Any] = field(default_factory=dict)  # by the numbers of clients and steps
    memory: Any = None  # what the graphs work in: they run one after another, so they share it
    written: Schedule | None = None  # whose shares are there

    def fit(self, shelf: Shelf, schedule: Schedule) -> bool:
        """Whether a schedule finds room, so that its graphs can be used again."""
        return (
            self.shelf is shelf
            and self.order.shape[1] >= schedule.totals[0]
            and self.order.shape[2] == schedule.size
        )


class Runner:
    """Trains the clients of a block on a network that holds up to ``clients`` of them."""

    def __init__(self, network: Network, clients: int, dtype: torch.dtype, device: torch.device) -> None:
        self.network = network
        self.clients = clients
        self.dtype = dtype
        self.device = device
        self._inputs: Inputs | None = None

    def run(self, schedule: Schedule, shelf: Shelf, start: Tensor, seed: int, round: int) -> Tensor:
        """Train from the parameters [P]; gives those of each client [C, P], in the schedule's order."""
        inputs = self._prepared(schedule, shelf)
        rows = [shelf.rows[client] for client in schedule.clients]
        plan = phases(schedule.totals, WASTE if self.device.type == "cuda" else 0.0)
        if self.device.type == "cuda":
            for phase in plan:
                self._recorded(inputs, phase.clients)
        self.network.begin(start)
        inputs.now.zero_()
        schedule.pad(inputs.draft, rows)
        done = 0
        for epoch in range(schedule.epochs):
            schedule.draw(inputs.draft, rows, seed, round, epoch)
            inputs.order.copy_(inputs.draft, non_blocking=True)
            for phase in _between(plan, done, schedule.ready(epoch)):
                self._advance(inputs, phase)
            done = schedule.ready(epoch)
        return self.network.end()[: len(schedule.clients)]

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
        """Take the step that ``now`` points at, and point at the next."""
        self.network.step(*self._batches(inputs, clients))
        inputs.now += 1

    def _batches(self, inputs: Inputs, clients: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs [C, B, ...], targets [C, B, ...], shares [C, B], and which clients still train [C]."""
        shelf = inputs.shelf
        if shelf.x.is_cuda and language.triton and shelf.y.dim() == 1:
            last = self.network.batch_last and shelf.x.dim() == 4
            return fetch(inputs.now, inputs.order, inputs.shares, shelf.x, shelf.y, clients, batch_last=last)
        rows = inputs.order[:clients].index_select(1, inputs.now).squeeze(1)
        share = inputs.shares[:clients].index_select(1, inputs.now).squeeze(1)
        on = (share.sum(1) > 0).to(share.dtype)
        return shelf.x[rows], shelf.y[rows], share, on

    def _recorded(self, inputs: Inputs, clients: int) -> None:
        """Record one step of so many clients as a CUDA graph, and several as another, after one for warming up."""
        if (clients, 1) in inputs.graphs:
            return
        inputs.now.zero_()
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            self._step(inputs, clients)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        for steps in (1, STRIDE):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=inputs.memory):
                for _ in range(steps):
                    self._step(inputs, clients)
            inputs.memory = graph.pool()
            inputs.graphs[clients, steps] = graph

    def _prepared(self, schedule: Schedule, shelf: Shelf) -> Inputs:
        """Give room for a schedule, that of the last block where it is large enough."""
        if self._inputs is None or not self._inputs.fit(shelf, schedule):
            shape = self.clients, schedule.totals[0], schedule.size
            self._inputs = Inputs(
                shelf,
                order=torch.zeros(shape, dtype=torch.long, device=self.device),
                shares=torch.zeros(shape, dtype=self.dtype, device=self.device),
                now=torch.zeros(1, dtype=torch.long, device=self.device),
                draft=torch.zeros(shape, dtype=torch.long, pin_memory=self.device.type == "cuda"),
            )
        elif self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the draft may still be on its way
        inputs = self._inputs
        if inputs.written != schedule:
            inputs.shares.zero_()
            inputs.shares[: len(schedule.clients), : schedule.totals[0]] = schedule.shares(self.dtype).to(
                self.device
            )
            inputs.written = schedule
        return inputs


def _between(plan: Sequence[Phase], begin: int, end: int) -> list[Phase]:
    """The parts of phases that lie between two steps."""
    found, at = [], 0
    for phase in plan:
        steps = min(end, at + phase.steps) - max(begin, at)
        if steps > 0:
            found.append(Phase(phase.clients, steps))
        at += phase.steps
    return found
