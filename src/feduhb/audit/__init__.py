"""Audits: did a run really forget? `feduhb.audit.result` does not import torch."""

from typing import TYPE_CHECKING

from feduhb.core.lazy import import_lazily

if TYPE_CHECKING:
    from feduhb.audit.attacks.misr import compute_misr as compute_misr
    from feduhb.audit.forecast import forecast_power as forecast_power
    from feduhb.audit.statistics import is_equivalent as is_equivalent
    from feduhb.audit.statistics import pool as pool
    from feduhb.audit.statistics import pool_differences as pool_differences

__getattr__, __dir__, __all__ = import_lazily(
    __name__,
    {
        "attacks.misr": ["compute_misr"],
        "forecast": ["forecast_power"],
        "statistics": ["is_equivalent", "pool", "pool_differences"],
    },
)
