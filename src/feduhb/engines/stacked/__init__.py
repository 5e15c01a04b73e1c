"""The GPU engine: clients of a block in one batched computation, or several clients side by side by recorded steps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from feduhb.core.local import Local, describe_local
from feduhb.core.tasks import Precondition
from feduhb.core.types import RECORDED, BlockSize, ClientId, Updates, Work
from feduhb.data.federation import Federation
from feduhb.engines.batches import check_work
from feduhb.engines.loop import Loop, client_errors, get_precision, make_local
from feduhb.engines.stacked.choice import MOST, choose_way, fit_group, make_recorder
from feduhb.engines.stacked.recorded import Recorder
from feduhb.engines.stacked.runner import NotRecordableError
from feduhb.engines.stacked.setup import Setup
from feduhb.engines.tasks import check_task
from feduhb.errors import ConfigError

PRECISIONS = ("float32", "tf32", "bf16")


class Stacked:
    """Train many clients at once, each with its own batches, order and parameters.

    A model that is a chain of known layers and trains by plain SGD runs layer by layer, all clients of a block in one
    computation. Any other model is mapped over the clients of a block by `torch.func`, or each client's steps are
    recorded as CUDA graphs and replayed, several clients side by side. On a GPU a trial decides which is faster.
    Preconditioned steps are recorded, too. Other tasks, and leavers, of whom there are few, train as in `Loop`.

    Args:
        device: "cuda" or "cpu"; by default "cuda" if there is a GPU.
        precision: of products on a GPU. "float32"; "tf32" rounds their factors to 10 bits; "bf16" keeps convolutions
            and the values between them in 8 bits, sums and weights in float32. A float64 model stays float64.
        block: the largest number of clients that are computed together, on which bits may depend; "recorded" trains
            each client alone by recorded steps; without a GPU the same steps are not recorded. By default, what fits
            into free memory, or "recorded" if the trial says so.
        mapped: use `torch.func` even if all layers are known.
    """

    tasks = Loop.tasks

    def __init__(
        self,
        federation: Federation,
        local: Local | None = None,
        *,
        device: str | None = None,
        precision: str = "float32",
        block: BlockSize | None = None,
        mapped: bool = False,
    ) -> None:
        self.federation = federation
        self.local = local or make_local(federation)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.precision = precision
        _check(self.device, precision, block)
        with client_errors(_name_group(tuple(federation.clients)), 0):
            self._setup = Setup.of(federation, self.local, self.device, precision)
        if precision != "float32" and self._is_plain:
            raise ConfigError(f"precision {precision} needs a GPU and a float32 model; leave it at float32")
        self._way = choose_way(self._setup, block, mapped=mapped)
        self._recorders: dict[Precondition, Recorder | None] = {}

    @property
    def block(self) -> BlockSize:
        """The largest number of clients that are computed together, or "recorded"."""
        return self._way.block

    @property
    def why(self) -> str:
        """Why clients train in this way, in words."""
        return self._way.why

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's name and settings, for the records of a run."""
        return {
            "name": "stacked",
            "device": self.device.type,
            "precision": get_precision(self._setup.module) if self._is_plain else self.precision,
            "block": self.block,
            "why": self.why,
            **describe_local(self.local),
            **self._setup.batches.about,
        }

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Train these clients, one block at a time; return the answers in the order of the clients."""
        check_work(work, self._setup.module, self.local)
        if work.task is not None:
            check_task(type(work.task), self._setup.module, self.local)
        return self._train(work, clients, round)

    def _train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        recorder = self._find_recorder(work)
        is_refused = work.epochs == 0 and self._setup.trial.refusal is not None
        if recorder is None and (work.task is not None or work.leavers or is_refused):
            yield from self._loop.train(work, clients, round)
            return
        size = self._way.blocks.size if recorder is None else fit_group(self._setup)
        for begin in range(0, len(clients), size):
            group = tuple(clients[begin : begin + size])
            advice = _advise(len(group)) if recorder is None else ALONE
            with client_errors(_name_group(group), round), self._setup.computing(), _explain_failures(advice):
                values = self._answers(work, group, round, recorder)
            counts = torch.tensor(self._setup.count_examples(group), dtype=torch.float64)
            yield Updates(group, values, counts)

    def _answers(
        self, work: Work, clients: tuple[ClientId, ...], round: int, recorder: Recorder | None
    ) -> Tensor:
        """Return the updates [C, P] of some clients."""
        store = self._setup.stores.find(clients)
        trial = self._setup.trial
        for client in clients:
            with client_errors(client, round):
                store.check(client, trial.classes, trial.find_ignored(alone=recorder is not None))
        start = work.params.to(self.device)
        if work.epochs == 0:
            values = self._way.blocks.compute_gradients(clients, store, start)
        else:
            trainer = recorder or self._way.blocks
            values = start - trainer.run(clients, store, start, work.epochs, self.federation.seed, round)
        return _move(values, work.params.device)

    @functools.cached_property
    def _loop(self) -> Loop:
        return Loop(self.federation, self.local, device=self.device.type)

    def _find_recorder(self, work: Work) -> Recorder | None:
        """Return what replays the recorded steps of some work; None if it is done in another way."""
        if work.epochs == 0 or work.leavers:
            return None
        if work.task is None:
            return self._way.recorder
        is_worthwhile = self._setup.can_record or self._way.recorder is not None
        if not (is_worthwhile and isinstance(work.task, Precondition)):
            return None
        if work.task not in self._recorders:
            self._recorders[work.task] = self._record_task(work.task)
        return self._recorders[work.task]

    def _record_task(self, task: Precondition) -> Recorder | None:
        """Return what replays preconditioned steps; None if they cannot be recorded."""
        recorder = make_recorder(self._setup, task)
        clients = self._setup.list_largest(1)
        with self._setup.computing(), _explain_failures(ALONE):
            try:
                recorder.record(self._setup.stores.find(clients), clients)
            except NotRecordableError:
                return None
        return recorder

    @property
    def _is_plain(self) -> bool:
        return self.device.type == "cpu" or self._setup.dtype != torch.float32


ALONE = "with recorded steps; give a smaller batch_size, or use engine 'pool'"


def _advise(clients: int) -> str:
    smaller = max(1, clients // 2)
    return f"with {clients} clients at once; give a smaller block: Stacked(..., block={smaller})"


def _check(device: torch.device, precision: str, block: BlockSize | None) -> None:
    if device.type not in MOST:
        raise ConfigError(f"the stacked engine runs on cuda or cpu, not on {device.type}")
    if precision not in PRECISIONS:
        raise ConfigError(f"there is no precision {precision!r}; choose one of {', '.join(PRECISIONS)}")
    is_count = isinstance(block, int) and not isinstance(block, bool) and block >= 1
    if not (is_count or block is None or block == RECORDED):
        raise ConfigError(
            f"the stacked engine has {block!r} clients per block; give 1 or more, or {RECORDED!r}"
        )


def _move(values: Tensor, device: torch.device) -> Tensor:
    """Return values on another device; from a GPU to the CPU they pass through pinned memory."""
    if device.type != "cpu" or values.device.type != "cuda":
        return values.to(device)
    found = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return found.copy_(values)


def _name_group(clients: Sequence[ClientId]) -> str:
    return clients[0] if len(clients) == 1 else f"{clients[0]}, or another one up to {clients[-1]},"


@contextlib.contextmanager
def _explain_failures(advice: str) -> Generator[None]:
    """Raise a ConfigError with advice if steps cannot be recorded, or a GPU's memory runs out."""
    try:
        yield
    except NotRecordableError as error:
        raise ConfigError(f"the model cannot train by recorded steps: {error}; use engine 'loop'") from error
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"the GPU's memory ran out {advice}") from error
