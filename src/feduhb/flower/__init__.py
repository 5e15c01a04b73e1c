"""Federated unlearning over a Flower federation: strategies, an engine, a client app.

    strategy = feduhb.flower.FedUHB(["hospital-1"], model=net, checkpoint="/srv/runs/without-1", trained="/srv/runs/first")
    outcome  = strategy.start(grid, num_rounds=40)

It needs the extra: pip install -c constraints.txt '.[flower]' in a clone. Names are loaded when they are first used: a
client's process, which is started for every message, does not load the server's side.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from feduhb.errors import FeduhbError

if TYPE_CHECKING:
    from feduhb.flower.client import client_app, introduced
    from feduhb.flower.engine import FlowerEngine
    from feduhb.flower.remote import Remote, connected
    from feduhb.flower.roster import Roster, key_id
    from feduhb.flower.server import Outcome
    from feduhb.flower.strategies import (
        PGA,
        FedAdam,
        FedAF,
        FedEraser,
        FedExP,
        FedNadam,
        FedRecover,
        FedUHB,
        FedYogi,
        FineTune,
        Nesterov,
        NoT,
        RapidRetrain,
        Retrain,
        Train,
    )
    from feduhb.flower.wire import fresh_arrays

_NAMES = {
    "client": ("client_app", "introduced"),
    "engine": ("FlowerEngine",),
    "remote": ("Remote", "connected"),
    "roster": ("Roster", "key_id"),
    "server": ("Outcome",),
    "strategies": (
        "PGA", "FedAF", "FedAdam", "FedEraser", "FedExP", "FedNadam", "FedRecover", "FedUHB", "FedYogi",
        "FineTune", "Nesterov", "NoT", "RapidRetrain", "Retrain", "Train",
    ),
    "wire": ("fresh_arrays",),
}  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "PGA", "ExtraError", "FedAF", "FedAdam", "FedEraser", "FedExP", "FedNadam", "FedRecover", "FedUHB", "FedYogi", "FineTune", "FlowerEngine", "Nesterov",
    "NoT", "Outcome", "RapidRetrain", "Remote", "Retrain", "Roster", "Train", "client_app", "connected", "fresh_arrays", "introduced", "key_id",
]  # fmt: skip


class ExtraError(FeduhbError, ImportError):
    """The error of importing a part of `feduhb` whose packages are not installed."""


try:
    importlib.import_module("flwr")
except ImportError:
    raise ExtraError(
        "feduhb.flower needs Flower; install it in the clone: pip install -c constraints.txt '.[flower]'"
    ) from None


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"feduhb.flower has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"feduhb.flower.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
