"""The batches of all engines: which examples a client sees in each step, and what training in batches cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feduhb.core.draws import make_key
from feduhb.core.local import Local, Loss, scale_lr
from feduhb.core.loss import WeightedEntropy
from feduhb.core.modules import has_batch_norm, has_dropout, list_norms
from feduhb.core.seeds import generator
from feduhb.core.types import ClientId, Work
from feduhb.data.federation import Examples, Federation
from feduhb.errors import ConfigError, DataError

CHUNK = 512  # examples in one pass of a full-batch gradient


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a client in a round."""

    positions: Tensor  # [B] of the examples in its batch
    key: int  # the hash of the step's address, for its random draws
    scale: float  # the factor of the learning rate


@dataclass(frozen=True, slots=True)
class Batches:
    """How clients' examples are divided into batches.

    Under BatchNorm, which cannot normalise one example, a last batch of one joins the batch before it.
    """

    local: Local
    joins: bool
    draws: bool  # whether steps draw random numbers
    joined: tuple[ClientId, ...] = ()  # the clients whose last batch joins another

    @classmethod
    def of(cls, model: nn.Module, local: Local, federation: Federation) -> Batches:
        """Return the batches of a federation; raise DataError if BatchNorm cannot normalise a client's batches."""
        draws = has_dropout(model) or local.augment is not None
        if not has_batch_norm(model):
            return cls(local, joins=False, draws=draws)
        if local.batch_size == 1:
            raise ConfigError(
                "BatchNorm cannot normalise batches of one example; give a batch_size of 2 or more"
            )
        counts = {} if federation.is_remote else {c: len(e) for c, e in federation.clients.items()}
        if alone := [client for client, count in counts.items() if count == 1]:
            raise DataError(
                f"client {alone[0]} has one example, and BatchNorm needs two or more in a batch; leave that client out or forget "
                "it, or use GroupNorm"
            )
        joined = tuple(sorted(c for c, count in counts.items() if count % local.batch_size == 1))
        return cls(local, joins=True, draws=draws, joined=joined)

    @property
    def about(self) -> Mapping[str, Any]:
        """The clients whose last batch joins another, for the records of a run."""
        return {"joined_last_batch": list(self.joined)} if self.joined else {}

    def list_sizes(self, count: int) -> list[int]:
        """Return the sizes of the batches of one epoch of ``count`` examples."""
        return list_sizes(count, self.local.batch_size, joins=self.joins)

    def draw(self, count: int, epochs: int, seed: int, client: ClientId, round: int) -> Iterator[Step]:
        """Yield the steps of a client in a round."""
        sizes = self.list_sizes(count)
        for epoch in range(epochs):
            parts = draw_order(count, seed, client, round, epoch).split(sizes)
            for number, positions in enumerate(parts):
                key = make_key(seed, client, round, epoch, number) if self.draws else 0
                done, total = epoch * len(sizes) + number, epochs * len(sizes)
                yield Step(positions, key, scale_lr(self.local.schedule, round, done, total))


def list_sizes(count: int, size: int, *, joins: bool) -> list[int]:
    """Return the sizes of the batches of ``count`` examples; a last batch of one ``joins`` the batch before it, or not."""
    sizes = [min(size, count - begin) for begin in range(0, count, size)]
    if joins and len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [size + 1]
    return sizes


def draw_order(count: int, seed: int, client: ClientId, round: int, epoch: int) -> Tensor:
    """Return the order in which a client sees its examples, drawn at (seed, client, round, epoch)."""
    return torch.randperm(count, generator=generator(seed, client, round, epoch))


def split_chunks(count: int) -> Iterator[Tensor]:
    """Return the positions of the examples in each chunk of a full pass, in order."""
    return iter(torch.arange(count).split(CHUNK))


def weigh_chunks(loss: Loss, examples: Examples) -> Iterator[tuple[Tensor, float]]:
    """Yield the positions of each chunk of a full pass, and the share of its loss in the loss of all examples."""
    targets = examples.targets
    entropy = WeightedEntropy.of(loss, targets, scan=True)
    weights = None if entropy is None else entropy.weigh(targets).double().reshape(len(targets), -1).sum(1)
    for positions in split_chunks(len(examples)):
        if weights is None:
            yield positions, len(positions) / len(examples)
        elif weights[positions].any():
            yield positions, float(weights[positions].sum() / weights.sum())


def check_work(work: Work, model: nn.Module, local: Local) -> None:
    """Raise ConfigError for full-batch gradients if training gathers statistics of batches or draws random numbers."""
    if work.epochs == 0 and (what := _find_batchwise(model, local)) is not None:
        raise ConfigError(f"epochs=0 asks for full-batch gradients, but {what}; give epochs of 1 or more")


def _find_batchwise(model: nn.Module, local: Local) -> str | None:
    """Return what in training depends on batches or is random, in words."""
    if has_batch_norm(model):
        return "the model has BatchNorm, which depends on batches"
    if norms := list_norms(model):
        return f"layer {norms[0][0]} of the model gathers statistics of batches"
    if has_dropout(model):
        return "the model has dropout, which is random"
    return None if local.augment is None else "batches are augmented, which is random"
