"""The format of messages between server and client: models as named arrays, and the keys of records.

A train message holds "arrays" (the model to start from) and "config". The answer holds "metrics" with "num-examples" and
either "arrays" (the trained model, as Flower's own strategies expect) or "update" (the model to start from minus the
trained one, or the gradient). Our client answers with the update if the config asks for it. A client that cannot do the
work answers with "refusal", which holds the reason. If the config asks for it, the answer also holds "held-out": the loss
and a score of the model that was sent, on the client's held-out examples, and their number. An answer with any other
record, or with large metrics, is malformed. The metric "joined-last-batch" is 1 if the client's last batch of one example
joined the batch before it.

If the config names a "task", its settings are in keys such as "task-lr", and "answer" is not "update" but names the task
too. A client of an earlier version, which would train plainly, then answers with "arrays", and the server refuses them.
"target-rows" are rows that a client asked to forget, on which it shall train with new labels before it drops them.

Trained parameters travel, and the statistics of normalisation layers after them, under their names in the module.
Counters of batches, frozen parameters and constant buffers never do: every side has its own copy, and the server sends a
digest of those that it has.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    MetricRecord,
    MetricRecordValues,
    RecordDict,
)
from torch import Tensor, nn

from feduhb.core.flat import ModelSource, check_module, draw_model, flatten, list_parts
from feduhb.core.local import ADDED, Augment, list_added
from feduhb.core.modules import (
    STATISTICS,
    digest_carried,
    is_counter,
    is_statistic,
    list_carried,
    list_trained,
)
from feduhb.core.tasks import TASKS, Task
from feduhb.core.types import ClientId, Local, Loss, Work
from feduhb.errors import ModelError

ARRAYS, UPDATE, CONFIG, METRICS, REFUSAL = "arrays", "update", "config", "metrics", "refusal"
EXAMPLES, ANSWER, DELETED = "num-examples", "answer", "deleted-files"
JOINED = "joined-last-batch"
TRAIN, EVALUATE, WHO, LEAVE = "train", "evaluate", "query.feduhb_who", "query.feduhb_leave"
ROWS, CLASSES, TARGETS = "forget-rows", "forget-classes", "target-rows"
TASK = "task"
CARRIED = "carried-sha256"
# In the config the name of a score, empty for the loss alone, or AUTO: the accuracy if there is one. In the answer a record; in
# the answer to a query, the number of held-out examples.
HELD_OUT, AUTO = "held-out", "auto"
ADDED_KEYS = tuple(name.replace("_", "-") for name in ADDED)
OURS = (
    *("server-round", "client", "round", "seed", "epochs", "batch-size", "lr", "l2", *ADDED_KEYS),
    *(ANSWER, ROWS, CLASSES, TARGETS, CARRIED, HELD_OUT, TASK),
    *(f"{TASK}-{each.name}" for kind in TASKS.values() for each in fields(kind)),
)
DRAWN_FROM, FIXED = "drawn_from", "carried"
LEAVE_OUT = "leave counters of batches (num_batches_tracked) out: they have no effect"
HEADER = 4096  # bytes that the file header of an array may take
WIDTHS = (2, 4, 8)  # bytes of a float; both byte orders are read
# Most metrics of an answer (an example count and 100 scores), letters in all their names.
NUMBERS, LETTERS = 101, 10_000


class MalformedError(ValueError):
    """A message or an answer that cannot be read."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The names and shapes of the arrays that a flat model [P] is cut into, in order: parameters, then statistics."""

    shapes: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """Return the layout of the arrays that a run starts from; raise ModelError unless all are floats of one type."""
        if not arrays:
            raise ModelError(
                "the initial arrays are empty; leave them out, and give the strategy a model to draw: FedUHB(..., model=Net)"
            )
        if counters := [name for name in arrays if is_counter(name)]:
            raise ModelError(f"array {counters[0]} is not a weight; {LEAVE_OUT}")
        kinds = {array.dtype for array in arrays.values()}
        kind = np.dtype(next(iter(kinds)))
        if len(kinds) > 1 or not _is_float(kind):
            raise ModelError(
                f"the arrays have the types {sorted(kinds)}; convert the model to one float type"
            )
        dtype = torch.from_numpy(np.empty(0, kind.newbyteorder("="))).dtype
        shapes = {name: tuple(array.shape) for name, array in arrays.items()}
        return cls({name: shapes[name] for name in _sort_parts(shapes)}, dtype)

    @classmethod
    def of_module(cls, module: nn.Module) -> Layout:
        """Return the layout of what training changes in a module."""
        parts = list_parts(module)
        if named := [name for name, _ in list_trained(module) if is_statistic(name)]:
            raise ModelError(
                f"parameter {named[0]} has the name of a statistic, and arrays go by their names; rename it"
            )
        return cls({name: tuple(part.shape) for name, part in parts}, parts[0][1].dtype)

    @property
    def statistics(self) -> int:
        """How many numbers at the end of the flat vector are statistics."""
        return sum(size for name, size in self.sizes.items() if is_statistic(name))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of values in each array."""
        return {name: math.prod(shape) for name, shape in self.shapes.items()}

    def split_statistics(self, values: Tensor) -> dict[str, Tensor]:
        """Return the statistics in a flat vector [P] by their names."""
        parts = zip(self.shapes, values.split([*self.sizes.values()]), strict=True)
        return {name: part for name, part in parts if is_statistic(name)}

    def flatten(self, arrays: ArrayRecord) -> Tensor:
        """Return the arrays of a message as one vector [P]; raise MalformedError unless they have these names and shapes."""
        if missing := sorted({*self.shapes} - {*arrays}):
            raise MalformedError(f"no array {missing[0]}")
        if unknown := sorted({*arrays} - {*self.shapes}):
            hint = f"; {LEAVE_OUT}" if is_counter(unknown[0]) else ""
            raise MalformedError(f"an unknown array {to_line(repr(unknown[0][:80]), 80)}{hint}")
        return torch.cat([self._read(name, arrays[name]) for name in self.shapes])

    def to_arrays(self, params: Tensor) -> ArrayRecord:
        """Return a flat vector [P] as named arrays."""
        parts = params.detach().cpu().split([*self.sizes.values()])
        named = zip(self.shapes.items(), parts, strict=True)
        return ArrayRecord(
            OrderedDict((name, Array(part.reshape(shape).numpy())) for (name, shape), part in named)
        )

    def _read(self, name: str, array: Array) -> Tensor:
        wanted = self.shapes[name]
        if tuple(array.shape) != wanted:
            shape = to_line(list(array.shape[: len(wanted) + 8]), 80)
            raise MalformedError(f"array {name} of shape {shape} instead of {list(wanted)}")
        if len(array.data) > math.prod(wanted) * 8 + HEADER:  # 8 bytes: the widest float
            raise MalformedError(f"array {name} of {len(array.data)} bytes, too many for its shape")
        try:
            found = array.numpy()
        except Exception as error:
            raise MalformedError(f"array {name} that cannot be read ({type(error).__name__})") from None
        if not isinstance(found, np.ndarray):  # numpy opens a zip of arrays too
            raise MalformedError(f"array {name} that cannot be read ({type(found).__name__})")
        if not _is_float(found.dtype):
            raise MalformedError(
                f"array {name} of {to_line(found.dtype, 80)} instead of floats of 2, 4 or 8 bytes"
            )
        if found.shape != wanted:
            raise MalformedError(
                f"array {name} of {found.dtype} {to_line(list(found.shape), 80)} under a false label"
            )
        native = np.ascontiguousarray(found, found.dtype.newbyteorder("="))
        return torch.from_numpy(native).reshape(-1).to(self.dtype)


def _sort_parts(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return names in the order of `feduhb.core.flat.list_parts`: parameters, then each layer's mean and variance.

    Raise ModelError if a mean has no variance of its shape, or a variance no mean.
    """
    layers = dict.fromkeys(name.rpartition(".")[0] for name in shapes if is_statistic(name))
    pairs = [tuple(f"{layer}.{key}".removeprefix(".") for key in STATISTICS) for layer in layers]
    for mean, variance in pairs:
        if (found := shapes.get(mean)) != (other := shapes.get(variance)):
            sizes = [list(shape) if shape is not None else "missing" for shape in (found, other)]
            raise ModelError(
                f"the statistics {mean} and {variance} do not fit: {sizes[0]} and {sizes[1]}; give both, of the layer's shape"
            )
    return [name for name in shapes if not is_statistic(name)] + [n for pair in pairs for n in pair]


def _is_float(kind: np.dtype[Any]) -> bool:
    return kind.kind == "f" and kind.itemsize in WIDTHS


def to_line(text: object, most: int = 500) -> str:
    """Return foreign text as one line of at most ``most`` printable characters, safe for a log or a file."""
    start = str(text)[: 4 * most]
    line = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def fresh_arrays(model: ModelSource, seed: int = 0, *, given: bool = False) -> ArrayRecord:
    """Draw a fresh model, with the weights of `Federation.fresh_model` for the same seed.

    A strategy with ``model`` draws its own. These arrays are for an engine, or for a strategy that repeats a run.

    Args:
        model: a module, whose weights are not used, or a factory; as for `feduhb.Federation`.
        seed: the strategy's seed.
        given: return the module's own weights and statistics instead, as `Federation(start="given")` does.
    """
    module = draw_model(model, seed, given=given)
    check_module(module)
    arrays = Layout.of_module(module).to_arrays(flatten(module))
    # Never sent; a subclass could not be: Flower sends a record by its class's name.
    vars(arrays)[DRAWN_FROM] = model
    vars(arrays)[FIXED] = sorted(name for name, _ in list_carried(module)), digest_carried(module)
    return arrays


def get_source(arrays: ArrayRecord) -> ModelSource | None:
    """Return the model that `fresh_arrays` drew these arrays from; None for other arrays."""
    return vars(arrays).get(DRAWN_FROM)


def get_carried(arrays: ArrayRecord) -> tuple[list[str], str | None]:
    """Return the names of the frozen parameters and constant buffers that go with arrays of `fresh_arrays`, and their digest.

    The digest is None if there are none, or if the arrays were made elsewhere.
    """
    return vars(arrays).get(FIXED, ([], None))


def check_carried(module: nn.Module, wanted: object) -> None:
    """Raise ModelError if a client's module has other frozen parameters or constant buffers than the server's.

    Args:
        wanted: the digest in the server's message; None if the server sent none.
    """
    if wanted is not None and wanted != digest_carried(module):
        raise ModelError(
            "the frozen parameters and constant buffers of this client's module are not those of the server's; install the "
            "same module, with the same weights, on both sides"
        )


def describe_work(
    work: Work, local: Local, client: ClientId, round: int, seed: int
) -> dict[str, ConfigRecordValues]:
    """Return the config of a train message: the work of a round for one client."""
    return {
        "server-round": round + 1,  # counted from 1, as Flower's own strategies do
        "client": client,
        "round": round,
        "seed": seed,
        "epochs": work.epochs,
        "batch-size": local.batch_size,
        "lr": local.lr,
        "l2": local.l2,
        ANSWER: _name_answer(work.task),
        **{name.replace("_", "-"): value for name, value in list_added(local).items()},
        **_describe_task(work.task),
    }


def _describe_task(task: Task | None) -> dict[str, ConfigRecordValues]:
    if task is None:
        return {}
    return {TASK: task.name, **{f"{TASK}-{key}": value for key, value in asdict(task).items()}}


def _name_answer(task: Task | None) -> str:
    return UPDATE if task is None else f"{UPDATE} by {task.name}"


def read_task(config: Mapping[str, Any]) -> Task | None:
    """Return the task that a message names; raise MalformedError for one that this version does not know."""
    if (name := config.get(TASK)) is None:
        return None
    if (kind := TASKS.get(str(name))) is None:
        raise MalformedError(
            f"this client does not know the task {to_line(name, 80)!r}; install the server's version of feduhb"
        )
    prefix = f"{TASK}-"
    said = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    if unknown := sorted({*said} - {each.name for each in fields(kind)}):
        raise MalformedError(
            f"this client does not know the setting {to_line(unknown[0], 80)!r} of the task {name}; install the server's "
            "version of feduhb"
        )
    return kind(**said)


def wants_update(config: Mapping[str, Any], task: Task | None) -> bool:
    """Return whether a message asks for an update, and not for the trained model."""
    return config.get(ANSWER) == _name_answer(task)


def read_local(config: Mapping[str, Any], loss: Loss, augment: Augment | None) -> Local:
    """Return how a message asks a client to train; what it does not say has its default."""
    numbers = {"batch-size": int, "lr": float, "l2": float, "momentum": float, "weight-decay": float}
    kinds = {**numbers, "clip-norm": float, "proximal": float, "optimizer": str, "schedule": str}
    said = {key.replace("-", "_"): kind(config[key]) for key, kind in kinds.items() if key in config}
    return Local(**said, loss=loss, augment=augment)


def read_example_count(content: RecordDict, record: str = METRICS) -> float:
    """Return the number of examples that an answer stands for."""
    count = read_metrics(content, record).get(EXAMPLES)
    if not isinstance(count, int | float):
        raise MalformedError(f"no {EXAMPLES} among its metrics")
    return _to_float(count)


def has_joined(content: RecordDict) -> bool:
    """Return whether a client says that its last batch joined the batch before it. Earlier versions do not say."""
    return read_metrics(content).get(JOINED) == 1


def read_scores(content: RecordDict) -> tuple[float, dict[str, float]]:
    """Return the number of examples of an answer to an evaluate message, and its scores that are numbers."""
    check_records(content, METRICS)
    return _read_scores(content, METRICS)


def read_held_out(content: RecordDict) -> tuple[float, dict[str, float]] | None:
    """Return the number of held-out examples in an answer, and the scores on them; None if it has none."""
    return _read_scores(content, HELD_OUT) if HELD_OUT in content else None


def may_hold_out(content: RecordDict) -> bool:
    """Return whether a client may have held-out examples: unless it says that it has none. Earlier versions do not say."""
    check_records(content, METRICS)
    return read_metrics(content).get(HELD_OUT) != 0


def _read_scores(content: RecordDict, record: str) -> tuple[float, dict[str, float]]:
    count = read_example_count(content, record)
    scores = {key: value for key, value in read_metrics(content, record).items() if key != EXAMPLES}
    return count, {key: _to_float(value) for key, value in scores.items() if isinstance(value, int | float)}


def read_update(content: RecordDict, work: Work, layout: Layout, *more: str) -> Tensor:
    """Return the update [P] of an answer: the model that the client started from minus the trained one, or the gradient.

    Args:
        more: other records that were asked for.
    """
    if isinstance(refusal := content.get(REFUSAL), ConfigRecord):
        why = refusal.get("why")
        raise MalformedError(f"a refusal: {to_line(why) if isinstance(why, str) else 'without a reason'}")
    if isinstance(update := content.get(UPDATE), ArrayRecord):
        check_records(content, UPDATE, METRICS, *more)
        return layout.flatten(update)
    if work.task is not None:
        raise MalformedError(
            f"no update by the task {work.task.name}: its feduhb is of an earlier version, which does not know tasks; install the "
            "server's version there"
        )
    if work.epochs == 0:
        raise MalformedError("no update, though full-batch gradients were asked for")
    if not isinstance(arrays := content.get(ARRAYS), ArrayRecord):
        raise MalformedError("no arrays")
    check_records(content, ARRAYS, METRICS, *more)
    return work.params.cpu() - layout.flatten(arrays)


def check_records(content: RecordDict, *expected: str) -> None:
    """Raise MalformedError if an answer holds a record that nobody asked for: it only costs the server memory."""
    if odd := sorted({*content} - {*expected}):
        raise MalformedError(f"an unexpected record {to_line(repr(odd[0][:80]), 80)}")


def read_metrics(content: RecordDict, record: str = METRICS) -> Mapping[str, MetricRecordValues]:
    """Return the metrics of an answer, empty if it has none; raise MalformedError if they are too many or too large."""
    metrics = content.get(record)
    if not isinstance(metrics, MetricRecord):
        return {}
    if len(metrics) > NUMBERS:
        raise MalformedError(f"{len(metrics)} metrics, above the limit {NUMBERS}")
    if (letters := sum(map(len, metrics))) > LETTERS:
        raise MalformedError(f"names of metrics of {letters} letters, above the limit {LETTERS}")
    if (most := max((len(some) for some in metrics.values() if isinstance(some, list)), default=0)) > NUMBERS:
        raise MalformedError(f"a metric of {most} numbers, above the limit {NUMBERS}")
    return metrics


def _to_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
