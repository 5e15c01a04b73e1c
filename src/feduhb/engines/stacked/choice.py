"""The choice between the ways in which the stacked engine trains clients, on a GPU by a trial if the model is no chain.

What was chosen is the engine's `block`, which runs record: a trial measures times, so it could choose another way the next
time, and the ways differ in their last bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from feduhb.core.local import LOSSES, move_loss
from feduhb.core.modules import has_dropout, list_norms, list_trained
from feduhb.core.tasks import Precondition
from feduhb.core.types import RECORDED, BlockSize
from feduhb.engines.squares import TRIED, is_exact
from feduhb.engines.stacked.blocks import Blocks
from feduhb.engines.stacked.data import count_free_bytes, sample_examples
from feduhb.engines.stacked.layers import Chain, NoStackedFormError, trace
from feduhb.engines.stacked.networks import ignore_slow_maps
from feduhb.engines.stacked.optimizers import count_moments
from feduhb.engines.stacked.recorded import LANES, Recorder
from feduhb.engines.stacked.runner import NotRecordableError
from feduhb.engines.stacked.setup import Setup
from feduhb.engines.stacked.trial import OTHERS
from feduhb.engines.triton import HAS_TRITON
from feduhb.errors import ConfigError

MAPPED = "mapped by torch.func: "
MOST = {"cpu": 16, "cuda": 128}  # clients in a block; more would not train any faster


@dataclass(frozen=True, slots=True)
class Way:
    """How clients train."""

    why: str  # in words
    blocks: Blocks
    recorder: Recorder | None = None  # trains in place of the blocks, which then compute gradients alone

    @property
    def block(self) -> BlockSize:
        """What bits depend on: the largest number of clients in a block, or `RECORDED`."""
        return self.blocks.size if self.recorder is None else RECORDED


def choose_way(setup: Setup, block: BlockSize | None, *, mapped: bool) -> Way:
    """Return the way that a block stands for; None chooses one.

    Args:
        mapped: use `torch.func` even if all layers are known.
    """
    if block == RECORDED:
        return _record(setup, make_recorder(setup), "recorded client by client, as given")
    chain, why = _trace(setup, mapped)
    refusal = setup.trial.refusal
    if block is None and chain is None and not mapped and setup.can_record:
        return _try_ways(setup, why)
    if refusal is not None:
        raise ConfigError(refusal)
    blocks = Blocks(setup, chain, block or _fit_block(setup))
    if block is None and setup.can_record and setup.local.loss not in LOSSES.values():
        _try_loss(setup, blocks)
    return Way(why, blocks)


def make_recorder(setup: Setup, task: Precondition | None = None) -> Recorder:
    """Return what records and replays the steps of clients, or those of a task."""
    # Gradients of single examples cannot pass through kernels of our own.
    precision = setup.precision if task is None else "float32"
    squares = task is not None and _can_square(setup)
    return Recorder(
        setup.module, setup.local, setup.batches, setup.device, precision, task=task, squares=squares
    )


def _can_square(setup: Setup) -> bool:
    """Return whether one backward pass of a batch gives the squared gradients of its examples, by a trial on the CPU."""
    loss = move_loss(setup.local.loss, torch.device("cpu"))
    with ignore_slow_maps():
        return is_exact(setup.module, loss, *sample_examples(setup.clients, max(TRIED)))


def fit_group(setup: Setup) -> int:
    """Return how many answers of clients that train alone fit into a quarter of the free memory."""
    fitting = count_free_bytes(setup.device) // 4 // (2 * setup.dtype.itemsize * setup.numbers)
    return max(1, min(fitting, MOST[setup.device.type]))


def _fit_block(setup: Setup) -> int:
    """Return how many clients fit into half of the free memory, with all that training keeps."""
    local, numbers = setup.local, setup.numbers
    kept = 4 * (numbers + local.batch_size * setup.trial.outputs) + count_moments(local) * numbers
    fitting = count_free_bytes(setup.device) // 2 // (setup.dtype.itemsize * kept)
    return max(1, min(fitting, MOST[setup.device.type], len(setup.clients)))


def map_clients(setup: Setup) -> Blocks:
    """Return blocks of clients over which the model is mapped, as many clients as fit into free memory."""
    return Blocks(setup, None, _fit_block(setup))


def _record(setup: Setup, recorder: Recorder, why: str) -> Way:
    return Way(why, Blocks(setup, None, 1), recorder)


def _try_ways(setup: Setup, why: str) -> Way:
    """Return the faster way of two: recorded, or mapped if clients can be stacked; raise ConfigError if neither works."""
    refusal, start = setup.trial.refusal, setup.start
    recorded = _time_recorded(setup, start)
    mapped = None if refusal is not None else _time_mapped(setup, start)
    if isinstance(recorded, str):
        if mapped is None:
            raise ConfigError(f"{refusal}; {recorded}" if refusal is not None else f"{recorded}; {OTHERS}")
        return Way(f"{why}; {recorded}", mapped[0])
    recorder, took = recorded
    reason = f"recorded client by client: {why.removeprefix(MAPPED)}; a step took {_format_ms(took)}"
    if mapped is None:
        return _record(setup, recorder, reason)
    blocks, each = mapped
    if each < took:
        tried = f"a step of a client took {_format_ms(each)}, recorded alone {_format_ms(took)}"
        return Way(f"{why}; {tried}", blocks)
    return _record(setup, recorder, f"{reason}, mapped over {blocks.size} clients {_format_ms(each)} each")


def _time_recorded(setup: Setup, start: Tensor) -> tuple[Recorder, float] | str:
    """Return a recorder and the seconds of a client's step; the reason in words if there can be none."""
    clients, recorder = setup.list_largest(2 * LANES), make_recorder(setup)
    try:
        with setup.computing():
            took = recorder.time_step(clients, setup.stores.find(clients), start)
    except (NotRecordableError, torch.OutOfMemoryError) as error:
        return str(error)
    return recorder, took / len(clients)


def _time_mapped(setup: Setup, start: Tensor) -> tuple[Blocks, float] | None:
    """Return blocks that are mapped and the seconds of a client's step; None if it fails."""
    blocks = map_clients(setup)
    try:
        return blocks, _time_blocks(setup, blocks, start)
    except (IndexError, NotRecordableError, torch.OutOfMemoryError):  # training names the bad label's client
        return None


def _try_loss(setup: Setup, blocks: Blocks) -> None:
    """Raise ConfigError if steps with a loss of the user's own cannot be recorded, because it copies from the host, say."""
    try:
        _time_blocks(setup, blocks, setup.start)
    except NotRecordableError as error:
        raise ConfigError(f"{error}; {OTHERS}") from error
    except (IndexError, torch.OutOfMemoryError):  # training names the client, or the block
        return


def _time_blocks(setup: Setup, blocks: Blocks, start: Tensor) -> float:
    """Return the seconds of a client's step; raise IndexError for a label that is not a class."""
    clients = setup.list_largest(blocks.size)
    store = setup.stores.find(clients)
    for client in clients:
        store.check(client, setup.trial.classes, setup.trial.find_ignored(alone=False))
    with setup.computing():
        return blocks.time_step(clients, store, start) / blocks.size


def _trace(setup: Setup, mapped: bool) -> tuple[Chain | None, str]:
    """Return the model's chain of layers, or None, and the reason in words."""
    if mapped:
        return None, "mapped by torch.func, as asked"
    try:
        _check_plain(setup)
        chain = trace(setup.masked)
    except NoStackedFormError as unfit:
        return None, f"{MAPPED}{unfit}"
    if setup.trial.refusal is not None:
        return None, f"{MAPPED}{setup.trial.refusal}"
    if setup.device.type == "cpu":
        return chain, "layer by layer: every layer has a stacked form"
    kernels = "on Triton kernels" if HAS_TRITON else "in plain torch, for Triton is missing"
    return chain, f"layer by layer, {kernels}: every layer has a stacked form"


def _check_plain(setup: Setup) -> None:
    """Raise NoStackedFormError if training is more than plain SGD on one tensor through layers without a state."""
    module, local = setup.module, setup.local
    reasons = {
        "the inputs are several tensors": not isinstance(next(iter(setup.clients.values())).x, Tensor),
        "a part of the model is frozen": len(list_trained(module)) < len(list(module.parameters())),
        "its norms gather statistics": bool(list_norms(module)),
        "dropout draws random numbers": has_dropout(module),
        "batches are augmented": local.augment is not None,
        "a step is more than plain SGD": not local.is_plain,
    }
    for reason, holds in reasons.items():
        if holds:
            raise NoStackedFormError(reason)


def _format_ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
