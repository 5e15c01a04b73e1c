"""The engines that train clients: the slow reference loop, the fast ones that are held to it, and how they are found by name.

Engines of other packages register under the entry point group ``feduhb.engines``: a name and a function of
(federation, local) that returns an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feduhb.core.plugins import find_plugin, list_plugins
from feduhb.core.types import ClientId, Engine, Local, Updates, Work
from feduhb.data.federation import Federation
from feduhb.engines.loop import Loop
from feduhb.engines.pool import Pool
from feduhb.engines.stacked import PRECISIONS, Stacked
from feduhb.errors import ConfigError

EngineMaker = Callable[[Federation, Local], Engine]

GROUP = "feduhb.engines"  # the entry points of other packages
ENGINES: dict[str, EngineMaker] = {"loop": Loop, "pool": Pool, "stacked": Stacked}
OWN = "own"  # the name in records of an engine that the user's code made


@dataclass(frozen=True, slots=True)
class Picked:
    """An engine that "auto" picked, with the reason in the records."""

    engine: Engine
    why: str

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's own, and why it was picked."""
        return {**self.engine.about, "why": self.why}

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Return the answers of these clients to this work."""
        return self.engine.train(work, clients, round)


def make_engine(
    engine: str | EngineMaker, federation: Federation, local: Local, *, block: int | None = None
) -> Engine:
    """Return an engine for the clients of a federation.

    Args:
        engine: a name, or a function of (federation, local). "stacked:tf32" and "stacked:bf16" name the precision,
            and "auto" chooses an engine.
        block: clients that the stacked engine trains at once, because its bits depend on that.
    """
    if not isinstance(engine, str):
        return engine(federation, local)
    if engine == OWN:
        raise ConfigError("this run was made by an engine of your own; give it again: engine=...")
    if engine == "auto":
        return pick_engine(federation, local, block=block)
    kind, colon, precision = engine.partition(":")
    if kind == "stacked":
        return Stacked(federation, local, precision=precision if colon else PRECISIONS[0], block=block)
    maker = ENGINES.get(engine) or find_plugin(GROUP, engine)
    if maker is None:
        raise _no_engine(engine)
    return maker(federation, local)


def name_engine(engine: str | EngineMaker) -> str:
    """Return the name of an engine as a config file writes it."""
    if not isinstance(engine, str) and not callable(engine):
        raise ConfigError(
            "engine is a name, such as 'pool', or a function of (federation, local) that makes one"
        )
    return engine if isinstance(engine, str) else OWN


def check_engine(name: str) -> None:
    """Raise ConfigError if there is no engine of this name."""
    if not is_built_in_name(name) and find_plugin(GROUP, name) is None:
        raise _no_engine(name)


def is_built_in_name(name: str) -> bool:
    """Whether a name stands for an engine of this package, and not of another one."""
    return name in {"auto", *_names()}


def pick_engine(federation: Federation, local: Local, *, block: int | None = None) -> Picked:
    """Return an engine by device and model, with the reason: stacked on a GPU if the model allows it, the pool without a GPU."""
    if not torch.cuda.is_available():
        return Picked(Pool(federation, local), "there is no GPU here, and it uses every core")
    try:
        engine = Stacked(federation, local, block=block)
    except ConfigError as refusal:
        return Picked(Loop(federation, local, device="cuda"), str(refusal))
    return Picked(engine, f"there is a GPU here; {engine.why}")


def block_of(engine: Engine) -> int | None:
    """Return how many clients an engine trains at once, where its bits depend on that; None elsewhere."""
    return engine.about["block"] if engine.about["name"] == "stacked" else None


def describe_engine(engine: Engine) -> str:
    """Return, in one line, everything that equal bits depend on."""
    about, block = engine.about, block_of(engine)
    blocks = "" if block is None else f", blocks of {block}"
    return f"{about['name']}, {about['device']}, {about['precision']}{blocks}, torch {torch.__version__}"


def _names() -> list[str]:
    return [*ENGINES, *(f"stacked:{precision}" for precision in PRECISIONS)]


def _no_engine(name: str) -> ConfigError:
    known = [name for name in _names() if name != f"stacked:{PRECISIONS[0]}"]
    return ConfigError(
        f"there is no engine {name!r}; choose one of auto, {', '.join([*known, *list_plugins(GROUP)])}"
    )


__all__ = [
    "ENGINES",
    "EngineMaker",
    "Loop",
    "Picked",
    "Pool",
    "Stacked",
    "block_of",
    "check_engine",
    "describe_engine",
    "is_built_in_name",
    "make_engine",
    "name_engine",
    "pick_engine",
]
