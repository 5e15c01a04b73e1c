"""What engines share: the order in which a client sees its examples, and blocks of answers."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from feduhb.core.seeds import generator
from feduhb.core.types import ClientId, Local, Updates
from feduhb.errors import AnswerError

CHUNK = 512  # examples a pass of a full-batch gradient holds at once


def batches(count: int, size: int, seed: int, client: ClientId, round: int, epoch: int) -> Iterator[Tensor]:
    """Return the positions of each batch of an epoch: a shuffle drawn at (seed, client, round, epoch)."""
    return iter(shuffled(count, seed, client, round, epoch).split(size))


def shuffled(count: int, seed: int, client: ClientId, round: int, epoch: int) -> Tensor:
    """Return the order in which a client sees its examples in an epoch."""
    return torch.randperm(count, generator=generator(seed, client, round, epoch))


def chunks(count: int) -> Iterator[Tensor]:
    """Return the positions of each chunk of a full pass, in order."""
    return iter(torch.arange(count).split(CHUNK))


def blocked(answers: Iterable[tuple[ClientId, Tensor, int]], size: int) -> Iterator[Updates]:
    """Gather (client, update [P], examples) into blocks of ``size`` clients."""
    held: list[tuple[ClientId, Tensor, int]] = []
    for answer in answers:
        held.append(answer)
        if len(held) == size:
            yield _block(held)
            held = []
    if held:
        yield _block(held)


def _block(held: list[tuple[ClientId, Tensor, int]]) -> Updates:
    clients, values, counts = zip(*held, strict=True)
    stacked = torch.stack(values)
    return Updates(clients, stacked, torch.tensor(counts, dtype=torch.float64))


@contextlib.contextmanager
def named(client: ClientId, round: int) -> Generator[None]:
    """Turn an error of a client's training into an AnswerError that names the client and the round."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        why = " ".join(str(error).split())
        raise AnswerError(
            f"client {client} could not train in round {round} ({why}); look at its inputs and labels"
        ) from error


def described(local: Local) -> Mapping[str, Any]:
    """Return how clients train, for records."""
    loss = getattr(local.loss, "__name__", type(local.loss).__name__)
    return {"batch_size": local.batch_size, "lr": local.lr, "loss": loss, "l2": local.l2}
