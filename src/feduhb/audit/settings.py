"""How thorough an audit is."""

from __future__ import annotations

from dataclasses import dataclass

from feduhb.audit.verdict import MARGIN
from feduhb.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """How thorough an audit is.

    Args:
        exactness: train and unlearn again with noise in place of the forgotten data, and without it from the start.
        canaries: where the federation holds none, rehearse the erasure with this share of the forgotten examples
            mislabelled; 0 skips this.
        shadows: shadow federations for LiRA, an even number; 0 skips this.
        relearn: rounds at most of training the forgotten data back in; 0 skips this.
        margin: an AUC within 0.5 ± margin counts as none.
    """

    exactness: bool = True
    canaries: float = 0.25
    shadows: int = 0
    relearn: int = 20
    margin: float = MARGIN

    def __post_init__(self) -> None:
        if not 0 <= self.canaries <= 1:
            raise ConfigError(f"canaries is {self.canaries}; give a share of 0 (none) to 1, such as 0.25")
        if self.shadows < 0 or self.shadows % 2 or self.shadows == 2:
            raise ConfigError(
                f"shadows is {self.shadows}; give 0, or an even number of 4 or more, such as 16"
            )
        if self.relearn < 0:
            raise ConfigError(f"relearn is {self.relearn}; give a number of rounds, or 0 to do without")
        if not 0 < self.margin < 0.5:
            raise ConfigError(f"margin is {self.margin}; give a number between 0 and 0.5, such as 0.05")
