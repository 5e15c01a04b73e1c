"""Who trains the clients: the slow, obvious loop, and the fast ones held to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feduhb.core.types import ClientId, Engine, Local, Updates, Work
from feduhb.data.federation import Federation
from feduhb.engines.loop import Loop
from feduhb.engines.pool import Pool
from feduhb.engines.stacked import PRECISIONS, Stacked
from feduhb.errors import ConfigError

ENGINES: dict[str, Callable[[Federation, Local], Engine]] = {"loop": Loop, "pool": Pool, "stacked": Stacked}


@dataclass(frozen=True, slots=True)
class Picked:
    """An engine that "auto" picked, with its reason in the records."""

    engine: Engine
    why: str

    @property
    def about(self) -> Mapping[str, Any]:
        """What made these numbers, and why that did."""
        return {**self.engine.about, "why": self.why}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Let these clients do this work."""
        return self.engine.train(work, clients, round)


def engine_named(name: str, federation: Federation, local: Local, *, block: int | None = None) -> Engine:
    """Make an engine by name; "stacked:tf32" and "stacked:bf16" say the precision, and "auto" chooses.

    Args:
        block: clients that the stacked engine trains at once, for its bits depend on that; others choose their own.
    """
    if name == "auto":
        return chosen(federation, local, block=block)
    kind, colon, precision = name.partition(":")
    if kind == "stacked":
        return Stacked(federation, local, precision=precision if colon else PRECISIONS[0], block=block)
    check_engine(name)
    return ENGINES[name](federation, local)


def check_engine(name: str) -> None:
    """Refuse the name of an engine that there is not."""
    precise = [f"stacked:{precision}" for precision in PRECISIONS]
    if name not in {"auto", *ENGINES, *precise}:
        more = ", ".join(precise[1:])
        raise ConfigError(f"there is no engine {name!r}; choose one of auto, {', '.join(ENGINES)}, {more}")


def chosen(federation: Federation, local: Local, *, block: int | None = None) -> Picked:
    """Choose an engine by device and model, and say why: stacked on a GPU where the model allows it, the pool without one."""
    if not torch.cuda.is_available():
        return Picked(Pool(federation, local), "there is no GPU here, and it uses every core")
    try:
        engine = Stacked(federation, local, block=block)
    except ConfigError as refusal:
        return Picked(Loop(federation, local, device="cuda"), str(refusal))
    return Picked(engine, f"there is a GPU here; {engine.why}")


__all__ = ["ENGINES", "Loop", "Picked", "Pool", "Stacked", "check_engine", "chosen", "engine_named"]
