"""Audits: did a run really forget? `feduhb.audit.result` does not import torch."""

from typing import TYPE_CHECKING

from feduhb.core.lazy import import_lazily

if TYPE_CHECKING:
    from feduhb.audit.attacks.misr import compute_misr as compute_misr
    from feduhb.audit.audit import audit_all as audit_all
    from feduhb.audit.forecast import forecast_power as forecast_power
    from feduhb.audit.pooling import pool as pool
    from feduhb.audit.pooling import pool_differences as pool_differences
    from feduhb.audit.pooling import pool_seeds as pool_seeds
    from feduhb.audit.procedure import AuditSettings as AuditSettings
    from feduhb.audit.statistics import is_equivalent as is_equivalent

__getattr__, __dir__, __all__ = import_lazily(
    __name__,
    {
        "attacks.misr": ["compute_misr"],
        "audit": ["audit_all"],
        "forecast": ["forecast_power"],
        "pooling": ["pool", "pool_differences", "pool_seeds"],
        "procedure": ["AuditSettings"],
        "statistics": ["is_equivalent"],
    },
)
