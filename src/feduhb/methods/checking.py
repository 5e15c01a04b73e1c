"""What the methods that take one averaged step a round refuse."""

from __future__ import annotations

from typing import Any

from feduhb.core.checks import finite, whole
from feduhb.errors import ConfigError


def check_step(step_size: Any, epochs: Any, aggregate: Any) -> None:
    """Refuse a step that is no positive number, epochs that cannot be counted, and a rule that cannot be called."""
    if not (finite(step_size) and step_size > 0):
        raise ConfigError(f"step_size is {step_size!r}; give a positive number, such as 1.0")
    whole("epochs", epochs, least=0)
    if not callable(aggregate):
        raise ConfigError(
            f"aggregate is {aggregate!r}; give a rule, such as feduhb.median, or leave it to be the run's own"
        )
