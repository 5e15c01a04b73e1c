"""FedUHB: exact federated unlearning, fast.

    federation = feduhb.load("mnist-5k", clients=20, partition="dirichlet:0.5", seed=1)
    trained    = feduhb.train(federation, rounds=40)
    unlearned  = feduhb.unlearn(trained, forget=["c00", "c01"])
    print(feduhb.audit(unlearned, trained))

Names are imported when they are first used, so that reading run folders and reports does not import torch.
`feduhb.flower`, for federations on real machines, needs an extra; in a clone: pip install -c constraints.txt '.[flower]'.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feduhb.api import compare, train, unlearn
    from feduhb.audit.audit import audit
    from feduhb.audit.result import Audit
    from feduhb.core.aggregate import geometric_median, krum, median, trimmed_mean, weighted_mean
    from feduhb.core.scores import Score
    from feduhb.core.types import Local, Method, Updates, Work
    from feduhb.data.backdoor import Backdoor
    from feduhb.data.canaries import Canaries
    from feduhb.data.describe import describe_table
    from feduhb.data.federation import Federation
    from feduhb.data.load import load
    from feduhb.data.request import Request
    from feduhb.engines import Loop, Pool, Stacked
    from feduhb.errors import FeduhbError
    from feduhb.methods import (
        PGA,
        Crab,
        FedAdam,
        FedAF,
        FedEraser,
        FedExP,
        FedNadam,
        FedRecover,
        FedRecovery,
        FedUHB,
        FedYogi,
        FineTune,
        Nesterov,
        NoT,
        RapidRetrain,
        Retrain,
        WuDistillation,
    )
    from feduhb.report import report
    from feduhb.runs.folder import Round
    from feduhb.runs.retire import retire
    from feduhb.runs.run import Run, open_run
    from feduhb.runs.tracking import TensorBoard
    from feduhb.stopping import distance_stop, dynamic_stop, never, patience, replay

_MODULES = {
    "feduhb.api": ("compare", "train", "unlearn"),
    "feduhb.audit.audit": ("audit",),
    "feduhb.audit.result": ("Audit",),
    "feduhb.core.aggregate": ("geometric_median", "krum", "median", "trimmed_mean", "weighted_mean"),
    "feduhb.core.scores": ("Score",),
    "feduhb.core.types": ("Local", "Method", "Updates", "Work"),
    "feduhb.data.backdoor": ("Backdoor",),
    "feduhb.data.canaries": ("Canaries",),
    "feduhb.data.describe": ("describe_table",),
    "feduhb.data.federation": ("Federation",),
    "feduhb.data.load": ("load",),
    "feduhb.data.request": ("Request",),
    "feduhb.engines": ("Loop", "Pool", "Stacked"),
    "feduhb.errors": ("FeduhbError",),
    "feduhb.methods": (
        "PGA", "Crab", "FedAF", "FedAdam", "FedEraser", "FedExP", "FedNadam", "FedRecover", "FedRecovery",
        "FedUHB", "FedYogi", "FineTune", "Nesterov", "NoT", "RapidRetrain", "Retrain", "WuDistillation",
    ),
    "feduhb.runs.folder": ("Round",),
    "feduhb.runs.retire": ("retire",),
    "feduhb.runs.run": ("Run", "open_run"),
    "feduhb.runs.tracking": ("TensorBoard",),
    "feduhb.stopping": ("distance_stop", "dynamic_stop", "never", "patience", "replay"),
}  # fmt: skip
_MODULE = {name: module for module, names in _MODULES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "PGA", "Audit", "Backdoor", "Canaries", "Crab", "FedAF", "FedAdam", "FedEraser", "FedExP", "FedNadam", "FedRecover", "FedRecovery", "FedUHB", "FedYogi", "Federation", "FeduhbError", "FineTune", "Local", "Loop", "Method",
    "Nesterov", "NoT", "Pool", "RapidRetrain", "Request", "Retrain", "Round", "Run", "Score", "Stacked", "TensorBoard", "Updates", "Work", "WuDistillation", "audit", "compare", "describe_table", "distance_stop", "dynamic_stop", "geometric_median", "krum", "load", "median", "never", "open_run",
    "patience", "replay", "report", "retire", "train", "trimmed_mean", "unlearn", "weighted_mean",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in {"flower", "report"}:
        return importlib.import_module(f"feduhb.{name}")
    if name not in _MODULE:
        raise AttributeError(f"feduhb has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """The type of this package. `feduhb.audit` stays the function when the package of that name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name == "audit" and isinstance(value, ModuleType)):  # an import of feduhb.audit sets it
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
