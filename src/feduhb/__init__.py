"""FedUHB: exact federated unlearning, fast.

    federation = feduhb.load("mnist-5k", clients=20, partition="dirichlet:0.5", seed=1)
    trained    = feduhb.train(federation, rounds=40)
    unlearned  = feduhb.unlearn(trained, forget=["c00", "c01"])
    print(feduhb.audit(unlearned, trained))

Names are loaded when first used, so that reading records or reports does not import torch. `feduhb.flower`, for federations on
real machines, is a room of its own with an extra; in a clone: pip install -c constraints.txt '.[flower]'.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feduhb.core.aggregate import geometric_median, krum, median, trimmed_mean, weighted_mean
    from feduhb.core.types import Local, Updates, Work
    from feduhb.data.backdoor import Backdoor
    from feduhb.data.canaries import Canaries
    from feduhb.data.federation import Federation
    from feduhb.data.request import Request
    from feduhb.engines import Loop, Pool, Stacked
    from feduhb.errors import FeduhbError
    from feduhb.experiment.api import compare, train, unlearn
    from feduhb.experiment.audit import audit
    from feduhb.experiment.audited import Audit
    from feduhb.experiment.federations import load
    from feduhb.experiment.runs import Run, open_run
    from feduhb.methods import FedEraser, FedRecover, FedUHB, Retrain
    from feduhb.records import Round
    from feduhb.stopping import dynamic_stop, never, replay

_HOMES = {
    "feduhb.core.aggregate": ("geometric_median", "krum", "median", "trimmed_mean", "weighted_mean"),
    "feduhb.core.types": ("Local", "Updates", "Work"),
    "feduhb.data.backdoor": ("Backdoor",),
    "feduhb.data.canaries": ("Canaries",),
    "feduhb.data.federation": ("Federation",),
    "feduhb.data.request": ("Request",),
    "feduhb.engines": ("Loop", "Pool", "Stacked"),
    "feduhb.errors": ("FeduhbError",),
    "feduhb.experiment.api": ("compare", "train", "unlearn"),
    "feduhb.experiment.audit": ("audit",),
    "feduhb.experiment.audited": ("Audit",),
    "feduhb.experiment.federations": ("load",),
    "feduhb.experiment.runs": ("Run", "open_run"),
    "feduhb.methods": ("FedEraser", "FedRecover", "FedUHB", "Retrain"),
    "feduhb.records": ("Round",),
    "feduhb.stopping": ("dynamic_stop", "never", "replay"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Audit", "Backdoor", "Canaries", "FedEraser", "FedRecover", "FedUHB", "Federation", "FeduhbError", "Local", "Loop", "Pool", "Request", "Retrain", "Round", "Run",
    "Stacked", "Updates", "Work", "audit", "compare", "dynamic_stop", "geometric_median", "krum", "load", "median", "never", "open_run",
    "replay", "train", "trimmed_mean", "unlearn", "weighted_mean",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "flower":
        return importlib.import_module("feduhb.flower")
    if name not in _HOME:
        raise AttributeError(f"feduhb has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
