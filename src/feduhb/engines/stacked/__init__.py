"""The GPU engine: all clients of a block train at once, in one batched computation over stacked parameters."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from feduhb.core.flat import list_parts
from feduhb.core.local import Local, describe_local, move_loss
from feduhb.core.loss import WeightedEntropy
from feduhb.core.modules import has_dropout, list_norms, list_trained, prepare_training
from feduhb.core.types import ClientId, Updates, Work
from feduhb.data.federation import Federation
from feduhb.engines.batches import Batches, check_work, split_chunks
from feduhb.engines.loop import client_errors, get_precision, make_local
from feduhb.engines.stacked.data import ExampleStore, are_tensors_shared
from feduhb.engines.stacked.fused import make_fused_layers
from feduhb.engines.stacked.layers import Chain, NoStackedFormError, make_layers, trace
from feduhb.engines.stacked.networks import LayeredNetwork, MappedNetwork, Network, ignore_slow_maps
from feduhb.engines.stacked.norms import mask_norms
from feduhb.engines.stacked.optimizers import count_moments
from feduhb.engines.stacked.runner import Runner, Schedule
from feduhb.engines.stacked.trial import run_trial
from feduhb.engines.triton import HAS_TRITON
from feduhb.errors import ConfigError

PRECISIONS = ("float32", "tf32", "bf16")
MOST = {"cpu": 16, "cuda": 128}  # clients in a block; more would not train any faster


class Stacked:
    """Train the clients of a block together, each with its own batches, order and parameters.

    A model that is a chain of known layers and trains by plain SGD runs layer by layer. Any other model is mapped over
    clients by `torch.func`.

    Args:
        device: "cuda" or "cpu"; by default "cuda" if there is a GPU.
        precision: of products on a GPU. "float32"; "tf32" rounds their factors to 10 bits; "bf16" keeps convolutions
            and the values between them in 8 bits, sums and weights in float32. A float64 model stays float64.
        block: the number of clients that train at once; by default, what fits into free memory. Bits may depend on it.
        mapped: use `torch.func` even if all layers are known.
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
        self.local = local or make_local(federation)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.precision = precision
        self._model = prepare_training(federation.fresh_model())
        self._check(block)
        self._batches = Batches.of(self._model, self.local, federation)
        with client_errors(_name_group(tuple(federation.clients)), 0):
            self._trial = run_trial(self._model, self.local, federation.clients)
        mask_norms(self._model).to(self.device)
        self._moved = replace(self.local, loss=move_loss(self.local.loss, self.device))
        self.block = block or self._choose_block()
        self._chain, self.why = self._trace(mapped)
        self._runner: Runner | None = None
        self._kept: ExampleStore | None = None

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's name and settings, for the records of a run."""
        return {
            "name": "stacked",
            "device": self.device.type,
            "precision": get_precision(self._model) if self._is_plain else self.precision,
            "block": self.block,
            "why": self.why,
            **describe_local(self.local),
            **self._batches.about,
        }

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Train these clients, one block at a time; return the answers in the order of the clients."""
        check_work(work, self._model, self.local)
        return self._train(work, clients, round)

    def _train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        for begin in range(0, len(clients), self.block):
            group = tuple(clients[begin : begin + self.block])
            with (
                client_errors(_name_group(group), round),
                _use_precision(self.precision, self.device),
                _memory_errors(len(group)),
                ignore_slow_maps(),
            ):
                values = self._answers(work, group, round)
            counts = [float(len(self.federation.clients[client])) for client in group]
            yield Updates(group, values, torch.tensor(counts, dtype=torch.float64))

    def _answers(self, work: Work, clients: tuple[ClientId, ...], round: int) -> Tensor:
        """Return the updates [C, P] of a block."""
        counts = [len(self.federation.clients[client]) for client in clients]
        store = self._get_store(clients)
        for client in clients:
            with client_errors(client, round):
                store.check(client, self._trial.classes)
        start = work.params.to(self.device)
        if work.epochs == 0:
            width = max(1, 4 * len(next(split_chunks(max(counts)))) // len(clients))
            schedule = Schedule.of(clients, counts, width, 1)
            values = self._gradients(schedule, store, start)
        else:
            schedule = Schedule.of(
                clients, counts, self.local.batch_size, work.epochs, joins=bool(self._batches.joined)
            )
            values = start - self._get_runner().run(schedule, store, start, self.federation.seed, round)
        place = {client: row for row, client in enumerate(schedule.clients)}
        rows = torch.tensor([place[client] for client in clients], device=self.device)
        return _move(values.index_select(0, rows), work.params.device)

    def _gradients(self, schedule: Schedule, store: ExampleStore, start: Tensor) -> Tensor:
        """Return the gradients [C, P] of each client's mean loss over all its examples, plus l2/2 ‖w‖²."""
        mapped = MappedNetwork(self._model, self._moved, 0, self.device, self._trial.idle)
        total = (self.local.decay * start).repeat(len(schedule.clients), 1)
        weights = [self._weigh(client) for client in schedule.clients]
        for step, begin in enumerate(range(0, max(schedule.counts), schedule.size)):
            still = [count for count in schedule.counts if count > begin]
            rows = torch.stack(
                [_slice(store.rows[client], step, schedule.size) for client in schedule.clients[: len(still)]]
            )
            here = torch.arange(begin, begin + schedule.size) < torch.tensor(still).unsqueeze(1)
            factor = here / torch.tensor(weights[: len(still)], dtype=self._dtype).unsqueeze(1)
            x, y = store.gather(rows.to(self.device))
            factor = factor.to(self.device)
            total[: len(still)] += mapped.gradients(start, x, y, factor, factor)[0]
        return total

    def _weigh(self, client: ClientId) -> float:
        """Return the sum of the weights of a client's examples in its loss; 1 if all of them are 0."""
        targets = self.federation.clients[client].targets
        entropy = WeightedEntropy.of(self.local.loss, targets)
        return float(len(targets) if entropy is None else entropy.weigh(targets).double().sum()) or 1.0

    def _get_runner(self) -> Runner:
        if self._runner is None:
            clients = min(self.block, len(self.federation.clients))
            network, draws = self._network(clients), self._batches.draws
            self._runner = Runner(network, clients, self._dtype, self.device, draws=draws)
        return self._runner

    def _network(self, clients: int) -> Network:
        if self._chain is None:
            return MappedNetwork(self._model, self._moved, clients, self.device, self._trial.idle)
        if self.device.type == "cuda" and HAS_TRITON:
            x, _ = next(iter(self.federation.clients.values())).batch(torch.arange(1))
            example = x.to(self.device)
            layers = make_fused_layers(self._chain, clients, self.device, self.precision, example)
        else:
            layers = make_layers(self._chain, clients, self.device)
        return LayeredNetwork(self._model, layers, self._moved)

    def _trace(self, mapped: bool) -> tuple[Chain | None, str]:
        """Return the model's chain of layers, or None, and the reason in words."""
        if mapped:
            return None, "mapped by torch.func, as asked"
        try:
            self._check_plain()
            chain = trace(self._model)
        except NoStackedFormError as unfit:
            return None, f"mapped by torch.func: {unfit}"
        if self.device.type == "cpu":
            return chain, "layer by layer: every layer has a stacked form"
        kernels = "on Triton kernels" if HAS_TRITON else "in plain torch, for Triton is missing"
        return chain, f"layer by layer, {kernels}: every layer has a stacked form"

    def _check_plain(self) -> None:
        """Raise NoStackedFormError if training is more than plain SGD on one tensor through layers without a state."""
        several = not isinstance(next(iter(self.federation.clients.values())).x, Tensor)
        reasons = {
            "the inputs are several tensors": several,
            "a part of the model is frozen": len(list_trained(self._model))
            < len(list(self._model.parameters())),
            "its norms gather statistics": bool(list_norms(self._model)),
            "dropout draws random numbers": has_dropout(self._model),
            "batches are augmented": self.local.augment is not None,
            "a step is more than plain SGD": not self.local.is_plain,
        }
        for reason, holds in reasons.items():
            if holds:
                raise NoStackedFormError(reason)

    def _get_store(self, clients: Sequence[ClientId]) -> ExampleStore:
        """Return a store of all clients' examples if it can be kept, else one of these clients' examples."""
        everyone = self.federation.clients
        block = {client: everyone[client] for client in clients}
        if self._kept is not None and self._kept.holds(block):
            return self._kept
        self._kept = ExampleStore(everyone, self.device) if self._keeps_all else None
        return self._kept or ExampleStore(block, self.device)

    @functools.cached_property
    def _keeps_all(self) -> bool:
        """Whether all examples stay on the device: all clients share their tensors, or a GPU has room for a copy."""
        everyone = self.federation.clients
        if are_tensors_shared(everyone):
            return True
        return self.device.type == "cuda" and 4 * ExampleStore.bytes(everyone) < count_free_bytes(self.device)

    def _choose_block(self) -> int:
        """Return how many clients fit into half of the free memory, with all that training keeps."""
        numbers = sum(part.numel() for _, part in list_parts(self._model))
        kept = (
            4 * (numbers + self.local.batch_size * self._trial.outputs) + count_moments(self.local) * numbers
        )
        each = self._dtype.itemsize * kept
        fitting = count_free_bytes(self.device) // 2 // each
        return max(1, min(fitting, MOST[self.device.type], len(self.federation.clients)))

    @property
    def _dtype(self) -> torch.dtype:
        return list_trained(self._model)[0][1].dtype

    @property
    def _is_plain(self) -> bool:
        return self.device.type == "cpu" or self._dtype != torch.float32

    def _check(self, block: int | None) -> None:
        if self.device.type not in MOST:
            raise ConfigError(f"the stacked engine runs on cuda or cpu, not on {self.device.type}")
        if self.precision not in PRECISIONS:
            raise ConfigError(
                f"there is no precision {self.precision!r}; choose one of {', '.join(PRECISIONS)}"
            )
        if self.precision != "float32" and self._is_plain:
            raise ConfigError(
                f"precision {self.precision} needs a GPU and a float32 model; leave it at float32"
            )
        if block is not None and block < 1:
            raise ConfigError(f"the stacked engine has {block} clients per block; give 1 or more")


def count_free_bytes(device: torch.device) -> int:
    """Return the number of free bytes on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not all systems have these names
        return 2 << 30


def _slice(rows: Tensor, step: int, size: int) -> Tensor:
    """Return the positions of one step in order, padded with the first position."""
    found = rows[step * size : (step + 1) * size]
    return torch.cat([found, rows[:1].expand(size - len(found))])


def _move(values: Tensor, device: torch.device) -> Tensor:
    """Return values on another device; from a GPU to the CPU they pass through pinned memory."""
    if device.type != "cpu" or values.device.type != "cuda":
        return values.to(device)
    found = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return found.copy_(values)


def _name_group(clients: Sequence[ClientId]) -> str:
    return clients[0] if len(clients) == 1 else f"{clients[0]}, or another one up to {clients[-1]},"


@contextlib.contextmanager
def _memory_errors(clients: int) -> Generator[None]:
    """Raise a ConfigError that suggests a smaller block if a GPU's memory runs out."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the GPU's memory ran out with {clients} clients at once; give a smaller block: Stacked(..., block={max(1, clients // 2)})"
        ) from error


@contextlib.contextmanager
def _use_precision(precision: str, device: torch.device) -> Generator[None]:
    """Set whether torch's own products on a GPU use TF32, and let it always choose the same algorithms."""
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
