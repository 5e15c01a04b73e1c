"""Who trains the clients: the slow, obvious loop, and the fast ones held to it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from feduhb.core.types import Engine, Local
from feduhb.data.federation import Federation
from feduhb.engines.loop import Loop
from feduhb.engines.pool import Pool
from feduhb.engines.stacked import Stacked
from feduhb.errors import ConfigError

ENGINES: dict[str, Callable[[Federation, Local], Engine]] = {"loop": Loop, "pool": Pool, "stacked": Stacked}


def engine_named(name: str, federation: Federation, local: Local) -> Engine:
    """Make an engine by name; "auto" takes the loop on a GPU where there is one, the pool otherwise."""
    if name == "auto":
        return (
            Loop(federation, local, device="cuda") if torch.cuda.is_available() else Pool(federation, local)
        )
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r}; choose one of auto, {', '.join(ENGINES)}")
    return ENGINES[name](federation, local)


__all__ = ["ENGINES", "Loop", "Pool", "Stacked", "engine_named"]
