"""The engines that train clients, found by name: a slow reference loop, and fast engines that are tested against it.

Another package adds an engine by the entry point group ``feduhb.engines``: a name, and a function of
(federation, local) that returns an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feduhb.core.plugins import find_plugin, list_plugins
from feduhb.core.scores import compute_accuracy
from feduhb.core.tasks import Task
from feduhb.core.types import RECORDED, BlockSize, ClientId, Engine, Local, Method, Updates, Work, get_tasks
from feduhb.data.federation import Federation
from feduhb.engines.loop import Loop
from feduhb.engines.pool import Pool
from feduhb.engines.scoring import compute_outputs, score_model
from feduhb.engines.stacked import PRECISIONS, Stacked
from feduhb.errors import ConfigError

EngineMaker = Callable[[Federation, Local], Engine]

GROUP = "feduhb.engines"  # entry points of other packages
ENGINES: dict[str, EngineMaker] = {"loop": Loop, "pool": Pool, "stacked": Stacked}
BUILT_IN = dict(ENGINES)  # what is added to ENGINES later is not of this package
OWN = "own"  # recorded as the name of an engine that the user's code made


@dataclass(frozen=True, slots=True)
class PickedEngine:
    """An engine that "auto" picked, with the reason for the records."""

    engine: Engine
    why: str

    @property
    def about(self) -> Mapping[str, Any]:
        """The engine's name and settings, and why it was picked."""
        return {**self.engine.about, "why": self.why}

    @property
    def tasks(self) -> tuple[type[Task], ...]:
        """The tasks that the picked engine can do."""
        return get_tasks(self.engine)

    def train(self, work: Work, clients: Sequence[ClientId], round: int) -> Iterator[Updates]:
        """Train these clients on the picked engine."""
        return self.engine.train(work, clients, round)


def make_engine(
    engine: str | EngineMaker,
    federation: Federation,
    local: Local,
    *,
    block: BlockSize | None = None,
    method: Method[Any] | None = None,
) -> Engine:
    """Return an engine for the clients of a federation.

    Args:
        engine: a name, or a function of (federation, local). "auto" picks one; "stacked:tf32" and "stacked:bf16"
            set a precision.
        block: the number of clients that the stacked engine computes together, or "recorded". The last bits of its updates
            depend on this.
        method: what the engine is for. Raise ConfigError if the engine cannot do its tasks.
    """
    made = _make_engine(engine, federation, local, block)
    unable = [task for task in ([] if method is None else method.tasks) if task not in get_tasks(made)]
    if method is not None and unable:
        raise ConfigError(
            f"{method.name} asks clients to {unable[0].verb}, which the engine {made.about['name']} cannot do; "
            "use engine='pool' or 'loop'"
        )
    return made


def _make_engine(
    engine: str | EngineMaker, federation: Federation, local: Local, block: BlockSize | None
) -> Engine:
    if not isinstance(engine, str):
        return engine(federation, local)
    if engine == OWN:
        raise ConfigError("an engine of your own made this run; pass that engine again: engine=...")
    if engine == "auto":
        return pick_engine(federation, local, block=block)
    kind, colon, precision = engine.partition(":")
    if kind == "stacked":
        return Stacked(federation, local, precision=precision if colon else PRECISIONS[0], block=block)
    maker = ENGINES.get(engine) or find_plugin(GROUP, engine)
    if maker is None:
        raise _make_engine_error(engine)
    return maker(federation, local)


def name_engine(engine: str | EngineMaker) -> str:
    """Return the name of an engine for a config file."""
    if not isinstance(engine, str) and not callable(engine):
        raise ConfigError("engine must be a name, such as 'pool', or a function of (federation, local)")
    return engine if isinstance(engine, str) else OWN


def check_engine(name: str) -> None:
    """Raise ConfigError if no engine has this name."""
    if name not in {"auto", *_list_names()} and find_plugin(GROUP, name) is None:
        raise _make_engine_error(name)


def is_built_in_name(name: str) -> bool:
    """Return whether a name stands for an engine of this package, and nobody has put another in its place."""
    if name in ENGINES:
        return is_built_in_maker(ENGINES[name])
    return name in {"auto", *_list_names()}


def is_built_in_maker(maker: EngineMaker) -> bool:
    """Return whether a function or class that makes engines is one of this package's."""
    return any(maker is known for known in BUILT_IN.values())


def pick_engine(federation: Federation, local: Local, *, block: BlockSize | None = None) -> PickedEngine:
    """Return the pool if there is no GPU; on a GPU the stacked engine, or the loop if the model cannot be stacked."""
    if not torch.cuda.is_available():
        return PickedEngine(Pool(federation, local), "there is no GPU here, and it uses every core")
    try:
        engine = Stacked(federation, local, block=block)
    except ConfigError as refusal:
        return PickedEngine(Loop(federation, local, device="cuda"), str(refusal))
    return PickedEngine(engine, f"there is a GPU here; {engine.why}")


def block_of(engine: Engine) -> BlockSize | None:
    """Return the number of clients that are computed together, or "recorded", if an engine's bits depend on it, else None."""
    return engine.about["block"] if engine.about["name"] == "stacked" else None


def device_of(engine: Engine) -> str:
    """Return where an engine's clients train and the server computes: on "cuda", or else on "cpu"."""
    return "cuda" if engine.about["device"] == "cuda" else "cpu"


def describe_engine(engine: Engine) -> str:
    """Return one line with everything that an engine's bits depend on."""
    about, block = engine.about, block_of(engine)
    blocks = {None: "", RECORDED: ", recorded steps"}.get(block, f", blocks of {block}")
    return f"{about['name']}, {about['device']}, {about['precision']}{blocks}, torch {torch.__version__}"


def _list_names() -> list[str]:
    return [*ENGINES, *(f"stacked:{precision}" for precision in PRECISIONS)]


def _make_engine_error(name: str) -> ConfigError:
    known = [name for name in _list_names() if name != f"stacked:{PRECISIONS[0]}"]
    return ConfigError(
        f"there is no engine {name!r}; choose one of auto, {', '.join([*known, *list_plugins(GROUP)])}"
    )


__all__ = [
    "ENGINES", "EngineMaker", "Loop", "PickedEngine", "Pool", "Stacked", "block_of", "check_engine", "compute_accuracy",
    "compute_outputs", "describe_engine", "is_built_in_maker", "is_built_in_name", "make_engine", "name_engine", "pick_engine", "score_model",
]  # fmt: skip
