"""Clients one at a time, each on a copy of the module, whose steps are recorded as CUDA graphs and replayed.

Nothing is batched over clients, so any module and loss works that computes without waiting for the host. Several
lanes, each with a copy of the module and a stream, keep the GPU busy. A client's bits do not depend on the others.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.draws import augment_batch, draw_at
from feduhb.core.flat import channels_last, flatten, unflatten
from feduhb.core.inputs import Inputs, call_model, list_tensors, map_tensors
from feduhb.core.local import Local
from feduhb.core.modules import list_norms, list_trained
from feduhb.core.tasks import Precondition
from feduhb.core.types import ClientId
from feduhb.engines.batches import Batches
from feduhb.engines.squares import Squares, compute_squares, find_layers
from feduhb.engines.stacked.data import ExampleStore, count_free_bytes
from feduhb.engines.stacked.optimizers import RATES, Optimizer, list_rates
from feduhb.engines.stacked.runner import REPEATS, explain_recording
from feduhb.engines.tasks import AT_ONCE, square_gradients
from feduhb.engines.triton.group_norm import ChannelsLastGroupNorm

LANES = 8  # clients side by side; more gain little (benchmarks/architectures.py)
SQUARED_BYTES = 1 << 28  # of a lane's gradients of single examples, unless a few take more


class Lane:
    """A copy of the module that trains one client after another, on a stream of its own.

    Args:
        module: in training mode (`prepare_training`).
        local: its loss lies on the device.
        task: what takes the place of the training's own steps; None: nothing does.
        squares: compute the squared gradients of a task by `compute_squares`, if `is_exact` has said that it can.
    """

    def __init__(
        self,
        module: nn.Module,
        local: Local,
        device: torch.device,
        precision: str,
        task: Precondition | None = None,
        *,
        squares: bool = False,
    ) -> None:
        self.module = copy.deepcopy(module).to(device)
        for _, layer in list_norms(self.module):
            layer.num_batches_tracked = None  # it would count for nothing
        if device.type == "cuda" and precision != "float32":
            lay_channels_last(self.module)
        self.local = local
        self.device = device
        self.precision = precision
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._names, self._parameters = zip(*list_trained(self.module), strict=True)
        weights = zip(self._names, (p.detach().unsqueeze(0) for p in self._parameters), strict=True)
        self._weights = dict(weights)  # [1, ...] each
        # An expanded buffer cannot be written to, neither here nor by the model.
        own = [buffer for buffer in self.module.buffers() if 0 not in buffer.stride()]
        self._constants = [(buffer, buffer.clone()) for buffer in own]
        is_plain = local.is_plain and task is None
        self._optimizer = None if is_plain else Optimizer(local, self._weights, task)
        self._task = task
        self._layers = find_layers(self.module) if squares else None
        self._sgd = torch.optim.SGD(self._parameters, lr=local.lr, weight_decay=local.decay)
        self._key = torch.zeros((), dtype=torch.long, device=device)
        self._rates = torch.zeros(1, RATES, dtype=self._parameters[0].dtype, device=device)
        self._on = torch.ones(1, dtype=self._parameters[0].dtype, device=device)
        self._batch: tuple[Inputs, Tensor] = torch.empty(0), torch.empty(0)  # which recorded steps read
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by the number of examples in a batch
        self._memory: Any = None  # shared by the graphs, which run one after another

    def use(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which work goes to this lane's stream."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def begin(self, start: Tensor) -> None:
        """Set the module to the parameters [P], without what the client before left in it; the optimiser has no state."""
        for buffer, value in self._constants:
            buffer.copy_(value)
        unflatten(start, self.module)
        if self._optimizer is not None:
            self._optimizer.begin(
                {name: p.detach() for name, p in zip(self._names, self._parameters, strict=True)}
            )

    def take_step(self, store: ExampleStore, rows: Tensor, key: Tensor | None, rates: Tensor | None) -> None:
        """Take a step on the examples at positions [B] of a store.

        Args:
            key: [] int64 of the step's random draws; None if it draws nothing.
            rates: [RATES] for `Optimizer`; None for plain SGD.
        """
        if key is not None:
            self._key.copy_(key)
        if rates is not None:
            self._rates[0].copy_(rates)
        if self.stream is None:
            self._step(*store.gather(rows))
            return
        x, y = self._batch
        for own, everything in zip([*list_tensors(x), y], [*list_tensors(store.x), store.y], strict=True):
            torch.index_select(everything, 0, rows, out=own[: len(rows)])
        self.replay(len(rows))

    def replay(self, size: int) -> None:
        """Take the recorded step of ``size`` examples on the batch that was read last."""
        self._graphs[size].replay()

    def end(self) -> Tensor:
        """Return the module's parameters [P]."""
        return flatten(self.module)

    def record(self, store: ExampleStore, sizes: Collection[int]) -> None:
        """Record the steps of batches of these sizes that are not recorded yet; the module's values change."""
        if self.stream is None or self._graphs.keys() >= {*sizes}:
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with self.use():
            if len(self._batch[1]) < max(sizes):
                self._batch = store.gather(torch.zeros(max(sizes), dtype=torch.long, device=self.device))
                self._batch[1].zero_()  # a class that every model has
                self._graphs, self._memory = {}, None
            for size in sorted({*sizes} - {*self._graphs}, reverse=True):
                self._graphs[size] = self._record(size)

    def _record(self, size: int) -> torch.cuda.CUDAGraph:
        """Return the recorded step of a batch of ``size`` examples, after a step as a warm-up."""
        x, y = map_tensors(lambda part: part[:size], self._batch[0]), self._batch[1][:size]
        graph = torch.cuda.CUDAGraph()
        with explain_recording():
            self._step(x, y)
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph, pool=self._memory, stream=self.stream):
                self._step(x, y)
        self._memory = graph.pool()
        return graph

    def _step(self, x: Inputs, y: Tensor) -> None:
        """Take a step on a batch [B, ...]; a parameter that the module does not use keeps its value."""
        found = self._compute_squares(x, y)
        if found is not None:
            gradients, fisher = found.gradients, self._average(found.sums, len(y))
        else:
            own = map_tensors(torch.clone, x)  # the module may change it
            with draw_at(self._key), _autocast(self.precision, self.device):
                loss = self.local.loss(call_model(self.module, augment_batch(self.local.augment, own)), y)
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            fisher = None if self._task is None else self._measure(map_tensors(torch.clone, x), y)
        if self._optimizer is None:
            for p, gradient in zip(self._parameters, gradients, strict=True):
                p.grad = gradient
            self._sgd.step()
            self._sgd.zero_grad()
            return
        pairs = zip(self._names, gradients, strict=True)
        used = {name: gradient.unsqueeze(0) for name, gradient in pairs if gradient is not None}
        weights = {name: self._weights[name] for name in used}
        self._optimizer.step(weights, used, self._on, self._rates, fisher)

    def _compute_squares(self, x: Inputs, y: Tensor) -> Squares | None:
        """Return the gradient of a batch and its examples' squared ones; None if that needs a pass for each example."""
        if self._layers is None:
            return None
        own = map_tensors(torch.clone, x)
        with draw_at(self._key), _autocast(self.precision, self.device):
            return compute_squares(self.module, self._layers, self.local.loss, own, y)

    def _measure(self, x: Inputs, y: Tensor) -> dict[str, Tensor]:
        """Return the mean over a batch of the squared gradients of its examples, by name [1, ...]."""
        numbers = sum(p.numel() for p in self._parameters)
        at_once = max(AT_ONCE, SQUARED_BYTES // (numbers * self._parameters[0].element_size()))
        return self._average(square_gradients(self.module, self.local.loss, x, y, at_once), len(y))

    def _average(self, sums: list[Tensor], count: int) -> dict[str, Tensor]:
        return {name: part.unsqueeze(0) / count for name, part in zip(self._names, sums, strict=True)}


class Recorder:
    """Train clients on several lanes, each client alone.

    Args:
        module: in training mode (`prepare_training`); its norms are its own, not masked.
        most: the largest number of lanes. Fewer are used if memory or clients are few.
        task: what takes the place of the training's own steps; None: nothing does.
        squares: as for `Lane`.
    """

    def __init__(
        self,
        module: nn.Module,
        local: Local,
        batches: Batches,
        device: torch.device,
        precision: str,
        most: int = LANES,
        task: Precondition | None = None,
        *,
        squares: bool = False,
    ) -> None:
        self.batches = batches
        self.task = task
        self.device = device
        self.local = local
        self.most = most
        self.lanes: list[Lane] = []
        self._make_lane = functools.partial(Lane, module, local, device, precision, task, squares=squares)

    def run(
        self,
        clients: Sequence[ClientId],
        store: ExampleStore,
        start: Tensor,
        epochs: int,
        seed: int,
        round: int,
    ) -> Tensor:
        """Train from the parameters [P]; return the parameters of each client [C, P]."""
        found = start.new_empty(len(clients), start.numel())
        shares = self.record(store, clients)
        self._wait(before=True)
        work = [
            self._train(lane, rows, clients, store, start, epochs, seed, round, found)
            for lane, rows in zip(self.lanes, shares, strict=True)
        ]
        for _ in itertools.zip_longest(*work):  # a step of every lane in turn
            pass
        self._wait(before=False)
        return found

    def _wait(self, *, before: bool) -> None:
        """Let the lanes wait for the current stream, or that stream for the lanes."""
        for lane in self.lanes:
            if lane.stream is not None:
                current = torch.cuda.current_stream(self.device)
                first, then = (current, lane.stream) if before else (lane.stream, current)
                then.wait_stream(first)

    def record(self, store: ExampleStore, clients: Sequence[ClientId]) -> list[list[int]]:
        """Record the steps of these clients on as many lanes as are worth it; return the rows of the clients on each lane."""
        sizes = [self.batches.list_sizes(len(store.rows[client])) for client in clients]
        largest = max(itertools.chain.from_iterable(sizes))
        while len(self.lanes) < min(self.most, len(clients)):
            before = _count_reserved_bytes(self.device)
            lane = self._make_lane()
            lane.record(store, [largest])
            self.lanes.append(lane)
            if 2 * (_count_reserved_bytes(self.device) - before) > count_free_bytes(self.device):
                self.most = len(self.lanes)
        shares = self._share_out(clients, store)
        for lane, rows in zip(self.lanes, shares, strict=True):
            lane.record(store, {size for row in rows for size in sizes[row]})
        return shares

    def time_step(self, clients: Sequence[ClientId], store: ExampleStore, start: Tensor) -> float:
        """Return the seconds that a GPU needs for one full step of each of these clients."""
        self.record(store, clients)
        size = max(max(self.batches.list_sizes(len(store.rows[client]))) for client in clients)
        for lane in self.lanes:
            with lane.use():
                lane.begin(start)
        taken = []
        for _ in range(REPEATS + 1):
            torch.cuda.synchronize(self.device)
            began = time.perf_counter()
            for _, lane in zip(clients, itertools.cycle(self.lanes[: len(clients)]), strict=False):
                with lane.use():
                    lane.replay(size)
            torch.cuda.synchronize(self.device)
            taken.append(time.perf_counter() - began)
        return min(taken[1:])

    def _share_out(self, clients: Sequence[ClientId], store: ExampleStore) -> list[list[int]]:
        """Return the rows of the clients on each lane: the longest first, always to the lane with the least work."""
        shares: list[list[int]] = [[] for _ in self.lanes]
        loads = [0] * len(self.lanes)
        for row in sorted(range(len(clients)), key=lambda row: -len(store.rows[clients[row]])):
            lane = loads.index(min(loads))
            shares[lane].append(row)
            loads[lane] += len(store.rows[clients[row]])
        return shares

    def _train(
        self, lane: Lane, rows: Sequence[int], clients: Sequence[ClientId], store: ExampleStore, start: Tensor, epochs: int,
        seed: int, round: int, found: Tensor,
    ) -> Iterator[None]:  # fmt: skip
        """Train the clients in some rows; yield after every step."""
        for row in rows:
            positions = store.rows[clients[row]]
            steps = list(self.batches.draw(len(positions), epochs, seed, clients[row], round))
            sizes = [len(step.positions) for step in steps]
            rates = [list_rates(self.local, s.scale, number, self.task) for number, s in enumerate(steps, 1)]
            with lane.use():
                order = self._send(positions[torch.cat([step.positions for step in steps])]).split(sizes)
                keys = self._send(torch.tensor([step.key for step in steps])) if self.batches.draws else None
                plain = self.local.is_plain and self.task is None
                sent = None if plain else self._send(torch.tensor(rates, dtype=start.dtype))
                lane.begin(start)
            for number, own in enumerate(order):
                with lane.use():
                    lane.take_step(
                        store, own, *(None if part is None else part[number] for part in (keys, sent))
                    )
                yield
            with lane.use():
                found[row] = lane.end()

    def _send(self, values: Tensor) -> Tensor:
        """Return values on the device."""
        if self.device.type != "cuda":
            return values
        return values.pin_memory().to(self.device, non_blocking=True)


def lay_channels_last(module: nn.Module) -> None:
    """Let the convolutions of a module read and write images channels last, as a GPU's matrix units do."""
    channels_last(module)
    for layer in module.modules():
        if type(layer) is nn.GroupNorm:
            layer.__class__ = ChannelsLastGroupNorm


def _autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return a context in which "bf16" computes in bfloat16 where torch's autocast does so."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False)


def _count_reserved_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
