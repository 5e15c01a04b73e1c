"""Who trains the clients: the slow, obvious loop, and the fast ones held to it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from feduhb.core.types import Engine, Local
from feduhb.data.federation import Federation
from feduhb.engines.loop import Loop
from feduhb.engines.pool import Pool
from feduhb.engines.stacked import PRECISIONS, Stacked
from feduhb.errors import ConfigError

ENGINES: dict[str, Callable[[Federation, Local], Engine]] = {"loop": Loop, "pool": Pool, "stacked": Stacked}


def engine_named(name: str, federation: Federation, local: Local) -> Engine:
    """Make an engine by name; "stacked:tf32" and "stacked:bf16" say the precision, and "auto" chooses."""
    if name == "auto":
        return chosen(federation, local)[0]
    kind, colon, precision = name.partition(":")
    if colon and kind == "stacked":
        return Stacked(federation, local, precision=precision)
    if name not in ENGINES:
        more = ", ".join(f"stacked:{precision}" for precision in PRECISIONS[1:])
        raise ConfigError(f"there is no engine {name!r}; choose one of auto, {', '.join(ENGINES)}, {more}")
    return ENGINES[name](federation, local)


def chosen(federation: Federation, local: Local) -> tuple[Engine, str]:
    """Choose an engine by device and model, and say why: stacked on a GPU where the model allows it, the pool without one."""
    if not torch.cuda.is_available():
        return Pool(federation, local), "pool: there is no GPU here, and it uses every core"
    try:
        engine = Stacked(federation, local)
    except ConfigError as refusal:
        return Loop(federation, local, device="cuda"), f"loop on the GPU: {refusal}"
    return engine, f"stacked: there is a GPU here; {engine.why}"


__all__ = ["ENGINES", "Loop", "Pool", "Stacked", "chosen", "engine_named"]
