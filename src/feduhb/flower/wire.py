"""What travels: models as named arrays, and the keys of messages. Both sides read this file and no other of each other's.

A train message holds "arrays" (the model to start from) and "config". Its answer holds "arrays" (the model arrived at), as
Flower's own strategies expect, or "update" (what it started from minus that, or the gradient), and "metrics" with
"num-examples"; or "refusal" with words. Our clients answer with the update where the config says so, others with the model.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, MetricRecord, RecordDict
from torch import Tensor, nn

from feduhb.core.flat import ModelSource, check_module, fresh
from feduhb.core.types import ClientId, Local, Work
from feduhb.errors import ModelError

ARRAYS, UPDATE, CONFIG, METRICS, REFUSAL = "arrays", "update", "config", "metrics", "refusal"
EXAMPLES, ANSWER, DELETED = "num-examples", "answer", "deleted-files"
TRAIN, EVALUATE, WHO, LEAVE = "train", "evaluate", "query.feduhb_who", "query.feduhb_leave"
ROWS, CLASSES = "forget-rows", "forget-classes"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
OURS = ("server-round", "client", "round", "seed", "epochs", "batch-size", "lr", "l2", ANSWER, ROWS, CLASSES)
HEADER = 4096  # bytes that an array on the wire may have beside its numbers


class MalformedError(ValueError):
    """An answer that cannot be read, with the reason in words."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The names and shapes that a flat model [P] is cut into, in order."""

    shapes: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype

    @classmethod
    def of(cls, arrays: ArrayRecord) -> Layout:
        """Read the layout of the arrays that a run starts from; refuse what cannot be one flat vector of floats."""
        if not arrays:
            raise ModelError(
                "the initial arrays are empty; draw them: feduhb.flower.fresh_arrays(model, seed)"
            )
        if gathered := [name for name in arrays if name.rpartition(".")[2] in STATISTICS]:
            raise ModelError(
                f"array {gathered[0]} gathers statistics of the clients' data, which would outlive a forgotten client; "
                "use GroupNorm or LayerNorm instead of BatchNorm"
            )
        kinds = {array.dtype for array in arrays.values()}
        if len(kinds) > 1 or np.dtype(next(iter(kinds))).kind != "f":
            raise ModelError(
                f"the arrays have the types {sorted(kinds)}; convert the model to one float type"
            )
        dtype = torch.from_numpy(np.empty(0, np.dtype(kinds.pop()))).dtype
        return cls({name: tuple(array.shape) for name, array in arrays.items()}, dtype)

    @classmethod
    def of_module(cls, module: nn.Module) -> Layout:
        """Give the layout of a module's parameters."""
        named = dict(module.named_parameters())
        return cls({name: tuple(p.shape) for name, p in named.items()}, next(iter(named.values())).dtype)

    def flat(self, arrays: ArrayRecord) -> Tensor:
        """Read arrays that came over the wire into one vector [P]; anything but these names and shapes is malformed."""
        if odd := sorted({*arrays} ^ {*self.shapes}):
            raise MalformedError(f"{'no' if odd[0] in self.shapes else 'an unknown'} array {odd[0]}")
        return torch.cat([self._read(name, arrays[name]) for name in self.shapes])

    def arrays(self, params: Tensor) -> ArrayRecord:
        """Cut a flat vector [P] into named arrays."""
        parts = params.detach().cpu().split([math.prod(shape) for shape in self.shapes.values()])
        named = zip(self.shapes.items(), parts, strict=True)
        return ArrayRecord(
            OrderedDict((name, Array(part.reshape(shape).numpy())) for (name, shape), part in named)
        )

    def _read(self, name: str, array: Array) -> Tensor:
        wanted = self.shapes[name]
        if tuple(array.shape) != wanted:
            raise MalformedError(f"array {name} of shape {list(array.shape)} instead of {list(wanted)}")
        if len(array.data) > math.prod(wanted) * 8 + HEADER:  # 8 bytes: the widest float
            raise MalformedError(f"array {name} of {len(array.data)} bytes, too many for its shape")
        try:
            found = array.numpy()
        except Exception as error:
            raise MalformedError(f"array {name} that cannot be read ({type(error).__name__})") from None
        if found.shape != wanted or found.dtype.kind != "f":
            raise MalformedError(f"array {name} of {found.dtype} {list(found.shape)} under a false label")
        return torch.from_numpy(np.ascontiguousarray(found)).reshape(-1).to(self.dtype)


def fresh_arrays(model: ModelSource, seed: int = 0) -> ArrayRecord:
    """Draw the fresh model that a run starts from: the same draw as `Federation.fresh_model` for the same seed.

    Args:
        model: a module, whose weights are never used, or a factory; as for `feduhb.Federation`.
        seed: the strategy's own.
    """
    return named_arrays(fresh(model, seed))


def named_arrays(module: nn.Module) -> ArrayRecord:
    """Give a module's parameters as arrays by name."""
    check_module(module)
    return ArrayRecord(
        OrderedDict((name, Array(p.detach().cpu().numpy())) for name, p in module.named_parameters())
    )


def order(work: Work, local: Local, client: ClientId, round: int, seed: int) -> dict[str, ConfigRecordValues]:
    """Spell the work of a round for one client."""
    return {
        "server-round": round + 1,  # counted from 1, as Flower's own strategies do
        "client": client,
        "round": round,
        "seed": seed,
        "epochs": work.epochs,
        "batch-size": local.batch_size,
        "lr": local.lr,
        "l2": local.l2,
        ANSWER: UPDATE,
    }


def examples_of(content: RecordDict) -> float:
    """Read how many examples an answer stands for."""
    metrics = content.get(METRICS)
    count = metrics.get(EXAMPLES) if isinstance(metrics, MetricRecord) else None
    if not isinstance(count, int | float):
        raise MalformedError(f"no {EXAMPLES} among its metrics")
    return float(count)


def update_of(content: RecordDict, work: Work, layout: Layout) -> Tensor:
    """Read an answer as an update [P]: what the client started from minus what it arrived at, or its gradient."""
    if isinstance(refusal := content.get(REFUSAL), ConfigRecord):
        raise MalformedError(f"a refusal: {' '.join(str(refusal.get('why', '')).split())[:500]}")
    if isinstance(update := content.get(UPDATE), ArrayRecord):
        return layout.flat(update)
    if work.epochs == 0:
        raise MalformedError("no update, though full-batch gradients were asked for")
    if not isinstance(arrays := content.get(ARRAYS), ArrayRecord):
        raise MalformedError("no arrays")
    return work.params.cpu() - layout.flat(arrays)


def weighted(answers: Sequence[RecordDict]) -> dict[str, float]:
    """Average the scores of answers by their examples, each over those who gave it; what is no finite number is left out."""
    sums: dict[str, tuple[float, float]] = {}
    for content in answers:
        try:
            count = examples_of(content)
        except MalformedError:
            continue
        for key, value in content[METRICS].items():
            if (
                key != EXAMPLES
                and isinstance(value, int | float)
                and math.isfinite(value)
                and 0 < count < math.inf
            ):
                total, weight = sums.get(key, (0.0, 0.0))
                sums[key] = total + count * value, weight + count
    return {key: total / weight for key, (total, weight) in sorted(sums.items())}
