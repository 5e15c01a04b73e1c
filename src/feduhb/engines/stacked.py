"""The GPU engine: all clients of a block train at once, as one batched computation over stacked parameters."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feduhb.core.types import ClientId, Local, Updates, Work
from feduhb.data.federation import Federation
from feduhb.engines.kernels import language
from feduhb.engines.local import chunks, described, named
from feduhb.engines.stacking.fusing import fused_layers
from feduhb.engines.stacking.layers import layers_of
from feduhb.engines.stacking.networks import Layered, Mapped, Network
from feduhb.engines.stacking.runner import Runner
from feduhb.engines.stacking.schedule import Schedule
from feduhb.engines.stacking.shelf import Shelf, shared
from feduhb.engines.stacking.tracing import Chain, UnfitError, traced
from feduhb.engines.stacking.trial import tried
from feduhb.errors import ConfigError

PRECISIONS = ("float32", "tf32", "bf16")
MOST = {"cpu": 16, "cuda": 128}  # clients a block where memory allows more: beyond, it only waits longer


class Stacked:
    """Trains the clients of a block together, each with its own batches, order and parameters.

    A model that is a chain of known layers is taken layer by layer; any other that `torch.func` can map is mapped.

    Args:
        device: "cuda" where there is one, if not given.
        precision: of products on a GPU. "float32"; "tf32" rounds their factors to 10 bits; "bf16" keeps convolutions
            and what flows between them in 8 bits, sums and weights in float32. A float64 model stays float64.
        block: clients trained at once; chosen from free memory if not given. Bits may depend on it.
        mapped: take the general path even where the layers are known.
    """

    def __init__(
        self,
        federation: Federation,
        local: Local | None = None,
        *,
        device: str | None = None,
        precision: str = "float32",
        block: int | None = None,
        mapped: bool = False,
    ) -> None:
        self.federation = federation
        self.local = local or Local(loss=federation.loss)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.precision = precision
        self._model = federation.fresh_model()
        self._check(block)
        with named(_called(tuple(federation.clients)), 0):
            self._trial = tried(self._model, self.local, federation.clients)
        self._model.to(self.device)
        self.block = block or self._room()
        self._chain, self.why = self._traced(mapped)
        self._runner: Runner | None = None
        self._held: Shelf | None = None

    @property
    def about(self) -> Mapping[str, Any]:
        """What made these numbers."""
        return {
            "name": "stacked",
            "device": self.device.type,
            "precision": str(self._dtype).removeprefix("torch.") if self._plain else self.precision,
            "block": self.block,
            "why": self.why,
            **described(self.local),
        }

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let these clients do this work, a block at a time; answers come in the order of the clients."""
        for begin in range(0, len(clients), self.block):
            group = tuple(clients[begin : begin + self.block])
            with named(_called(group), round), _precise(self.precision, self.device), _roomy(len(group)):
                values = self._answers(work, group, round)
            counts = [float(len(self.federation.clients[client])) for client in group]
            yield Updates(group, values, torch.tensor(counts, dtype=torch.float64))

    def _answers(self, work: Work, clients: tuple[ClientId, ...], round: int) -> Tensor:
        """The updates [C, P] of a block."""
        counts = [len(self.federation.clients[client]) for client in clients]
        shelf = self._shelf(clients)
        for client in clients:
            with named(client, round):
                shelf.check(client, self._trial.classes)
        start = work.params.to(self.device)
        if work.epochs == 0:
            width = max(1, 4 * len(next(chunks(max(counts)))) // len(clients))
            schedule = Schedule.of(clients, counts, width, 1)
            values = self._gradients(schedule, shelf, start)
        else:
            schedule = Schedule.of(clients, counts, self.local.batch_size, work.epochs)
            runner = self._running()
            values = start - runner.run(schedule, shelf, start, self.federation.seed, round)
        place = {client: row for row, client in enumerate(schedule.clients)}
        asked = torch.tensor([place[client] for client in clients], device=self.device)
        return _moved(values.index_select(0, asked), work.params.device)

    def _gradients(self, schedule: Schedule, shelf: Shelf, start: Tensor) -> Tensor:
        """The gradients [C, P] of each client's mean loss over all its examples, with that of l2/2 ‖w‖²."""
        mapped = Mapped(self._model, self.local, 0, self.device, self._trial.idle)
        total = (self.local.l2 * start).repeat(len(schedule.clients), 1)
        for step, begin in enumerate(range(0, max(schedule.counts), schedule.size)):
            still = [count for count in schedule.counts if count > begin]
            rows = torch.stack(
                [_slice(shelf.rows[client], step, schedule.size) for client in schedule.clients[: len(still)]]
            )
            held = torch.tensor(still, dtype=self._dtype).unsqueeze(1)
            share = (torch.arange(begin, begin + schedule.size) < held) / held
            flat = rows.view(-1).to(self.device)
            x = shelf.x.index_select(0, flat).unflatten(0, rows.shape)
            y = shelf.y.index_select(0, flat).unflatten(0, rows.shape)
            total[: len(still)] += mapped.gradients(start, x, y, share.to(self.device))
        return total

    def _running(self) -> Runner:
        if self._runner is None:
            clients = min(self.block, len(self.federation.clients))
            self._runner = Runner(self._network(clients), clients, self._dtype, self.device)
        return self._runner

    def _network(self, clients: int) -> Network:
        if self._chain is None:
            return Mapped(self._model, self.local, clients, self.device, self._trial.idle)
        fused = self.device.type == "cuda" and language.triton is not None
        layers = (
            fused_layers(self._chain, clients, self.device, self.precision, self._example())
            if fused
            else layers_of(self._chain, clients, self.device)
        )
        return Layered(self._model, layers, self.local)

    def _traced(self, mapped: bool) -> tuple[Chain | None, str]:
        """The chain of layers where there is one, and why it is taken or not."""
        if mapped:
            return None, "mapped by torch.func, as asked"
        try:
            chain = traced(self._model)
        except UnfitError as unfit:
            return None, f"mapped by torch.func: {unfit}"
        if self.device.type == "cpu":
            return chain, "layer by layer: every layer has a stacked form"
        kernels = "on Triton kernels" if language.triton else "in plain torch, for Triton is missing"
        return chain, f"layer by layer, {kernels}: every layer has a stacked form"

    def _shelf(self, clients: Sequence[ClientId]) -> Shelf:
        """The examples of all clients where they are shared or fit, else those of these clients."""
        everyone = self.federation.clients
        asked = {client: everyone[client] for client in clients}
        if self._held is not None and self._held.holds(asked):
            return self._held
        self._held = Shelf(everyone, self.device) if self._keeps else None
        return self._held or Shelf(asked, self.device)

    @functools.cached_property
    def _keeps(self) -> bool:
        """Whether all examples stay on the device: they cost nothing there, or a GPU has room for a copy."""
        everyone = self.federation.clients
        if shared(everyone):
            return True
        return self.device.type == "cuda" and 4 * Shelf.bytes(everyone) < free_memory(self.device)

    def _example(self) -> Tensor:
        """A batch of inputs."""
        x, _ = next(iter(self.federation.clients.values())).batch(torch.arange(1))
        return x.to(self.device)

    def _room(self) -> int:
        """How many clients fit into half of the free memory: weights, steps and answers, and what going backward keeps."""
        numbers = sum(p.numel() for p in self._model.parameters())
        each = 4 * self._dtype.itemsize * (numbers + self.local.batch_size * self._trial.outputs)
        fitting = free_memory(self.device) // 2 // each
        return max(1, min(fitting, MOST[self.device.type], len(self.federation.clients)))

    @property
    def _dtype(self) -> torch.dtype:
        return next(self._model.parameters()).dtype

    @property
    def _plain(self) -> bool:
        return self.device.type == "cpu" or self._dtype != torch.float32

    def _check(self, block: int | None) -> None:
        if self.device.type not in MOST:
            raise ConfigError(f"the stacked engine runs on cuda or cpu, not on {self.device.type}")
        if self.precision not in PRECISIONS:
            raise ConfigError(
                f"there is no precision {self.precision!r}; choose one of {', '.join(PRECISIONS)}"
            )
        if self.precision != "float32" and self._plain:
            raise ConfigError(
                f"precision {self.precision} needs a GPU and a float32 model; leave it at float32"
            )
        if block is not None and block < 1:
            raise ConfigError(f"the stacked engine needs 1 client a block or more, not {block}")


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not on every system
        return 2 << 30


def _slice(rows: Tensor, step: int, size: int) -> Tensor:
    """The positions of one step in order, filled up with the first."""
    found = rows[step * size : (step + 1) * size]
    return torch.cat([found, rows[:1].expand(size - len(found))])


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """Bring answers to where the parameters came from; from a GPU through pinned memory."""
    if device.type != "cpu" or values.device.type != "cuda":
        return values.to(device)
    found = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return found.copy_(values)


def _called(clients: Sequence[ClientId]) -> str:
    return clients[0] if len(clients) == 1 else f"{clients[0]} or one up to {clients[-1]}"


@contextlib.contextmanager
def _roomy(clients: int) -> Generator[None]:
    """Say what to do when a GPU's memory runs out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory ran out with {clients} clients at once; give a smaller block: Stacked(..., block={max(1, clients // 2)})"
        ) from error


@contextlib.contextmanager
def _precise(precision: str, device: torch.device) -> Generator[None]:
    """Let torch's own products on a GPU use TF32 or not, and always the same algorithms."""
    if device.type != "cuda":
        yield
        return
    products = torch.backends.cuda.matmul
    before = products.allow_tf32
    products.allow_tf32 = precision != "float32"
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=precision != "float32"
        ):
            yield
    finally:
        products.allow_tf32 = before
